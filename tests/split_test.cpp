// A model divided among several devices computes what one device computes, to the last bit: every architecture,
// prompts, single tokens, verified drafts, taps, drafters, slots, pages.
#include "backend/split/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "convert/convert.h"
#include "plan/layout.h"
#include "plan/shard.h"
#include "support/engine_run.h"
#include "support/expect_error.h"
#include "support/runner.h"
#include "support/tiny_hybrid.h"

namespace onebit::test {
namespace {

std::unique_ptr<Backend> devices(const std::string& names, std::vector<double> shares = {}) {
  return make_backend(names, {.n_threads = 1, .isa = "portable", .shares = std::move(shares)});
}

/// Devices that work on every layer together.
std::unique_ptr<Backend> tensor_devices(const std::string& names, int n_threads = 1) {
  return make_backend(names, {.n_threads = n_threads, .isa = "portable", .split = SplitMode::tensor});
}

using Rows = std::vector<std::vector<float>>;

/// The largest difference over the largest value, NaN and missing values being infinitely far.
double distance(const Rows& expected, const Rows& actual) {
  if (expected.size() != actual.size()) return INFINITY;
  double worst = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].size() != actual[i].size()) return INFINITY;
    for (size_t j = 0; j < expected[i].size(); ++j) {
      const double difference = std::abs(static_cast<double>(expected[i][j]) - actual[i][j]);
      worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
      largest = std::max(largest, std::abs(static_cast<double>(expected[i][j])));
    }
  }
  return worst / largest;
}

/// GPUs of a kind here; 0 where it is not built in.
int count_gpus(const std::string& name) {
  try {
    return count_devices(name);
  } catch (const Error&) {
    return 0;
  }
}

/// The same device twice, and two of them, of every kind of GPU that is here: what it is called alone, and together.
std::vector<std::pair<std::string, std::string>> gpus() {
  std::vector<std::pair<std::string, std::string>> all;
  for (const std::string name : {"cuda", "rocm"}) {
    const int n = count_gpus(name);
    if (n > 0) all.emplace_back(name, name + "0," + name + "0");
    if (n > 1) all.emplace_back(name + "1", name + "0," + name + "1");
    if (n > 1) all.emplace_back(name, name + "1," + name + "0," + name + "1");
  }
  return all;
}

/// Devices that have a step of the plan.
int count_used(const Plan& plan, std::span<const double> shares) {
  const Plan* const plans[] = {&plan};
  int n = 0;
  for (const PlanPart& part : Layout(plans, shares).divide(plan).parts) n += part.plan.steps().empty() ? 0 : 1;
  return n;
}

class SplitModel : public testing::TestWithParam<std::string> {
 protected:
  SplitModel() {
    ConvertOptions options;
    options.in = ONEBIT_SOURCE_DIR "/tests/golden/tiny/" + GetParam();
    options.out = path_ = dir_.file("model.gguf");
    options.type = BlockType::f32;
    convert(options);
  }
  /// Logits of a prompt, of single tokens and of drafts of which some are kept; then hidden states of all layers.
  Rows everything(std::unique_ptr<Backend> backend) {
    Runner runner(path_, std::move(backend), true);
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 80; ++i) tokens.push_back((7 * i + 3) % static_cast<int32_t>(runner.n_vocab()));
    const std::span<const int32_t> all(tokens);
    Rows results;
    results.push_back(runner.run(all.first(67), 0, Phase::prompt));
    for (const int32_t row : {0, 40, 66}) results.push_back(runner.taps(row));
    results.push_back(runner.run(all.subspan(67, 1), 67, Phase::decode));
    results.push_back(runner.run(all.subspan(68, 5), 68, Phase::verify));
    results.push_back(runner.run(all.subspan(71, 4), 71, Phase::verify, 3));
    results.push_back(runner.run(all.subspan(72, 8), 72, Phase::prompt, 1));
    results.push_back(runner.taps(7));
    return results;
  }

  TempDir dir_;
  std::string path_;
};

TEST_P(SplitModel, GivesTheSameBits) {
  const auto on_ref = everything(devices("ref")), on_cpu = everything(devices("cpu"));
  EXPECT_EQ(everything(devices("ref,ref")), on_ref);
  EXPECT_EQ(everything(devices("ref,ref,ref")), on_ref);
  EXPECT_EQ(everything(devices("ref,ref,ref", {1, 0, 5})), on_ref);
  EXPECT_EQ(everything(devices("cpu,cpu", {3, 1})), on_cpu);
  EXPECT_EQ(everything(devices("cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu")), on_cpu);  // more than there are layers
  for (const auto& [one, several] : gpus())
    EXPECT_EQ(everything(devices(several)), everything(devices(one))) << several;
  EXPECT_NE(everything(devices("cpu,ref")), everything(devices("ref,cpu"))) << "the order of devices shows nowhere";
}

