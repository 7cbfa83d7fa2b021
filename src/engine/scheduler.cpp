#include "engine/scheduler.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <utility>

#include "base/error.h"
#include "engine/generation.h"
#include "engine/prompt_cuts.h"
#include "engine/speculate.h"

namespace onebit {

/// Trying the drafter takes 40 steps and 200 drafts: half the drafts where they take longer, nothing on a slow device.
constexpr double kFastDraftMs = 5, kSlowStepMs = 15;

/// Of a prompt's first turn (system and tools), from whose end other conversations start, a drafter sees the last
/// positions, and more of each as it goes on: with a window of 64 the demo's keeps 2.71 tokens a round, with 128 2.98
/// and with 512 3.06.
constexpr int64_t kSeenOfTurn = kPageTokens;

/// What a queued request waits with.
struct Queued {
  RequestId id = 0;
  Request request;
  std::shared_ptr<Listener> listener;
};

struct Slot {
  std::unique_ptr<Session> session;
  std::unique_ptr<Generation> generation;  // null: idle
  uint64_t last_used = 0;
  std::deque<PromptCut> cuts;  // of the prompt, still ahead
  int64_t n_kept = 0;          // n_past when its state was last kept
  int64_t first_turn = 0;      // where the prompt's first turn ends, if others may start there
};

/// Where a request starts from: a slot's own state, or what the prefix cache has.
struct Start {
  Slot* slot = nullptr;  // null: all are busy
  int64_t n_reused = 0;
  PrefixCache::Found found;  // entry null: the slot's own state
};

struct Scheduler::Impl : SlotKeeper {
  explicit Impl(Engine& e);

  bool idle(int32_t slot) const override;
  SlotSnapshot copy(int32_t slot) override;
  SlotFileReport adopt(int32_t slot, const SlotSnapshot& snapshot) override;
  SlotFileReport erase(int32_t slot) override;
  SlotSnapshot load(const std::string& path) const override { return load_slot_file(path, engine); }
  void wake() override;

  bool step();
  void admit();
  Start pick_start(const Request& request);
  void start(const Start& from, Queued queued);
  void plan_reading(Slot& slot);
  void apply_cancels();
  void draft();
  void compose();
  void add_answer(Generation& generation);
  void add_prompt(Generation& generation);
  void run_target();
  void settle(Session& session);
  void forget(Session& session);
  void conclude();
  void conclude_prompt(Generation& generation, const Sequence& rows, int64_t out_row);
  void keep_states();
  void retire();
  void fail_all(const std::string& message);
  void publish();
  template <typename F>
  void for_active(F f) {
    for (Slot& slot : slots) {
      if (slot.generation && !slot.generation->finished()) f(*slot.generation);
    }
  }

  Engine& engine;
  Speculator speculator;
  PagePool pages, draft_pages;
  PrefixCache cache;
  std::vector<Slot> slots;
  uint64_t clock = 0;

  // The batch of the current step: one entry of each for every sequence in it.
  std::vector<int32_t> tokens, outputs, taps;
  std::vector<Sequence> sequences;
  std::vector<Generation*> members;
  std::vector<int64_t> out_rows;
  std::vector<Generation*> drafting;

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<Queued> queue;
  std::vector<RequestId> cancels;
  std::vector<SlotStatus> status;
  PrefixCacheStatus cache_status;
  RequestId next_id = 1;
  bool woken = false;

  SlotTasks tasks{*this};  // last: its thread has ended before anything else goes
};

Scheduler::Impl::Impl(Engine& e)
    : engine(e),
      speculator(e),
      pages(e.target_sizes().n_pages, [&e](int32_t from, int32_t to) { e.target_states().copy_page(from, to); }),
      draft_pages(e.draft_sizes().n_pages, [&e](int32_t from, int32_t to) { e.draft_states()->copy_page(from, to); }),
      cache(e, pages, draft_pages) {
  const EngineOptions& o = engine.options();
  DraftContext draft;
  if (engine.drafter()) draft = {&draft_pages, engine.drafter()->config().context_rows()};
  slots.resize(static_cast<size_t>(o.n_slots));
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i].session = std::make_unique<Session>(static_cast<int32_t>(i), o.n_ctx, pages, draft);
  }
  const auto n_tok = static_cast<size_t>(engine.target_limits().n_tok);
  tokens.reserve(n_tok);
  taps.reserve(n_tok);
  outputs.reserve(static_cast<size_t>(engine.target_limits().n_out));
  for (auto* list : {&members, &drafting}) list->reserve(slots.size());
  sequences.reserve(slots.size());
  out_rows.reserve(slots.size());
  if (o.draft_adaptive && !o.costs) speculator.measure(*slots[0].session);
  publish();
}

