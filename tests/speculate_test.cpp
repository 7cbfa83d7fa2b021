// Drafting as a whole: whatever is drafted and accepted, the caches are those of the plain text and every token has the
// target's distribution; and how lengths are chosen.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine/speculate.h"
#include "support/engine_run.h"
#include "support/target_distribution.h"

namespace onebit::test {
namespace {

// --- caches ----------------------------------------------------------------------------------------------------------

/// A slot run by hand: what the scheduler does for one answer, with drafts that the test chooses.
class HandRun {
 public:
  HandRun(const EngineOptions& options, std::vector<int32_t> prompt)
      : engine_(plan_engine(options)),
        pages_(engine_.target_sizes().n_pages, [](int32_t, int32_t) {}),
        draft_pages_(engine_.draft_sizes().n_pages, [](int32_t, int32_t) {}),
        session_(0, engine_.options().n_ctx, pages_, {&draft_pages_, engine_.drafter()->config().context_rows()}),
        speculator_(engine_) {
    engine_.clear_slot(0);
    Request request;
    request.prompt = std::move(prompt);
    generation_ =
        std::make_unique<Generation>(1, request, std::make_shared<Recorder>(), session_, engine_.config().n_vocab,
                                     engine_.options().n_ctx, 0, speculator_.new_drafting());
  }

  Generation& generation() { return *generation_; }
  Session& session() { return session_; }
  Engine& engine() { return engine_; }

  /// Reads the prompt row by row, as decoding would, and draws the first token.
  void read_prompt() {
    for (const int32_t token :
         std::vector<int32_t>(generation_->prompt_left().begin(), generation_->prompt_left().end())) {
      step({&token, 1});
      session_.keep({&token, 1});
      speculator_.feed().settle(session_);
      speculator_.feed().encode();
      generation_->prompt_advanced(1);
    }
    generation_->take(speculator_.sample(*generation_, 0));
  }

  /// One round on the anchor and these drafts.
  void round(const std::vector<int32_t>& drafts) {
    Drafting& drafting = generation_->drafting();
    drafting.tokens = drafts;
    drafting.source = drafts.empty() ? DraftSource::none : DraftSource::model;
    std::vector<int32_t> tokens = {generation_->anchor()};
    tokens.insert(tokens.end(), drafts.begin(), drafts.end());
    step(tokens);
    speculator_.accept(*generation_, 0);
    speculator_.feed().tap_answer(session_);
    speculator_.feed().encode();
  }

  /// The drafter's view: what it proposes behind the anchor, with all scores.
  std::vector<float> propose() {
    speculator_.feed().settle(session_);
    speculator_.feed().encode();
    const auto n = static_cast<int32_t>(engine_.drafter()->config().block_size);
    std::vector<int32_t> tokens(static_cast<size_t>(n), engine_.drafter()->config().mask_token), outputs;
    tokens[0] = generation_->anchor();
    for (int32_t i = 1; i < n; ++i) outputs.push_back(i);
    const Sequence rows = session_.draft_rows(0, n);
    engine_.run_draft({.tokens = tokens, .sequences = {&rows, 1}, .outputs = outputs});
    std::vector<int32_t> ids(outputs.size());
    std::vector<float> confidence(outputs.size());
    engine_.read_draft({&rows, 1}, ids, confidence);
    for (const int32_t id : ids) confidence.push_back(static_cast<float>(id));
    return confidence;
  }

  /// The recurrent state's bytes and the next logits, after a plain row on the anchor.
  std::pair<std::vector<uint8_t>, std::vector<float>> state() {
    round({});
    std::vector<float> logits(static_cast<size_t>(engine_.config().n_vocab));
    engine_.read_logits(0, logits);
    std::vector<uint8_t> bytes(static_cast<size_t>(engine_.cache_sizes().slot_bytes));
    if (!bytes.empty()) engine_.target_states().read_slot(0, bytes);
    return {bytes, logits};
  }