/// Sums over heads and columns are made in another order, and nothing else differs.
TEST_P(SplitModel, IsTheSameWithAPartOfEveryLayerOnEachDevice) {
  constexpr double kReordered = 1e-5;
  const auto on_ref = everything(devices("ref")), on_cpu = everything(devices("cpu"));
  const auto two = everything(tensor_devices("ref,ref"));
  EXPECT_LT(distance(on_ref, two), kReordered);
  EXPECT_NE(two, on_ref) << "nothing was divided";
  EXPECT_EQ(everything(tensor_devices("ref,ref")), two) << "who comes first shows";
  EXPECT_LT(distance(on_cpu, everything(tensor_devices("cpu,cpu"))), kReordered);
  EXPECT_LT(distance(on_cpu, everything(tensor_devices("cpu,cpu", 2))), kReordered);
  for (const char* name : {"cuda", "rocm"}) {
    if (count_gpus(name) < 2) continue;
    EXPECT_LT(distance(everything(devices(name)), everything(tensor_devices(name))), 1e-4) << name;
  }
  try {
    tensor_devices("ref,cpu");
    ADD_FAILURE() << "devices of different kinds sum up nothing";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::refused);
  }
}

TEST_P(SplitModel, IsDividedByBytesBetweenLayers) {
  const std::unique_ptr<Model> model = Model::open(path_, {});
  const Plan plan = model->plan(nullptr);
  const std::vector<double> halves = {1, 1}, most_last = {1, 9};
  EXPECT_EQ(count_used(plan, halves), 2);
  const Plan* const plans[] = {&plan};
  for (const std::vector<double>& shares : {halves, most_last}) {
    const Layout layout(plans, shares);
    int64_t first = 0, all = 0, largest = 0;
    for (const Weight* weight : plan.weights()) {
      const auto bytes = static_cast<int64_t>(weight->data.size());
      all += bytes;
      largest = std::max(largest, bytes);
      if (layout.holders(*weight).contains(0)) first += bytes;
    }
    const double wanted = shares[0] / (shares[0] + shares[1]) * static_cast<double>(all);
    // Half a layer either way; a layer of these is at most a dozen matrices as big as its largest.
    EXPECT_NEAR(static_cast<double>(first), wanted, 6.0 * static_cast<double>(largest));
    const DividedPlan divided = layout.divide(plan);
    ASSERT_EQ(divided.parts[1].plan.entries().size(), 1u) << "one value goes from device to device";
    EXPECT_EQ(plan.info(divided.parts[1].plan.entries()[0]).width, model->config().n_embd);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SplitModel,
                         testing::Values("qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "llama"),
                         [](const auto& tested) { return tested.param; });

/// Steps of the whole plan appear once, in their order; quantised rows stay on their device wherever the cut falls.
TEST(Split, KeepsEveryStepAndNeverMovesQuantisedRows) {
  const TinyHybrid model;
  const Plan* const plans[] = {&model.plan()};
  for (double share = 0; share <= 1; share += 0.02) {
    const std::vector<double> shares = {share, 1 - share, 0.3};
    const DividedPlan divided = Layout(plans, shares).divide(model.plan());
    size_t n = 0;
    for (const PlanPart& part : divided.parts) {
      n += part.plan.steps().size();
      for (Value v : part.plan.entries()) EXPECT_EQ(part.plan.info(v).type, Dtype::f32);
      for (size_t e = 0; e < part.sources.size(); ++e) EXPECT_LT(part.sources[e].device, &part - divided.parts.data());
    }
    EXPECT_EQ(n, model.plan().steps().size());
  }
}

/// Between a norm and the product that follows it only one value is alive, but what is read behind the cut are codes.
TEST(Split, QuantisesWhereTheProductIs) {
  TestWeight table, first, second;
  Rng rng(5);
  set_floats(table, "table", {8, 64}, random_values(rng, 8 * 64, 1));
  set_random(first, rng, "first", BlockType::q4_0, {64, 64}, Codes::any);
  set_random(second, rng, "second", BlockType::q4_0, {64, 64}, Codes::any);
  Plan plan("chain");
  const Value x = plan.matmul(plan.quantize(plan.embed(table.weight), {}), first.weight);
  plan.output("y", plan.matmul(plan.quantize(x, {}), second.weight));
  const auto run = [&](std::unique_ptr<Backend> backend) {
    const Plan* const plans[] = {&plan};
    backend->place(plans);
    for (const Weight* weight : plan.weights()) backend->load(*weight);
    const auto program = backend->compile(plan, {}, {4, 4});
    const std::vector<int32_t> tokens = {3, 1, 7};
    const Sequence sequence{0, 3};
    program->wait(program->submit({.tokens = tokens, .sequences = {&sequence, 1}}));
    std::vector<float> y(3 * 64);
    program->read(0, 0, y);
    return y;
  };
  const std::vector<float> expected = run(devices("ref"));
  for (const double share : {0.2, 0.5, 0.8, 1.5}) EXPECT_EQ(run(devices("ref,ref", {1, share})), expected);
}

/// A matrix that is both table and head is on the first device and on the last.
TEST(Split, HoldsATiedTableTwice) {
  TestWeight table, middle;
  Rng rng(6);
  set_floats(table, "table", {8, 32}, random_values(rng, 8 * 32, 1));
  set_floats(middle, "middle", {32, 32}, random_values(rng, 32 * 32, 1));
  Plan plan("tied");
  plan.output("logits", plan.matmul(plan.matmul(plan.embed(table.weight), middle.weight), table.weight));
  const Plan* const plans[] = {&plan};
  const std::vector<double> shares = {1, 1};
  const Layout layout(plans, shares);
  EXPECT_EQ(layout.holders(table.weight), (std::set<int>{0, 1}));
  EXPECT_EQ(layout.holders(middle.weight).size(), 1u);
  const std::unique_ptr<Backend> one = devices("ref"), two = devices("ref,ref");
  two->place(plans);
  EXPECT_EQ(two->weight_bytes(table.weight), 2 * one->weight_bytes(table.weight));
}

/// Drafters of both versions, greedy and sampled; taps come from all devices.
TEST(Split, AnswersAsOneDeviceDoes) {
  for (const BlockType type : {BlockType::f32, BlockType::q4_0}) {
    TinyShape shape;
    shape.type = type;
    const TinyModels models(shape);
    for (const int version : {0, 1, 2}) {
      Request request = greedy(models.prompt(31, 90), 60);
      for (const float temperature : {0.0f, 0.9f}) {
        request.sampling.temperature = temperature;
        std::vector<std::pair<std::string, std::string>> names = gpus();
        for (const char* several : {"ref,ref", "ref,ref,ref"}) names.emplace_back("ref", several);
        for (const auto& [one, several] : names) {
          EngineOptions options = models.options(version);
          options.device = one;
          const auto expected = run(options, request);
          options.device = several;
          const auto actual = run(options, request);
          EXPECT_EQ(actual->ids, expected->ids) << several << " version " << version;
          EXPECT_EQ(actual->statistics.draft_n_accepted, expected->statistics.draft_n_accepted);
        }
      }
    }
  }
}

/// Every byte of a divided matrix is on one device, once; every device has some.
TEST(Tensor, DividesEveryMatrixWithoutRemainder) {
  TinyShape shape;
  shape.n_head = 4, shape.n_head_kv = 2, shape.d_state = 32;
  shape.type = BlockType::q4_0;
  TempDir dir;
  write_tiny_target(dir.file("model.gguf"), shape);
  const std::unique_ptr<Model> model = Model::open(dir.file("model.gguf"), {});
  const Plan plan = model->plan(nullptr);
  Shard first(0, 2), second(1, 2);
  const Plan parts[] = {first.divide(plan), second.divide(plan)};
  int n_divided = 0;
  for (const Weight* weight : plan.weights()) {
    const WeightPart *a = first.part(*weight), *b = second.part(*weight);
    ASSERT_EQ(a == nullptr, b == nullptr) << weight->name;
    if (!a) continue;
    ++n_divided;
    EXPECT_FALSE(first.uses_whole(*weight) || second.uses_whole(*weight)) << weight->name;
    EXPECT_EQ(a->bytes().size() + b->bytes().size(), weight->data.size()) << weight->name;
    EXPECT_GT(std::min(a->bytes().size(), b->bytes().size()), 0u) << weight->name;
  }
  EXPECT_GT(n_divided, 20);
  // Two sums a layer; the head, the row buffers and the results are the first device's.
  const auto count = [](const Plan& p, Op op) {
    return std::count_if(p.steps().begin(), p.steps().end(), [op](const Step& step) { return step.op == op; });
  };
  for (const Plan& part : parts) EXPECT_EQ(count(part, Op::sum_devices), 2 * shape.n_layer);
  EXPECT_EQ(count(parts[0], Op::argmax), count(plan, Op::argmax));
  EXPECT_EQ(count(parts[1], Op::argmax), 0);
  EXPECT_TRUE(parts[1].outputs().empty());
}

/// A drafter runs on the first device; drafts change nothing.
TEST(Tensor, AnswersWithDrafters) {
  TinyShape shape;
  shape.n_head = 4, shape.n_head_kv = 2, shape.d_state = 32;
  int64_t accepted = 0;
  for (const BlockType type : {BlockType::f32, BlockType::q4_0}) {
    shape.type = type;
    const TinyModels models(shape);
    EngineOptions options = models.options(0);
    options.device = "ref,ref";
    options.backend.split = SplitMode::tensor;
    const Request request = greedy(models.prompt(31, 90), 60);
    const auto plain = run(options, request);
    for (const int version : {1, 2}) {
      EngineOptions drafted = models.options(version);
      drafted.device = options.device;
      drafted.backend = options.backend;
      const auto answer = run(drafted, request);
      EXPECT_EQ(answer->ids, plain->ids) << "version " << version;
      accepted += answer->statistics.draft_n_accepted;
    }
  }
  EXPECT_GT(accepted, 0) << "no draft was ever accepted: the test shows nothing";
}

TEST(Tensor, RefusesWhatCantBeDivided) {
  const TinyModels models;  // one key head
  EngineOptions options = models.options(0);
  options.device = "ref,ref";
  options.backend.split = SplitMode::tensor;
  expect_refused({"1 key heads", "2 devices", "--split-mode layer"}, [&] { plan_engine(options); });
}

/// Bytes of slots and pages are those of one device, and find their way back.
TEST(Split, SlotsAndPagesAreAsOnOneDevice) {
  const TinyHybrid model;
  HybridRun one(model, devices("ref")), two(model, devices("ref,ref"));
  const std::vector<int32_t> tokens = {5, 9, 2, 31, 17};
  EXPECT_EQ(one.run({{0, 0, tokens, Phase::prompt}}), two.run({{0, 0, tokens, Phase::prompt}}));
  int64_t slot_bytes = 0, page_bytes = 0;
  for (const State* state : model.states()) {
    slot_bytes += state_bytes(*state, {.n_slots = 1, .n_tape = TinyHybrid::kTape});
    page_bytes += state_bytes(*state, {.n_pages = 1});
  }
  std::vector<uint8_t> slot(static_cast<size_t>(slot_bytes)), page(static_cast<size_t>(page_bytes));
  std::vector<uint8_t> other_slot(slot.size()), other_page(page.size());
  const int32_t first_page = HybridRun::pages(0)[0];
  one.pool().read_slot(0, slot);
  two.pool().read_slot(0, other_slot);
  one.pool().read_page(first_page, page);
  two.pool().read_page(first_page, other_page);
  EXPECT_EQ(slot, other_slot);
  EXPECT_EQ(page, other_page);
  two.pool().write_slot(1, slot);
  two.pool().write_page(HybridRun::pages(1)[0], page);
  one.pool().copy_slot(0, 1);
  one.pool().copy_page(first_page, HybridRun::pages(1)[0]);
  const Part next{1, static_cast<int32_t>(tokens.size()), {8}, Phase::decode};
  const auto expected = one.run({next});
  EXPECT_EQ(two.run({next}), expected);
  two.pool().clear_slot(1);
  EXPECT_NE(two.run({next}), expected);
}

TEST(Split, NamesAndShares) {
  EXPECT_EQ(make_backend("ref0", {})->info().name, "ref");
  EXPECT_EQ(devices("ref,cpu0")->info().name, "ref+cpu");
  EXPECT_EQ(make_backend("ref,cpu", {.isa = {}, .split = SplitMode::none})->info().name, "ref");
  EXPECT_EQ(make_backend("ref", {.isa = {}, .split = SplitMode::layer})->info().name, "ref");
  EXPECT_EQ(count_devices("ref,ref"), 2);
  EXPECT_EQ(count_devices("ref"), 1);
  expect_error(ErrorKind::usage, {"2 devices", "found 3"}, [] { devices("ref,ref", {1, 2, 3}); });
  expect_error(ErrorKind::usage, {"0 or more"}, [] { devices("ref,ref", {0, 0}); });
  expect_error(ErrorKind::usage, {"unknown device", "abacus"}, [] { devices("ref,abacus"); });
}

}  // namespace
}  // namespace onebit::test
