// What a drafter sees of its target: hidden states ("taps") of the rows that are kept. Rows of answers wait in a ring
// by slot until the next draft, rows of a prompt are taken from the batch that read them; encode() makes all that is
// queued into keys and values of the drafter's own caches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/session.h"

namespace onebit {

class DraftFeed {
 public:
  explicit DraftFeed(Engine& engine);

  /// Where the taps of a session's `rows` in a batch go: appended to `to`.
  void place_taps(const Session& session, const Sequence& rows, std::vector<int32_t>& to) const;
  /// Rows of a prompt were kept: feeds those that the drafter will see to its caches when encode() is called.
  void tap_prompt(Session& session, const Sequence& rows);
  /// Rows of an answer were kept; they are fed to the drafter's caches before the next draft, as far as the ring holds
  /// them: where nothing has been drafted for long, the drafter goes on without what was before.
  void tap_answer(Session& session);
  /// Queues what is still to be fed of this session; before it drafts, its state is kept or its answer ends.
  void settle(Session& session);
  /// Rows that settle() would queue.
  int64_t n_waiting(const Session& session) const;
  /// Rows of a session fed since restart().
  int64_t n_fed(const Session& session) const { return n_fed_[static_cast<size_t>(session.slot())]; }
  void encode();
  /// The session starts anew at its n_past(): nothing of it is to be fed.
  void restart(const Session& session);

  /// Row of the taps for a position of an answer.
  int32_t tap_row(const Session& session, int64_t pos) const;
  /// Where a chained drafter leaves its own hidden state.
  int32_t chain_row(const Session& session) const;
  /// The row with the hidden state of the position before `pos`: zeros where there is none, or none is known.
  int32_t hidden_before(const Session& session, int64_t pos) const;

 private:
  Engine& engine_;
  std::vector<int64_t> fed_;     // [slot]: rows of the answer below this position are in the drafter's caches
  std::vector<int64_t> tapped_;  // [slot]: first position whose tap is in the ring
  std::vector<int64_t> n_fed_;   // [slot]
  std::vector<int32_t> source_rows_, tokens_;
  std::vector<Sequence> sequences_;
};

}  // namespace onebit