bool Scheduler::Impl::step() {
  apply_cancels();
  tasks.run();
  admit();
  try {
    draft();
    compose();
    if (!sequences.empty()) {
      run_target();
      conclude();
    }
  } catch (const std::exception& error) {
    fail_all(error.what());
  }
  const bool worked = !sequences.empty();
  retire();
  publish();
  return worked;
}

void Scheduler::Impl::apply_cancels() {
  std::vector<RequestId> ids;
  std::vector<Queued> dropped;
  {
    const std::lock_guard lock(mutex);
    ids.swap(cancels);
    for (auto it = queue.begin(); it != queue.end();) {
      if (std::find(ids.begin(), ids.end(), it->id) == ids.end()) {
        ++it;
      } else {
        dropped.push_back(std::move(*it));
        it = queue.erase(it);
      }
    }
  }
  for (const Queued& queued : dropped) queued.listener->on_finish(FinishReason::cancelled, {}, "");
  for_active([&](Generation& generation) {
    if (std::find(ids.begin(), ids.end(), generation.id()) != ids.end()) generation.finish(FinishReason::cancelled);
  });
  retire();
}

bool Scheduler::Impl::idle(int32_t slot) const { return !slots[static_cast<size_t>(slot)].generation; }

SlotSnapshot Scheduler::Impl::copy(int32_t slot) {
  return snapshot_slot(engine, *slots[static_cast<size_t>(slot)].session, cache);
}

SlotFileReport Scheduler::Impl::adopt(int32_t slot, const SlotSnapshot& snapshot) {
  slots[static_cast<size_t>(slot)].last_used = ++clock;
  return adopt_slot(snapshot, engine, *slots[static_cast<size_t>(slot)].session, cache);
}

SlotFileReport Scheduler::Impl::erase(int32_t slot) {
  Session& session = *slots[static_cast<size_t>(slot)].session;
  const SlotFileReport report{.n_tokens = session.n_past()};
  cache.forget(session.tokens());
  forget(session);
  return report;
}

void Scheduler::Impl::wake() {
  const std::lock_guard lock(mutex);
  woken = true;
  changed.notify_all();
}

void Scheduler::Impl::admit() {
  while (true) {
    Queued queued;
    Start from;
    {
      const std::lock_guard lock(mutex);
      if (queue.empty()) return;
      from = pick_start(queue.front().request);
      if (!from.slot) return;
      queued = std::move(queue.front());
      queue.pop_front();
    }
    start(from, std::move(queued));
  }
}

/// The idle slot that has most of the prompt evaluated; where the prefix cache has more, the slot unused for longest.
Start Scheduler::Impl::pick_start(const Request& request) {
  Start best;
  Slot* oldest = nullptr;
  for (Slot& slot : slots) {
    if (slot.generation) continue;
    if (!oldest || slot.last_used < oldest->last_used) oldest = &slot;
    if (!request.reuse_prefix) continue;
    const int64_t n = reusable(slot.session->tokens(), request.prompt, engine.recurrent());
    if (n > best.n_reused) best = {&slot, n, {}};
  }
  if (!oldest) return {};
  if (request.reuse_prefix) {
    const PrefixCache::Found found = cache.find(request.prompt);
    if (found.n > best.n_reused) return {oldest, found.n, found};
  }
  return best.slot ? best : Start{oldest, 0, {}};
}

