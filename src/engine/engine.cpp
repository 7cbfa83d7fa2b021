#include "engine/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "base/error.h"
#include "base/gumbel.h"
#include "engine/load_weights.h"

namespace onebit {
namespace {

constexpr int64_t kMaxContext = int64_t{1} << 24;
constexpr int32_t kLookupLength = 7;  // tokens a step that are looked up when there is no drafter
constexpr int64_t kTapRing = 128;     // a longer pause leaves the drafter with the last page or two
constexpr int32_t kMaxDraft = 1024;

constexpr int64_t kAutoCache = int64_t{8} << 30;
constexpr int64_t kMaxStates = 128;    // of a recurrent model in the prefix cache
constexpr int64_t kMaxEntries = 64;    // of an attention model
constexpr int64_t kMaxCachePages = 4;  // times what the slots need

int64_t pages_for(int64_t n_positions) { return (n_positions + kPageTokens - 1) / kPageTokens; }

void fill_defaults(EngineOptions& o, const ModelConfig& model, const DrafterConfig* drafter,
                   std::vector<std::string>& warnings) {
  if (o.n_ctx <= 0) o.n_ctx = std::min(model.n_ctx_train, kDefaultContext);
  o.n_ctx = std::min(o.n_ctx, kMaxContext);
  if (o.n_ctx > model.n_ctx_train) {
    warnings.push_back(fmt::format("context of {} is longer than the {} tokens the model was trained for", o.n_ctx,
                                   model.n_ctx_train));
  }
  if (!drafter) {
    o.draft_max = !o.lookup ? 0 : o.draft_max < 0 ? kLookupLength : o.draft_max;
    return;
  }
  const auto block = static_cast<int32_t>(drafter->block_size) - 1;
  if (o.draft_max > block) {
    warnings.push_back(fmt::format("a block of {} drafts {} tokens, not {}", drafter->block_size, block, o.draft_max));
  }
  o.draft_max = o.draft_max < 0 ? block : std::min(o.draft_max, block);
}

void check_options(const EngineOptions& o) {
  if (o.draft_max > kMaxDraft)
    fail(ErrorKind::usage, "--draft-max: expected at most {}, found {}", kMaxDraft, o.draft_max);
  if (o.n_slots < 1 || o.n_slots > 256) fail(ErrorKind::usage, "--parallel: expected 1 to 256, found {}", o.n_slots);
  if (o.n_batch < 1 || o.n_batch > 65536)
    fail(ErrorKind::usage, "--batch-size: expected 1 to 65536, found {}", o.n_batch);
  if (o.n_ctx < 0) fail(ErrorKind::usage, "--ctx-size: expected a number of tokens, found {}", o.n_ctx);
  if (!(o.draft_p_min >= 0 && o.draft_p_min <= 1))
    fail(ErrorKind::usage, "--draft-p-min: expected 0 to 1, found {}", o.draft_p_min);
  if (o.cache_bytes < -1) fail(ErrorKind::usage, "--cache-ram: expected a number of MiB, found {}", o.cache_bytes);
}

void check_caches(const EnginePlan& p) {
  check_cache(*p.backend, p.model->states(), p.options.cache);
  if (p.drafter) check_cache(*p.backend, p.drafter->states(), p.options.cache);
}

/// Sizes of states and programs from the options.
void size_pools(EnginePlan& p) {
  EngineOptions& o = p.options;
  const int64_t block = o.draft_max + 1;
  const int64_t tested = std::max<int64_t>(block, o.n_verify);
  o.n_batch = static_cast<int32_t>(std::max<int64_t>(o.n_batch, o.n_slots * tested + kPageTokens));
  p.target_sizes = {
      .n_pages = o.n_slots * pages_for(o.n_ctx + tested), .n_slots = o.n_slots, .n_tape = tested, .cache = o.cache};
  p.target_limits = {.n_tok = o.n_batch, .n_out = std::max<int64_t>(o.n_slots * tested, o.n_logits)};
  if (!p.drafter) return;
  const int64_t context = p.drafter->config().context_rows();
  const int64_t kept = context == 0 ? o.n_ctx + block : std::min(o.n_ctx + block, context + 2 * kPageTokens + block);
  p.draft_sizes = {.n_pages = o.n_slots * (pages_for(kept) + 1), .cache = o.cache};
  const int64_t rings = o.n_slots * tap_ring_rows(o);
  p.tap_sizes = {.n_rows = o.n_batch + rings + o.n_slots + 1};  // a chained drafter's own states; a row of zeros
  p.encode_limits = {.n_tok = o.n_batch + rings, .n_out = 1};
  p.draft_limits = {.n_tok = o.n_slots * block, .n_out = std::max<int64_t>(o.n_slots * (block - 1), 1)};
  if (p.drafter->chained()) p.draft_limits = {.n_tok = o.n_slots, .n_out = o.n_slots};
}

int64_t bytes_of(const std::vector<const State*>& states, const StateSizes& sizes) {
  int64_t bytes = 0;
  for (const State* state : states) bytes += state_bytes(*state, sizes);
  return bytes;
}

/// Divides `budget` among entries and pages: at most half of it is for the states of a recurrent model.
PrefixCacheSizes cache_sizes(const EnginePlan& p, int64_t budget) {
  PrefixCacheSizes c;
  const StateSizes one_page{.n_pages = 1, .cache = p.options.cache};
  c.slot_bytes = bytes_of(p.model->states(), {.n_slots = 1, .n_tape = p.target_sizes.n_tape});
  c.page_bytes = bytes_of(p.model->states(), one_page);
  if (p.drafter) c.draft_page_bytes = bytes_of(p.drafter->states(), one_page);
  // The drafter's pages in the proportion in which the slots have them.
  const double draft_share = static_cast<double>(p.draft_sizes.n_pages) / static_cast<double>(p.target_sizes.n_pages);
  const double page = static_cast<double>(c.page_bytes) + draft_share * static_cast<double>(c.draft_page_bytes);
  c.entry_bytes = c.slot_bytes + p.options.n_ctx * 4;
  const auto least = static_cast<int64_t>(static_cast<double>(c.entry_bytes) + page);
  c.n_entries = std::min(std::max(budget / 2 / c.entry_bytes, std::min<int64_t>(budget / least, 1)),
                         c.slot_bytes > 0 ? kMaxStates : kMaxEntries);
  if (c.n_entries == 0) return c;
  budget -= c.n_entries * c.entry_bytes;
  c.n_pages = std::min(page > 0 ? static_cast<int64_t>(static_cast<double>(budget) / page) : 0,
                       kMaxCachePages * p.target_sizes.n_pages);
  c.n_draft_pages = static_cast<int64_t>(static_cast<double>(c.n_pages) * draft_share);
  // Whole batches, so that keeping states costs no further pass; a text of the full context takes half of them.
  const int64_t unit = (p.options.n_batch + kPageTokens - 1) / kPageTokens * kPageTokens;
  const int64_t per_entry = 2 * p.options.n_ctx / std::max<int64_t>(c.n_entries, 1);
  c.every = std::max<int64_t>((per_entry + unit - 1) / unit, 1) * unit;
  return c;
}

/// Gives the prefix cache its share of the state memory, and its line in the table.
void size_cache(EnginePlan& p, const DeviceInfo& device) {
  int64_t budget = p.options.cache_bytes;
  if (budget < 0) {
    const int64_t limit = p.options.memory_limit > 0 ? p.options.memory_limit : device.memory_bytes;
    budget = limit <= 0 ? kAutoCache : std::clamp<int64_t>((limit - p.memory_bytes()) / 4, 0, kAutoCache);
  }
  p.cache_sizes = cache_sizes(p, budget);
  if (p.cache_sizes.n_entries == 0 && p.options.cache_bytes > 0) {
    p.warnings.push_back(fmt::format(
        "a prefix cache of {:.1f} MiB can't hold one state of {:.1f} MiB: only the slot "
        "that read a prompt can go on from it",
        static_cast<double>(budget) / (1 << 20), static_cast<double>(p.cache_sizes.slot_bytes) / (1 << 20)));
  }
  if (p.cache_sizes.slot_bytes > 0) p.target_sizes.n_slots += p.cache_sizes.n_entries;
  p.target_sizes.n_pages += p.cache_sizes.n_pages;
  p.draft_sizes.n_pages += p.cache_sizes.n_draft_pages;
  p.memory.push_back({"prefix cache", p.cache_sizes.bytes()});
}

/// The plans of an engine, built anew wherever they are needed.
struct Plans {
  Plan target;
  std::optional<Plan> encode, draft;
};

Plans make_plans(EnginePlan& p) {
  Plans plans{p.model->plan(p.drafter ? &p.drafter->taps() : nullptr), std::nullopt, std::nullopt};
  if (p.drafter) {
    plans.encode = p.drafter->encode_plan();
    plans.draft = p.drafter->draft_plan();
  }
  return plans;
}

/// All of them, the target's first.
std::vector<const Plan*> list(const Plans& plans) {
  std::vector<const Plan*> all = {&plans.target};
  if (plans.encode) all.push_back(&*plans.encode);
  if (plans.draft) all.push_back(&*plans.draft);
  return all;
}

/// Every weight of the plans, once.
std::vector<const Weight*> all_weights(const Plans& plans) {
  std::vector<const Weight*> all;
  std::unordered_set<const Weight*> seen;
  for (const Plan* plan : list(plans)) {
    for (const Weight* w : plan->weights()) {
      if (seen.insert(w).second) all.push_back(w);
    }
  }
  return all;
}

std::vector<MemoryPool> measure(EnginePlan& p) {
  const Plans plans = make_plans(p);
  p.backend->place(list(plans));
  int64_t weights = 0;
  for (const Weight* w : all_weights(plans)) weights += p.backend->weight_bytes(*w);
  std::vector<MemoryPool> memory = {{"weights", weights},
                                    {fmt::format("state of {} x {} tokens", p.options.n_slots, p.options.n_ctx),
                                     bytes_of(p.model->states(), p.target_sizes)},
                                    {"scratch", place_values(plans.target, p.target_limits).bytes}};
  if (p.drafter) {
    memory.push_back({"drafter state", bytes_of(p.drafter->states(), p.draft_sizes)});
    memory.push_back({"taps", state_bytes(*p.drafter->taps().rows, p.tap_sizes)});
    memory.push_back({"drafter scratch", place_values(*plans.encode, p.encode_limits).bytes +
                                             place_values(*plans.draft, p.draft_limits).bytes});
  }
  return memory;
}

/// Bytes that all pools together may take; 0: unknown.
int64_t memory_limit(const EnginePlan& p) {
  return p.options.memory_limit > 0 ? p.options.memory_limit : p.backend->info().memory_bytes;
}

bool fits(const EnginePlan& p) { return memory_limit(p) <= 0 || p.memory_bytes() <= memory_limit(p); }

/// Divides a model that is too big for one device among all of its kind, where nothing else was asked for.
void spread(EnginePlan& p) {
  EngineOptions& o = p.options;
  if (fits(p) || o.memory_limit > 0 || o.backend.split != SplitMode::automatic || count_devices(o.device) < 2) return;
  o.backend.split = SplitMode::layer;
  p.backend = make_backend(o.device, o.backend);
  p.memory = measure(p);
}

void check_memory(const EnginePlan& p) {
  if (fits(p)) return;
  const int64_t limit = memory_limit(p);
  std::string table;
  for (const MemoryPool& pool : p.memory)
    table += fmt::format("\n  {:<32} {:>10.1f} MiB", pool.name, static_cast<double>(pool.bytes) / (1 << 20));
  fail(ErrorKind::out_of_memory,
       "{:.1f} MiB are needed, {:.1f} MiB are free on {}; lower --ctx-size, --parallel or --cache-ram{}",
       static_cast<double>(p.memory_bytes()) / (1 << 20), static_cast<double>(limit) / (1 << 20),
       p.backend->info().name, table);
}

const GgufFile& file_of(const EnginePlan& p, const Weight& weight) {
  return p.drafter && p.drafter->owns(&weight) ? p.drafter->file() : p.model->file();
}

void load_all(EnginePlan& p, const std::vector<const Weight*>& weights) {
  std::vector<StoredWeight> stored;
  for (const Weight* w : weights) stored.push_back({w, &file_of(p, *w)});
  load_weights(*p.backend, stored, p.options.on_progress);
}

}  // namespace

int64_t tap_ring_rows(const EngineOptions& options) { return std::max<int64_t>(kTapRing, 2 * (options.draft_max + 1)); }

int64_t EnginePlan::memory_bytes() const {
  int64_t bytes = 0;
  for (const MemoryPool& pool : memory) bytes += pool.bytes;
  return bytes;
}

EnginePlan plan_engine(const EngineOptions& options) {
  check_options(options);
  EnginePlan p;
  p.options = options;
  p.model = Model::open(options.model_path, options.w4a4);
  if (!options.drafter_path.empty()) p.drafter = Drafter::open(options.drafter_path, *p.model);
  p.backend = make_backend(options.device, options.backend);
  check_caches(p);
  fill_defaults(p.options, p.model->config(), p.drafter ? &p.drafter->config() : nullptr, p.warnings);
  if (p.drafter && !p.drafter->unread().empty()) {
    p.warnings.push_back(
        fmt::format("{}: tensors that this engine doesn't know ({}): drafts will be worse than they "
                    "could be, answers stay right",
                    options.drafter_path, fmt::join(p.drafter->unread(), ", ")));
  }
  size_pools(p);
  p.memory = measure(p);
  spread(p);
  size_cache(p, p.backend->info());
  return p;
}

Engine::Engine(EnginePlan plan) : plan_(std::move(plan)) {
  check_memory(plan_);
  const Plans plans = make_plans(plan_);
  load_all(plan_, all_weights(plans));
  Backend& backend = *plan_.backend;
  target_states_ = backend.make_states(plan_.model->states(), plan_.target_sizes);
  std::vector<StatePool*> target_pools = {target_states_.get()};
  if (plan_.drafter) {
    tap_states_ = backend.make_states({plan_.drafter->taps().rows}, plan_.tap_sizes);
    draft_states_ = backend.make_states(plan_.drafter->states(), plan_.draft_sizes);
    target_pools.push_back(tap_states_.get());
    StatePool* const draft_pools[] = {draft_states_.get(), tap_states_.get()};
    encode_ = backend.compile(*plans.encode, draft_pools, plan_.encode_limits);
    draft_ = backend.compile(*plans.draft, draft_pools, plan_.draft_limits);
    const auto n_scores =
        static_cast<size_t>(plan_.draft_limits.n_out * plans.draft->info(plans.draft->outputs()[0].value).width);
    draft_scores_.resize(n_scores);
    draft_candidates_.resize(n_scores);
  }
  target_ = backend.compile(plans.target, target_pools, plan_.target_limits);
  logits_output_ = plans.target.find_output("logits");
  next_output_ = plans.target.find_output("next");
}

Engine::~Engine() = default;

void Engine::run_target(const Batch& batch) { target_->wait(target_->submit(batch)); }
void Engine::run_target_tapped(const Batch& batch, int64_t n_blocks) {
  std::unique_ptr<Program>& program = shifted_[n_blocks];
  if (!program) {
    Taps taps = plan_.drafter->taps();
    for (int64_t& block : taps.layers) block = std::clamp<int64_t>(block + n_blocks, 1, config().n_layer);
    StatePool* const pools[] = {target_states_.get(), tap_states_.get()};
    program = plan_.backend->compile(plan_.model->plan(&taps), pools, {.n_tok = kPageTokens, .n_out = 1});
  }
  program->wait(program->submit(batch));
}
void Engine::run_encode(const Batch& batch) { encode_->wait(encode_->submit(batch)); }
void Engine::run_draft(const Batch& batch) { draft_->wait(draft_->submit(batch)); }
void Engine::read_logits(int64_t out_row, std::span<float> to) { target_->read(logits_output_, out_row, to); }
void Engine::read_next(int64_t out_row, std::span<int32_t> to) { target_->read(next_output_, out_row, to); }
void Engine::clear_slot(int32_t slot) { target_states_->clear_slot(slot); }

void Engine::read_draft(std::span<const Sequence> sequences, std::span<int32_t> ids, std::span<float> confidence) {
  if (plan_.drafter->config().version() == 2) {
    draft_->read(0, 0, ids);
    draft_->read(1, 0, confidence);
    return;
  }
  const size_t k = draft_scores_.size() / static_cast<size_t>(plan_.draft_limits.n_out);
  draft_->read(0, 0, std::span(draft_candidates_).first(ids.size() * k));
  draft_->read(1, 0, std::span(draft_scores_).first(ids.size() * k));
  size_t i = 0;
  const int64_t n_anchor = plan_.drafter->chained() ? 0 : 1;
  for (const Sequence& from : sequences) {
    for (int64_t draw = from.draw; draw < from.draw + from.n_tok - n_anchor; ++draw, ++i) {
      const std::span<float> scores = std::span(draft_scores_).subspan(i * k, k);
      for (size_t j = 0; j < k && from.temperature > 0; ++j) {
        scores[j] += from.temperature * static_cast<float>(gumbel(from.seed, draw, draft_candidates_[i * k + j]));
      }
      const auto best = std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (const float score : scores) total += std::exp(static_cast<double>(score) - *best);
      ids[i] = draft_candidates_[i * k + static_cast<size_t>(best - scores.begin())];
      confidence[i] = static_cast<float>(1 / total);
    }
  }
}

}  // namespace onebit
