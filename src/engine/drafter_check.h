// Does a drafter see what it was trained to see? Hidden states taken one block or one position off, or a head in the
// wrong basis, raise no error: drafts are just never accepted. So the drafter writes a few tokens behind a built-in
// text, once with its hidden states and once with those of positions before, which must do worse.
#pragma once

#include <string>

#include "engine/scheduler.h"
#include "text/tokenizer.h"

namespace onebit {

struct DrafterCheck {
  int64_t n_tokens = 0;                     // generated in each run; 0: not run, the device is too slow for it
  int64_t n_accepted = 0, n_displaced = 0;  // drafted tokens that were accepted, with right and displaced states

  /// What is wrong, or "".
  std::string warning() const;
};

/// Takes about 0.1 s on a fast device. The scheduler must be idle; the slot that was used is erased afterwards.
DrafterCheck check_drafter(Scheduler& scheduler, const Tokenizer& tokenizer);

}  // namespace onebit