void Scheduler::Impl::start(const Start& from, Queued queued) {
  Slot& slot = *from.slot;
  Session& session = *slot.session;
  if (from.found.entry) {
    cache.restore(from.found, session);
  } else {
    session.truncate(from.n_reused);
    if (from.n_reused == 0) engine.clear_slot(session.slot());
  }
  cache.count_request(from.n_reused);
  slot.last_used = ++clock;
  slot.n_kept = from.n_reused;
  slot.generation = std::make_unique<Generation>(queued.id, std::move(queued.request), std::move(queued.listener),
                                                 session, engine.config().n_vocab, engine.options().n_ctx,
                                                 from.n_reused, speculator.new_drafting());
  speculator.feed().restart(session);
  plan_reading(slot);
}

/// Where reading the prompt pauses, and what the drafter sees of it.
void Scheduler::Impl::plan_reading(Slot& slot) {
  const Request& request = slot.generation->request();
  slot.cuts.clear();
  if (engine.cache_sizes().n_entries > 0) {
    for (const PromptCut& cut : prompt_cuts(request.prompt, request.turn_ids, engine.cache_sizes().every)) {
      // Not behind the one token that ends the turn of the answer from which this prompt goes on.
      if (cut.pos > slot.n_kept + (slot.n_kept > 0 ? 1 : 0)) slot.cuts.push_back(cut);
    }
  }
  slot.first_turn = 0;
  const auto turn = std::find_if(slot.cuts.begin(), slot.cuts.end(), [](const PromptCut& cut) { return cut.turn; });
  if (slot.n_kept == 0 && turn != slot.cuts.end()) slot.first_turn = turn->pos;
  const int64_t seen = slot.session->seen_at(static_cast<int64_t>(request.prompt.size()));
  slot.session->draft_from(slot.first_turn > 0 ? std::min(seen, slot.first_turn - kSeenOfTurn) : seen);
}

void Scheduler::Impl::draft() {
  drafting.clear();
  int64_t n_prompt = 0;
  for_active([&](Generation& generation) {
    n_prompt += static_cast<int64_t>(generation.prompt_left().size());
    if (!generation.reading_prompt()) drafting.push_back(&generation);
  });
  const int64_t room = engine.options().n_batch - static_cast<int64_t>(drafting.size());
  if (!drafting.empty()) speculator.draft(drafting, std::min(n_prompt, room));
}

/// Answers first, then prompts in chunks as far as the batch's rows reach.
void Scheduler::Impl::compose() {
  tokens.clear(), outputs.clear(), sequences.clear(), members.clear(), out_rows.clear();
  for_active([&](Generation& generation) {
    if (!generation.reading_prompt()) add_answer(generation);
  });
  for_active([&](Generation& generation) {
    if (generation.reading_prompt()) add_prompt(generation);
  });
}

void Scheduler::Impl::add_answer(Generation& generation) {
  const auto row = static_cast<int32_t>(tokens.size());
  const std::vector<int32_t>& drafted = generation.drafting().tokens;
  const auto n_tok = static_cast<int32_t>(1 + drafted.size());
  sequences.push_back(generation.session().rows(row, n_tok, n_tok > 1 ? Phase::verify : Phase::decode));
  members.push_back(&generation);
  out_rows.push_back(static_cast<int64_t>(outputs.size()));
  tokens.push_back(generation.anchor());
  tokens.insert(tokens.end(), drafted.begin(), drafted.end());
  for (int32_t i = 0; i < n_tok; ++i) outputs.push_back(row + i);
}

/// Rows up to the next cut, or whole pages of them: how a prompt is divided never depends on who else is there, since
/// the chunks of a recurrence show in its last bits.
void Scheduler::Impl::add_prompt(Generation& generation) {
  const Slot& slot = slots[static_cast<size_t>(generation.session().slot())];
  const std::span<const int32_t> left = generation.prompt_left();
  const auto row = static_cast<int32_t>(tokens.size());
  const int64_t piece =
      slot.cuts.empty() ? static_cast<int64_t>(left.size()) : slot.cuts.front().pos - generation.session().n_past();
  const int64_t room = engine.options().n_batch - static_cast<int64_t>(tokens.size());
  const auto n_tok = static_cast<int32_t>(piece <= room ? piece : room / kPageTokens * kPageTokens);
  if (n_tok <= 0) return;
  sequences.push_back(generation.session().rows(row, n_tok, Phase::prompt));
  members.push_back(&generation);
  out_rows.push_back(static_cast<int64_t>(outputs.size()));
  tokens.insert(tokens.end(), left.begin(), left.begin() + n_tok);
  if (n_tok == static_cast<int32_t>(left.size())) outputs.push_back(row + n_tok - 1);
}