 private:
  void step(std::span<const int32_t> tokens) {
    const auto n = static_cast<int32_t>(tokens.size());
    const Sequence rows = session_.rows(0, n, n > 1 ? Phase::verify : Phase::decode);
    std::vector<int32_t> outputs(tokens.size()), taps;
    std::iota(outputs.begin(), outputs.end(), 0);
    speculator_.feed().place_taps(session_, rows, taps);
    engine_.run_target({.tokens = tokens, .sequences = {&rows, 1}, .outputs = outputs, .tap_rows = taps});
  }

  Engine engine_;
  PagePool pages_, draft_pages_;
  Session session_;
  Speculator speculator_;
  std::unique_ptr<Generation> generation_;
};

/// 1,000 rounds of random lengths and acceptance; now and then everything is rebuilt from the bare text, row by row.
void expect_caches_of_the_text(const TinyShape& shape, uint64_t seed) {
  const TinyModels models(shape);
  EngineOptions options = models.options(2);
  options.n_ctx = 8192;
  options.cache = CacheType::f32;
  const std::vector<int32_t> prompt = models.prompt(seed, 30);
  // The greedy text, so that drafts can be right.
  const std::vector<int32_t> text = run(options, greedy(prompt, 2700))->ids;
  HandRun run(options, prompt);
  run.read_prompt();
  Rng rng(seed);
  int64_t n_accepted = 0;
  for (int round = 1; round <= 1000; ++round) {
    const auto at = static_cast<size_t>(run.generation().n_generated());
    const size_t n_draft = rng.next() % static_cast<uint64_t>(shape.block), n_right = rng.next() % (n_draft + 1);
    std::vector<int32_t> drafts(text.begin() + static_cast<int64_t>(at),
                                text.begin() + static_cast<int64_t>(at + n_draft));
    if (n_right < n_draft) drafts[n_right] = (drafts[n_right] + 1) % static_cast<int32_t>(shape.n_vocab - 1);
    run.round(drafts);
    n_accepted += run.generation().n_generated() - static_cast<int64_t>(at) - 1;
    if (round % 7 == 0) run.propose();
    if (round != 10 && round != 100 && round != 1000) continue;
    std::vector<int32_t> so_far(run.generation().history().begin(), run.generation().history().end() - 1);
    HandRun anew(options, so_far);
    anew.read_prompt();
    ASSERT_EQ(anew.generation().anchor(), run.generation().anchor()) << "round " << round;
    ASSERT_EQ(anew.propose(), run.propose()) << "round " << round;
    ASSERT_EQ(anew.state(), run.state()) << "round " << round;
    ASSERT_EQ(anew.propose(), run.propose()) << "round " << round;
  }
  EXPECT_GT(n_accepted, 500);
}

TEST(Speculate, AnyAcceptanceLeavesTheCachesOfTheText) { expect_caches_of_the_text({}, 1); }

TEST(Speculate, AnyAcceptanceLeavesTheCachesOfTheTextInAWindow) {
  TinyShape shape;
  shape.window = 70;
  expect_caches_of_the_text(shape, 2);
}

/// Positions fed to a drafter with a window of 70 when 400 prompt tokens are read and so many are decoded without
/// drafts.
int64_t positions_fed(int64_t first_turn, int64_t n_plain) {
  TinyShape shape;
  shape.window = 70;
  const TinyModels models(shape);
  EngineOptions options = models.options(2);
  options.n_ctx = 1024;
  options.cache_bytes = first_turn > 0 ? 64 << 20 : 0;  // states are kept at the ends of turns
  Request request = greedy(std::vector<int32_t>(400, 7), n_plain);
  request.draft_max = 0;
  if (first_turn > 0) {
    request.prompt[static_cast<size_t>(first_turn) - 1] = 9;
    request.turn_ids = {9};
  }
  return run(options, request)->statistics.draft_fed;
}

TEST(DraftFeed, OnlyWhatADraftWillSeeIsFed) {
  EXPECT_EQ(positions_fed(0, 1), 400 - 320);                    // the page of 400 - 69 and what follows
  EXPECT_EQ(positions_fed(200, 1), (400 - 320) + (200 - 128));  // and the page of 200 - 64 up to the turn's end
  EXPECT_EQ(positions_fed(350, 1), 400 - 256);                  // where both meet
  EXPECT_EQ(positions_fed(0, 300), 400 - 320);                  // a long answer without drafts
}

TEST(Speculate, SequencesOfOneBatchDraftDifferentLengths) {
  const TinyModels models;
  std::vector<Request> requests;
  for (int32_t i = 0; i < 4; ++i) {
    requests.push_back(greedy(models.prompt(static_cast<uint64_t>(80 + i), 20 + 30 * i), 50));
    if (i > 0) requests.back().draft_max = 2 * i - 1;
    if (i == 2) requests.back().sampling.temperature = 0.8f;
  }
  EngineOptions options = models.options(2);
  std::vector<std::vector<int32_t>> alone;
  for (const Request& request : requests) alone.push_back(run(models.options(0), request)->ids);
  options.n_slots = 4;
  for (const bool adaptive : {false, true}) {
    options.draft_adaptive = adaptive;
    options.lookup = adaptive;
    Engine engine(plan_engine(options));
    Scheduler scheduler(engine);
    std::vector<std::shared_ptr<Recorder>> together;
    for (const Request& request : requests) {
      together.push_back(std::make_shared<Recorder>());
      scheduler.submit(request, together.back());
    }
    int64_t n_steps = 0, n_alone = 0;
    while (scheduler.step()) ++n_steps;
    for (const auto& recorder : together) {
      const auto& lengths = recorder->statistics.steps_by_length;
      n_alone += std::accumulate(lengths.begin(), lengths.end(), int64_t{1});  // its prompt's too
    }
    EXPECT_LT(n_steps, n_alone / 2);  // one batch for all of them
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(together[i]->ids, alone[i]) << i << " " << adaptive;
  }
}

// --- distributions ---------------------------------------------------------------------------------------------------

/// Where each drawn token lies in its own distribution: uniform in [0, 1) when drawn from it, whatever the contexts.
/// `p` has the probabilities of all tokens.
double place_in(const std::vector<double>& p, int32_t id, Rng& rng) {
  double below = 0;
  for (int32_t i = 0; i < id; ++i) below += p[static_cast<size_t>(i)];
  return std::min(below + rng.uniform() * p[static_cast<size_t>(id)], 1 - 1e-12);
}

double chi_square(const std::vector<double>& counts) {
  const double expected = std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(counts.size());
  double chi = 0;
  for (const double n : counts) chi += (n - expected) * (n - expected) / expected;
  return chi;
}

/// 100,000 tokens of drafted text: each from its own distribution, and independent of the one before it.
void expect_drawn_from_the_target(SamplingOptions sampling) {
  const TinyModels models;
  EngineOptions options = models.options(2);
  options.device = "cpu";
  options.backend.n_threads = 1;
  Engine engine(plan_engine(options));
  Scheduler scheduler(engine);
  const auto n_vocab = static_cast<size_t>(engine.config().n_vocab);
  sampling.n_logprobs = static_cast<int32_t>(n_vocab);
  std::vector<double> logprobs(n_vocab), places(20), pairs(25);
  Rng rng(9);
  int64_t n = 0, n_drafted = 0, n_accepted = 0;
  for (uint64_t seed = 1; n < 100000; ++seed) {
    Request request = greedy(models.prompt(seed, 12), 480);
    request.sampling = sampling;
    request.sampling.seed = seed;
    const auto answer = run(scheduler, request);
    double last = -1;
    std::vector<int32_t> history = request.prompt;
    for (const TokenEvent& event : answer->events) {
      for (const TokenLogprob& top : event.top) logprobs[static_cast<size_t>(top.id)] = top.logprob;
      const double u = place_in(target_distribution(logprobs, sampling, history), event.id, rng);
      history.push_back(event.id);
      ++places[static_cast<size_t>(u * 20)];
      if (last >= 0) ++pairs[static_cast<size_t>(last * 5) * 5 + static_cast<size_t>(u * 5)];
      last = u;
      ++n;
    }
    n_drafted += answer->statistics.draft_n;
    n_accepted += answer->statistics.draft_n_accepted;
  }
  EXPECT_LT(chi_square(places), 50);  // 19 degrees of freedom: 50 is exceeded once in 7,000 times
  EXPECT_LT(chi_square(pairs), 58);   // 24 degrees of freedom, likewise
  EXPECT_GT(n_accepted, n_drafted / 50);
}

TEST(SpeculateDistribution, Sampled) { expect_drawn_from_the_target(sampled()); }

TEST(SpeculateDistribution, Truncated) { expect_drawn_from_the_target(truncated()); }

TEST(SpeculateDistribution, BiasedMaskedAndPenalised) { expect_drawn_from_the_target(biased_masked_and_penalised()); }

TEST(SpeculateDistribution, GreedyTakesTheMostLikely) {
  const TinyModels models;
  EngineOptions options = models.options(2);
  options.device = "cpu";
  options.backend.n_threads = 1;
  Engine engine(plan_engine(options));
  Scheduler scheduler(engine);
  int64_t n = 0, n_accepted = 0;
  for (uint64_t seed = 1; n < 100000; ++seed) {
    Request request = greedy(models.prompt(seed, 12), 480);
    request.sampling.n_logprobs = 1;
    const auto answer = run(scheduler, request);
    for (const TokenEvent& event : answer->events) ASSERT_EQ(event.id, event.top[0].id) << "prompt " << seed;
    n += answer->statistics.predicted_n;
    n_accepted += answer->statistics.draft_n_accepted;
  }
  EXPECT_GT(n_accepted, 1000);
}

// --- the choice of lengths -------------------------------------------------------------------------------------------

std::vector<double> powers(double rate, int n) {
  std::vector<double> chances;
  for (int i = 1; i <= n; ++i) chances.push_back(std::pow(rate, i));
  return chances;
}

TEST(DraftChoice, MostTokensAMillisecond) {
  const CostCurve target({{1, 1.0}, {4, 1.3}, {16, 4.9}});  // 0.1 a row up to four, then 0.3
  const StepBase one{1, 0};
  const auto pass = [](std::span<const DraftOffer> offers) { return offers[0].n_taken > 0 ? 0.5 : 0.0; };
  const auto chosen = [&](double rate) {
    const std::vector<double> chances = powers(rate, 15);
    DraftOffer offer{chances, 0};
    const double speed = choose_drafts({&offer, 1}, one, target, pass, 1);
    EXPECT_GE(speed, 1);
    double best = 1;
    int64_t n_best = 0;
    double expected = 1;
    for (int64_t n = 1; n <= 15; ++n) {
      expected += chances[static_cast<size_t>(n - 1)];
      const double value = expected / (target.at(static_cast<double>(1 + n)) + 0.5);
      if (value > best) best = value, n_best = n;
    }
    EXPECT_EQ(offer.n_taken, n_best);
    EXPECT_DOUBLE_EQ(speed, best);
    return offer.n_taken;
  };
  EXPECT_EQ(chosen(0.1), 0);
  EXPECT_EQ(chosen(0.6), 3);
  EXPECT_EQ(chosen(0.99), 15);
}

TEST(DraftChoice, RowsGoToWhoeverIsLikelier) {
  const CostCurve target({{1, 1.0}, {40, 8.8}});  // 0.2 a row
  const std::vector<double> sure = {0.95, 0.9, 0.85}, unsure = {0.5, 0.2, 0.1};
  std::vector<DraftOffer> offers = {{unsure, 0}, {sure, 0}};
  choose_rows(offers, {2, 0}, target, 2.0);  // a row must bring 0.4 tokens
  EXPECT_EQ(offers[0].n_taken, 1);
  EXPECT_EQ(offers[1].n_taken, 3);
}

TEST(DraftChoice, BeliefFollowsWhatIsAccepted) {
  RateWeights flat;
  flat.fill(1);
  Acceptance belief(flat);
  const double before = belief.survival(4);
  for (int i = 0; i < 5; ++i) belief.learn(6, 6, {});
  EXPECT_GT(belief.survival(4), 0.75);
  for (int i = 0; i < 5; ++i) belief.learn(4, 0, {});
  EXPECT_LT(belief.survival(1), 0.35);
  EXPECT_LT(belief.survival(4), before);
  Acceptance witness(flat);
  const std::vector<float> confident(5, 0.97f);
  for (int i = 0; i < 3; ++i) witness.learn(0, 0, confident);
  EXPECT_GT(witness.survival(4), before);
}

TEST(DraftChoice, TheAccountEndsWhatDoesNotPay) {
  DraftAccount account;
  account.start(0);
  double lost = 0;
  int64_t n_plain = 0;
  for (int i = 0; i < 1000; ++i) {
    if (account.allows(false)) {
      account.round(0, 0.5);
      lost += 0.5;
    } else {
      account.plain_step();
      ++n_plain;
    }
  }
  EXPECT_LT(lost, 0.03 * static_cast<double>(n_plain) + 2);
  EXPECT_GT(lost, 5);  // it is still tried now and then
}

TEST(StepCosts, NoiseDoesNotFall) {
  const CostCurve curve({{1, 1.0}, {2, 3.0}, {3, 1.0}, {4, 5.0}});
  EXPECT_DOUBLE_EQ(curve.at(1), 1);
  EXPECT_DOUBLE_EQ(curve.at(2), 2);
  EXPECT_DOUBLE_EQ(curve.at(3), 2);
  EXPECT_DOUBLE_EQ(curve.at(3.5), 3.5);
  EXPECT_DOUBLE_EQ(curve.at(6), 11);
}

TEST(StepCosts, ABusyMachineChangesTheSpeedNotTheShape) {
  StepCosts costs;
  costs.target = CostCurve({{1, 1.0}, {8, 2.0}});
  for (int i = 0; i < 200; ++i) costs.observe_target(1 + 7 * (i % 2), i % 2 ? 4.0 : 2.0);
  EXPECT_GT(costs.speed, 1.2);
  EXPECT_NEAR(costs.target.at(8) / costs.target.at(1), 2, 0.15);
  for (int i = 0; i < 600; ++i) costs.observe_target(1 + 7 * (i % 2), i % 2 ? 8.0 : 2.0);
  EXPECT_GT(costs.target.at(8) / costs.target.at(1), 3);
}

TEST(StepCosts, ABusyMomentWhileDraftingIsNotTheCostOfDrafting) {
  StepCosts costs;
  costs.target = CostCurve({{1, 1.0}, {8, 2.0}});
  for (int i = 0; i < 40; ++i) costs.observe_target(8, 4.0);  // half as fast for a while, all of it drafts
  for (int i = 0; i < 40; ++i) costs.observe_target(1, 1.0);  // and plain steps once that is over
  EXPECT_LT(costs.target.at(8) / costs.target.at(1), 2.4);
}

TEST(StepCosts, InterruptedPassesLeaveTheShape) {
  StepCosts costs;
  costs.target = CostCurve({{1, 1.0}, {8, 2.0}});
  for (int i = 0; i < 5000; ++i) costs.observe_target(1, i % 10 == 0 ? 3.0 : 1.0);  // plain steps alone
  EXPECT_NEAR(costs.target.at(8) / costs.target.at(1), 2, 0.2);
}

TEST(Lookup, FindsWhatFollowedTheSameWords) {
  Lookup lookup;
  std::vector<int32_t> text = {1, 2, 3, 4, 5, 6, 7, 1, 2, 3};
  EXPECT_TRUE(lookup.propose(text, 3).empty());
  text.push_back(4);
  const auto found = lookup.propose(text, 3);
  EXPECT_EQ(std::vector<int32_t>(found.begin(), found.end()), (std::vector<int32_t>{5, 6, 7}));
  const std::vector<int32_t> loop = {8, 9, 8, 9, 8, 9, 8, 9};
  Lookup other;
  const auto round = other.propose(loop, 5);
  EXPECT_EQ(std::vector<int32_t>(round.begin(), round.end()), (std::vector<int32_t>{8, 9, 8, 9, 8}));
}

}  // namespace
}  // namespace onebit::test
