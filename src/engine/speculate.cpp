#include "engine/speculate.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "engine/measure_costs.h"

namespace onebit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMargin = 0.95;   // confident drafts do better than the average that lengths are chosen by
constexpr int64_t kProbe = 2;      // tokens drafted to see whether drafting pays again
constexpr float kSurest = 0.995f;  // no draft is believed more than that
constexpr double kLearned = 0.1;   // what one answer counts in what the next ones start with
constexpr double kLeastWeight = 0.03;
constexpr RateWeights kModelPrior = {0.14, 0.14, 0.14, 0.14, 0.14, 0.15, 0.15};
constexpr RateWeights kLookupPrior = {0.35, 0.25, 0.16, 0.09, 0.06, 0.05, 0.04};

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

Speculator::Speculator(Engine& engine) : engine_(engine), feed_(engine), rows_(engine), model_prior_(kModelPrior) {
  if (engine.options().costs) costs_ = *engine.options().costs;
  const PlanLimits& limits = engine.target_limits();
  const auto n_slots = static_cast<size_t>(engine.options().n_slots);
  const auto n_out = static_cast<size_t>(limits.n_out);
  logits_.resize(static_cast<size_t>(engine.config().n_vocab));
  tokens_.reserve(static_cast<size_t>(limits.n_tok));
  outputs_.reserve(n_out);
  source_rows_.reserve(n_slots), own_rows_.reserve(n_slots);
  ids_.resize(n_out);
  confidence_.resize(n_out);
  kept_.reserve(n_out);
  wishes_.reserve(n_slots), offers_.reserve(n_slots), offered_.reserve(n_slots);
  sequences_.reserve(n_slots);
  lengths_.reserve(n_slots);
}

void Speculator::measure(Session& session) { costs_ = measure_costs(engine_, session, feed_); }

Drafting Speculator::new_drafting() const { return {model_prior_, kLookupPrior}; }

// --- costs -------------------------------------------------------------------------------------------------------

/// Of the lengths that the offers have taken, those that the drafter must work for.
double Speculator::draft_ms(std::span<const DraftOffer> offers) const {
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < offers.size(); ++i) {
    if (offered_[i]->generation->drafting().source == DraftSource::model) lengths.push_back(offers[i].n_taken);
  }
  return draft_pass_ms(lengths);
}

/// Drafting so many tokens for each sequence and feeding `n_waiting` rows before, at least what a round accepts.
double Speculator::draft_pass_ms(std::span<const int64_t> lengths, int64_t n_waiting) const {
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  if (longest == 0) return 0;
  int64_t n_rows = 0, n_sequences = 0;
  for (const int64_t n : lengths) {
    n_rows += n > 0 ? n + 1 : 0;
    n_sequences += n > 0;
  }
  const double feeding = costs_.encode.at(static_cast<double>(std::max(2 * n_sequences, n_waiting)));
  if (engine_.drafter()->chained()) return costs_.draft.at(1) * static_cast<double>(longest) + feeding;
  return costs_.draft.at(static_cast<double>(n_rows)) + feeding;
}

// --- drafting ----------------------------------------------------------------------------------------------------

int64_t Speculator::draft_limit(const Generation& generation) const {
  const int64_t most = engine_.options().draft_max;
  const int64_t wanted = generation.request().draft_max.value_or(engine_.options().draft_max);
  return std::clamp<int64_t>(std::min(wanted, most), 0, std::max<int64_t>(generation.n_left() - 1, 0));
}

bool Speculator::adaptive(const Generation& generation) const {
  const Request& request = generation.request();
  const bool wanted = request.draft_adaptive.value_or(!request.draft_max && engine_.options().draft_adaptive);
  return wanted && costs_.known();
}

void Speculator::draft(std::span<Generation* const> answers, int64_t n_prompt) {
  const StepBase bare{static_cast<int64_t>(answers.size()), n_prompt};
  base_ = bare;
  make_wishes(answers);
  if (wishes_.empty()) return;
  choose_lengths();
  n_waiting_ = 0;
  run_drafter();
  take_drafts();
  charge(bare);
}