/// Taps are stored unless no row of the batch is one that the drafter will still see.
void Scheduler::Impl::run_target() {
  taps.clear();
  bool seen = false, prompts = false, logits = false;
  for (size_t i = 0; i < members.size(); ++i) {
    if (engine.drafter()) speculator.feed().place_taps(members[i]->session(), sequences[i], taps);
    seen = seen || sequences[i].pos + sequences[i].n_tok > members[i]->session().draft_begin();
    prompts = prompts || sequences[i].phase == Phase::prompt;
    logits = logits || members[i]->sampler().needs_logits();
  }
  if (!seen) taps.clear();
  const auto start = std::chrono::steady_clock::now();
  engine.run_target(
      {.tokens = tokens, .sequences = sequences, .outputs = outputs, .tap_rows = taps, .choices_only = !logits});
  const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
  if (!prompts) speculator.observe_target(static_cast<int64_t>(tokens.size()), ms.count());
}

void Scheduler::Impl::conclude() {
  for (size_t i = 0; i < members.size(); ++i) {
    Generation& generation = *members[i];
    const Sequence& rows = sequences[i];
    if (rows.phase == Phase::prompt) {
      conclude_prompt(generation, rows, out_rows[i]);
      continue;
    }
    speculator.accept(generation, out_rows[i]);
    if (engine.drafter()) speculator.feed().tap_answer(generation.session());
  }
  speculator.feed().encode();
  keep_states();
}

/// Once all rows of a step are where they belong.
void Scheduler::Impl::keep_states() {
  if (engine.cache_sizes().n_entries == 0) return;
  for (Generation* member : members) {
    Session& session = member->session();
    Slot& slot = slots[static_cast<size_t>(session.slot())];
    bool keep = !member->reading_prompt() && session.n_past() - slot.n_kept >= engine.cache_sizes().every;
    const bool at_cut = !slot.cuts.empty() && slot.cuts.front().pos == session.n_past();
    if (at_cut) {
      keep = slot.cuts.front().keep;
      slot.cuts.pop_front();
    }
    if (keep) {
      settle(session);
      cache.save(session);
      slot.n_kept = session.n_past();
    }
    const auto n_prompt = static_cast<int64_t>(member->request().prompt.size());
    if (at_cut && session.n_past() >= slot.first_turn) session.draft_from(session.seen_at(n_prompt));
  }
}

void Scheduler::Impl::conclude_prompt(Generation& generation, const Sequence& rows, int64_t out_row) {
  generation.session().keep(generation.prompt_left().first(static_cast<size_t>(rows.n_tok)));
  if (engine.drafter()) speculator.feed().tap_prompt(generation.session(), rows);
  generation.prompt_advanced(rows.n_tok);
  if (!generation.reading_prompt()) generation.take(speculator.sample(generation, out_row));
}

void Scheduler::Impl::retire() {
  for (Slot& slot : slots) {
    if (!slot.generation || !slot.generation->finished()) continue;
    slot.generation->count_fed(speculator.feed().n_fed(*slot.session));
    slot.generation->report_finish();
    speculator.finish(*slot.generation);
    if (slot.generation->finished() != FinishReason::error) {
      settle(*slot.session);
      cache.save(*slot.session);
    }
    slot.generation.reset();
  }
}

void Scheduler::Impl::fail_all(const std::string& message) {
  for (Slot& slot : slots) {
    if (slot.generation) slot.generation->finish(FinishReason::error, message);
    forget(*slot.session);
  }
}

void Scheduler::Impl::forget(Session& session) {
  session.truncate(0);
  engine.clear_slot(session.slot());
  speculator.feed().restart(session);
}

/// The drafter's caches get what waits to be fed to them.
void Scheduler::Impl::settle(Session& session) {
  try {
    speculator.feed().settle(session);
    speculator.feed().encode();
  } catch (const std::exception&) {
    forget(session);  // the device's failure shows at the next step; this state must not be gone on from
  }
}

