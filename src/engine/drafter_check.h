// Does a drafter see what it was trained to see? Hidden states taken one block or one position off, or a head in the
// wrong basis, raise no error: drafts are just accepted less often, or never. So the drafter drafts behind every token
// of a short text of its target, with the hidden states that it gets and with their neighbours, which must do worse.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/session.h"

namespace onebit {

/// How far from their place hidden states are taken.
struct TapShift {
  int64_t blocks = 0, positions = 0;
};

struct DrafterCheck {
  struct Trial {
    TapShift shift;
    std::vector<int32_t> accepted;  // [text]: drafted tokens that the text goes on with

    double mean() const;
  };
  std::vector<Trial> trials;  // the first one without a shift; empty: not run

  /// What is wrong, or "".
  std::string warning() const;
};

/// Text for check_drafter(); any tokenizer's.
extern const char* const kDrafterCheckText;

/// Lets the target go on with `prompt` and judges the drafter by that text. `session` must be empty and idle, and is so
/// afterwards. It drafts behind every `every`-th token. `at` is added to all shifts: what an engine that takes hidden
/// states from there would find.
DrafterCheck check_drafter(Engine& engine, Session& session, std::span<const int32_t> prompt, int64_t every,
                           TapShift at = {});

}  // namespace onebit