void Speculator::make_wishes(std::span<Generation* const> answers) {
  wishes_.clear();
  for (Generation* generation : answers) {
    Drafting& drafting = generation->drafting();
    drafting.tokens.clear();
    drafting.untested.clear();
    drafting.source = DraftSource::none;
    drafting.n_extra = 0;
    const int64_t limit = draft_limit(*generation);
    if (limit == 0) continue;
    const bool chosen = adaptive(*generation);
    if (chosen && generation->n_generated() == 1) {
      const double prompt_ms =
          costs_.fixed ? costs_.target.at(static_cast<double>(generation->n_read())) : generation->prompt_ms();
      drafting.account.start(prompt_ms / (costs_.target.at(1) * costs_.speed));
    }
    if (!chosen && !engine_.drafter()) continue;
    wishes_.push_back({generation, limit, chosen, 0, 0, {}});
  }
}

/// How much every answer asks of the drafter, or takes from its own text instead.
void Speculator::choose_lengths() {
  offers_.clear(), offered_.clear();
  rate_ = 0;
  for (Wish& wish : wishes_) {
    Drafting& drafting = wish.generation->drafting();
    if (!wish.adaptive) {
      wish.n = wish.limit;
      drafting.source = DraftSource::model;
      base_.n_prompt += wish.n;
      continue;
    }
    if (!drafting.account.allows(true)) continue;
    if (engine_.drafter()) {
      drafting.source = DraftSource::model;
      for (int64_t n = 1; n <= wish.limit; ++n) wish.chances.push_back(drafting.model.survival(n));
    }
    use_lookup(wish);
    limit_loss(wish);
    offered_.push_back(&wish);
    offers_.push_back({wish.chances, 0});
  }
  const auto ms = [&](std::span<const DraftOffer> offers) { return draft_ms(offers); };
  if (base_.n_answers > 0 && !offers_.empty()) rate_ = choose_drafts(offers_, base_, costs_.target, ms, kMargin);
  for (size_t i = 0; i < offers_.size(); ++i) {
    Wish& wish = *offered_[i];
    Drafting& drafting = wish.generation->drafting();
    wish.n = offers_[i].n_taken;
    if (wish.n == 0 && drafting.source == DraftSource::model && drafting.account.allows(false)) {
      wish.n = std::min(kProbe, wish.limit);
    }
    if (wish.n == 0) drafting.source = DraftSource::none;
  }
}

/// No round may lose more than the account has, should all its drafts be wrong.
void Speculator::limit_loss(Wish& wish) const {
  const Drafting& drafting = wish.generation->drafting();
  const auto width = static_cast<double>(base_.n_answers + base_.n_prompt);
  const double plain = costs_.target.at(width) / static_cast<double>(base_.n_answers);
  auto n = static_cast<int64_t>(wish.chances.size());
  for (; n > 1; --n) {
    double ms = costs_.target.at(width + static_cast<double>(n)) - costs_.target.at(width);
    if (drafting.source == DraftSource::model) ms += draft_pass_ms({&n, 1});
    if (ms <= plain * drafting.account.most_loss()) break;
  }
  wish.chances.resize(static_cast<size_t>(n));
}

/// Drafts from the text so far when that promises more than the drafter does.
void Speculator::use_lookup(Wish& wish) {
  Drafting& drafting = wish.generation->drafting();
  if (!engine_.options().lookup) return;
  const std::span<const int32_t> found =
      drafting.index.propose(wish.generation->history(), std::min(wish.limit, drafting.lookup_length));
  if (found.empty()) return;
  std::vector<double> chances;
  for (size_t n = 1; n <= found.size(); ++n) chances.push_back(drafting.lookup.survival(static_cast<int64_t>(n)));
  const StepBase alone{1, 0};
  DraftOffer theirs{chances, 0}, ours{wish.chances, 0};
  const auto free = [](std::span<const DraftOffer>) { return 0.0; };
  const auto paid = [&](std::span<const DraftOffer> offers) { return draft_pass_ms({&offers[0].n_taken, 1}); };
  const double by_text = choose_drafts({&theirs, 1}, alone, costs_.target, free, 1);
  const double by_model = choose_drafts({&ours, 1}, alone, costs_.target, paid, 1);
  if (theirs.n_taken == 0 || by_text < by_model) return;
  drafting.source = DraftSource::lookup;
  drafting.tokens.assign(found.begin(), found.end());
  wish.chances = std::move(chances);
}