void Scheduler::Impl::publish() {
  const std::lock_guard lock(mutex);
  status.clear();
  for (const Slot& slot : slots) {
    SlotStatus& s = status.emplace_back();
    s.slot = slot.session->slot();
    s.n_past = slot.session->n_past();
    if (!slot.generation) continue;
    s.request = slot.generation->id();
    s.n_prompt = static_cast<int64_t>(slot.generation->request().prompt.size());
    s.n_generated = slot.generation->n_generated();
  }
  cache_status = cache.status();
}

// --- the surface
// ---------------------------------------------------------------------------------------------------------

Scheduler::Scheduler(Engine& engine) : impl_(std::make_unique<Impl>(engine)) {}
Scheduler::~Scheduler() = default;

RequestId Scheduler::submit(Request request, std::shared_ptr<Listener> listener) {
  const int64_t n_ctx = impl_->engine.options().n_ctx;
  const int64_t n_vocab = impl_->engine.config().n_vocab;
  const auto n_prompt = static_cast<int64_t>(request.prompt.size());
  if (n_prompt == 0) fail(ErrorKind::usage, "prompt: expected at least one token, found none");
  if (n_prompt >= n_ctx) {
    fail(ErrorKind::usage, "prompt: {} tokens do not fit a context of {}; raise --ctx-size or shorten the prompt",
         n_prompt, n_ctx);
  }
  for (int32_t id : request.prompt) {
    if (id < 0 || id >= n_vocab)
      fail(ErrorKind::usage, "prompt: token {} is outside the vocabulary of {}", id, n_vocab);
  }
  if (request.max_tokens == 0) fail(ErrorKind::usage, "max_tokens: expected at least 1, found 0");
  const Sampler checked(request.sampling, n_vocab);
  const std::lock_guard lock(impl_->mutex);
  const RequestId id = impl_->next_id++;
  impl_->queue.push_back({id, std::move(request), std::move(listener)});
  impl_->woken = true;
  impl_->changed.notify_all();
  return id;
}

void Scheduler::cancel(RequestId id) {
  const std::lock_guard lock(impl_->mutex);
  impl_->cancels.push_back(id);
  impl_->woken = true;
  impl_->changed.notify_all();
}

std::future<SlotFileReport> Scheduler::act_on_slot(int32_t slot, SlotAction action, std::string path) {
  if (slot < 0 || slot >= impl_->engine.options().n_slots)
    fail(ErrorKind::usage, "slot {}: expected 0 to {}", slot, impl_->engine.options().n_slots - 1);
  std::future<SlotFileReport> report = impl_->tasks.add(slot, action, std::move(path));
  impl_->wake();
  return report;
}

bool Scheduler::step() { return impl_->step(); }

void Scheduler::wait_for_work(int milliseconds) {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return impl_->woken; });
  impl_->woken = false;
}

void Scheduler::wake() { impl_->wake(); }

void Scheduler::cancel_all() {
  {
    const std::lock_guard lock(impl_->mutex);
    for (const Queued& queued : impl_->queue) impl_->cancels.push_back(queued.id);
    for (const SlotStatus& slot : impl_->status) {
      if (slot.request != 0) impl_->cancels.push_back(slot.request);
    }
  }
  impl_->apply_cancels();
  impl_->publish();
  impl_->tasks.end();
}

DrafterCheck Scheduler::check_drafter(std::span<const int32_t> prompt, TapShift at) {
  const Engine& engine = impl_->engine;
  if (!engine.drafter() || engine.options().draft_max == 0 || prompt.empty()) return {};
  if (costs().target.at(1) > kSlowStepMs) return {};
  const bool every = costs().draft.at(static_cast<double>(engine.options().draft_max + 1)) < kFastDraftMs;
  return onebit::check_drafter(impl_->engine, *impl_->slots[0].session, prompt, every ? 1 : 2, at);
}
const StepCosts& Scheduler::costs() const { return impl_->speculator.costs(); }

int64_t Scheduler::n_queued() const {
  const std::lock_guard lock(impl_->mutex);
  return static_cast<int64_t>(impl_->queue.size());
}

PrefixCacheStatus Scheduler::prefix_cache() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->cache_status;
}

std::vector<SlotStatus> Scheduler::slots() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->status;
}

}  // namespace onebit