void Speculator::run_drafter() {
  bool any = false;
  for (Wish& wish : wishes_) {
    if (wish.generation->drafting().source != DraftSource::model) wish.n = std::min<int64_t>(wish.n, 0);
    if (wish.n == 0) continue;
    any = true;
    n_waiting_ += feed_.n_waiting(wish.generation->session());
    feed_.settle(wish.generation->session());
    wish.generation->count_draft_pass();
  }
  if (!any) return;
  feed_.encode();
  engine_.drafter()->chained() ? draft_chains() : draft_blocks();
}

/// One pass for everybody. A fixed length gets its whole block, since a block's rows see each other; a chosen one just
/// the rows it pays for.
void Speculator::draft_blocks() {
  sequences_.clear(), tokens_.clear(), outputs_.clear();
  for (Wish& wish : wishes_) {
    if (wish.n == 0) continue;
    Generation& generation = *wish.generation;
    const auto row = static_cast<int32_t>(tokens_.size());
    const int32_t most = engine_.options().draft_max;
    const int32_t fixed = std::min(most, generation.request().draft_max.value_or(most));
    const auto n_rows = static_cast<int32_t>((wish.adaptive ? wish.n : fixed) + 1);
    Sequence rows = generation.session().draft_rows(row, n_rows);
    rows.temperature = generation.sampler().draft_temperature();
    rows.seed = generation.request().sampling.seed;
    rows.draw = generation.n_generated();
    sequences_.push_back(rows);
    wish.first = outputs_.size();
    tokens_.push_back(generation.anchor());
    tokens_.resize(tokens_.size() + static_cast<size_t>(n_rows) - 1, engine_.drafter()->config().mask_token);
    for (int32_t i = 1; i < n_rows; ++i) outputs_.push_back(row + i);
  }
  const auto start = Clock::now();
  engine_.run_draft({.tokens = tokens_, .sequences = sequences_, .outputs = outputs_});
  costs_.observe_draft(static_cast<int64_t>(tokens_.size()), ms_since(start));
  engine_.read_draft(sequences_, std::span(ids_).first(outputs_.size()), std::span(confidence_).first(outputs_.size()));
}

/// A pass for every token, of everybody who wants as many.
void Speculator::draft_chains() {
  size_t first = 0;
  int64_t longest = 0;
  for (Wish& wish : wishes_) {
    wish.first = first;
    first += static_cast<size_t>(wish.n);
    longest = std::max(longest, wish.n);
  }
  for (int64_t step = 0; step < longest; ++step) chain_step(step);
}

void Speculator::chain_step(int64_t step) {
  sequences_.clear(), tokens_.clear(), outputs_.clear(), source_rows_.clear(), own_rows_.clear();
  for (const Wish& wish : wishes_) {
    if (wish.n <= step) continue;
    Generation& generation = *wish.generation;
    Session& session = generation.session();
    const auto row = static_cast<int32_t>(tokens_.size());
    Sequence rows = session.encode_rows(row, 1, session.n_past() + step);
    rows.temperature = generation.sampler().draft_temperature();
    rows.seed = generation.request().sampling.seed;
    rows.draw = generation.n_generated() + step;
    sequences_.push_back(rows);
    tokens_.push_back(step == 0 ? generation.anchor() : ids_[wish.first + static_cast<size_t>(step) - 1]);
    outputs_.push_back(row);
    source_rows_.push_back(step == 0 ? feed_.hidden_before(session, session.n_past()) : feed_.chain_row(session));
    own_rows_.push_back(feed_.chain_row(session));
  }
  if (sequences_.empty()) return;
  const auto start = Clock::now();
  engine_.run_draft({.tokens = tokens_,
                     .sequences = sequences_,
                     .outputs = outputs_,
                     .source_rows = source_rows_,
                     .tap_rows = own_rows_});
  costs_.observe_draft(1, ms_since(start));
  std::vector<int32_t> ids(outputs_.size());
  std::vector<float> confidence(outputs_.size());
  engine_.read_draft(sequences_, ids, confidence);
  size_t i = 0;
  for (const Wish& wish : wishes_) {
    if (wish.n <= step) continue;
    ids_[wish.first + static_cast<size_t>(step)] = ids[i];
    confidence_[wish.first + static_cast<size_t>(step)] = confidence[i++];
  }
}

/// From proposals to drafts: cut by confidence, then to the rows that are worth verifying.
void Speculator::take_drafts() {
  offers_.clear(), offered_.clear();
  for (Wish& wish : wishes_) {
    Generation& generation = *wish.generation;
    Drafting& drafting = generation.drafting();
    if (wish.n == 0) continue;
    if (drafting.source == DraftSource::model) {
      const float p_min = generation.request().draft_p_min.value_or(engine_.options().draft_p_min);
      const std::span confidence = std::span(confidence_).subspan(wish.first, static_cast<size_t>(wish.n));
      const auto n = std::find_if(confidence.begin(), confidence.end(), [&](float c) { return c < p_min; });
      const auto ids = ids_.begin() + static_cast<int64_t>(wish.first);
      drafting.tokens.assign(ids, ids + (n - confidence.begin()));
      drafting.untested.assign(confidence.begin(), confidence.end());
      wish.chances.clear();
      double chance = 1;
      for (size_t i = 0; i < drafting.tokens.size(); ++i) {
        wish.chances.push_back(chance *= std::min(confidence[i], kSurest));
      }
    }
    if (!wish.adaptive) continue;
    offered_.push_back(&wish);
    offers_.push_back({wish.chances, 0});
  }
  if (offers_.empty()) return;
  choose_rows(offers_, base_, costs_.target, rate_);
  for (size_t i = 0; i < offers_.size(); ++i) {
    offered_[i]->generation->drafting().tokens.resize(static_cast<size_t>(offers_[i].n_taken));
  }
}

/// What the round costs each answer beyond a plain step; `bare`: the step without any drafts.
void Speculator::charge(const StepBase& bare) {
  if (!costs_.known()) return;
  int64_t n_drafted = 0, n_proposed = 0;
  lengths_.clear();
  for (const Wish& wish : wishes_) {
    n_drafted += static_cast<int64_t>(wish.generation->drafting().tokens.size());
    if (wish.generation->drafting().source == DraftSource::model) lengths_.push_back(wish.n);
  }
  for (const int64_t n : lengths_) n_proposed += n;
  const auto width = static_cast<double>(bare.n_answers + bare.n_prompt);
  const double plain = costs_.target.at(width) / static_cast<double>(bare.n_answers);
  const double verify = costs_.target.at(width + static_cast<double>(n_drafted)) - costs_.target.at(width);
  const double drafting_ms = draft_pass_ms(lengths_, n_waiting_);
  for (Wish& wish : wishes_) {
    Drafting& drafting = wish.generation->drafting();
    double ms = 0;
    if (n_drafted > 0) ms += verify * static_cast<double>(drafting.tokens.size()) / static_cast<double>(n_drafted);
    if (drafting.source == DraftSource::model && n_proposed > 0) {
      ms += drafting_ms * static_cast<double>(wish.n) / static_cast<double>(n_proposed);
    }
    drafting.n_extra = ms / plain;
  }
}

// --- verifying ---------------------------------------------------------------------------------------------------

TokenEvent Speculator::sample(Generation& generation, int64_t out_row) {
  return draw_token(generation, rows_, out_row, logits_);
}

int64_t Speculator::accept(Generation& generation, int64_t out_row) {
  verify_draft(generation, rows_, out_row, logits_, kept_);
  generation.session().keep(kept_);
  return static_cast<int64_t>(kept_.size());
}

void Speculator::finish(Generation& generation) {
  const auto blend = [](RateWeights& prior, const RateWeights& last) {
    for (size_t i = 0; i < prior.size(); ++i) {
      prior[i] = std::max((1 - kLearned) * prior[i] + kLearned * last[i], kLeastWeight);
    }
  };
  if (generation.n_generated() < 8 || !adaptive(generation)) return;
  const Drafting& drafting = generation.drafting();
  blend(model_prior_, drafting.model.weights());  // what a text repeats says nothing about the next one
}

}  // namespace onebit
