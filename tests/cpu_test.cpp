// What the CPU backend promises beyond right results: no allocation while it runs, weights held once and in the stated
// size, rows that can be read back from strips, results that don't depend on the number of threads, and barriers where
// steps meet.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <map>
#include <new>
#include <numeric>

#include "backend/cpu/dispatch.h"
#include "backend/cpu/schedule.h"
#include "backend/cpu/step.h"
#include "backend/ref/ref.h"
#include "gguf/blocks.h"
#include "op_cases.h"
#include "support/expect_error.h"

namespace {
std::atomic<int64_t> allocations{0};
}

// Counts what the whole program allocates. Not inlined, or GCC takes malloc and delete for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace onebit::test {
namespace {

std::unique_ptr<Backend> cpu(int n_threads, const std::string& isa = "") {
  return make_backend("cpu", {.n_threads = n_threads, .isa = isa});
}

/// Runs a batch and returns how often it allocated.
int64_t allocations_of(Program& program, const Batch& batch) {
  const int64_t before = allocations;
  program.wait(program.submit(batch));
  return allocations - before;
}

TEST(Cpu, RunsWithoutAllocating) {
  const auto backend = cpu(2);
  for (const OpCase& op_case : all_op_cases()) {
    const std::unique_ptr<OpRig> rig = op_case.build();
    for (const TestWeight& weight : rig->weights()) backend->load(weight.weight);
    std::vector<const State*> states;
    for (const State& state : rig->states()) states.push_back(&state);
    const auto pool = backend->make_states(states, rig->sizes);
    StatePool* const pools[] = {pool.get()};
    const auto program = backend->compile(rig->plan, pools, rig->limits);
    for (const TestBatch& made : rig->batches) {
      if (made.before) made.before(*pool);
      std::vector<Sequence> sequences = made.sequences;
      for (size_t s = 0; s < sequences.size(); ++s) {
        if (s > 0) sequences[s].row = sequences[s - 1].row + sequences[s - 1].n_tok;
        if (s < made.pages.size()) sequences[s].pages = made.pages[s];
      }
      EXPECT_EQ(allocations_of(*program, {made.tokens, sequences, made.outputs, made.source_rows, made.tap_rows}), 0)
          << op_case.name;
    }
  }
}

TEST(Cpu, IntegerProductsDoNotDependOnTheNumberOfThreads) {
  for (const OpCase& op_case : all_op_cases()) {
    if (op_case.name.find("matmul") == std::string::npos) continue;
    const std::unique_ptr<OpRig> rig = op_case.build();
    const std::vector<Result> one = run_rig(*rig, *cpu(1)), three = run_rig(*rig, *cpu(3));
    for (size_t i = 0; i < one.size(); ++i) ASSERT_EQ(one[i].values, three[i].values) << op_case.name;
  }
}

/// A plan of everything that generated tokens go through, after a prompt of `kPrompt` positions.
constexpr int32_t kPrompt = 2100, kDraft = 9;

/// How far sums over thousands of positions may stray from ref; the cases of op_cases.h hold each op closely.
const Bound kLong{Tolerance::reduction, 1e5};

std::unique_ptr<OpRig> generation_rig() {
  auto rig = std::make_unique<OpRig>("generation", 64, 11);
  rig->limits = {kPrompt, kPrompt};
  rig->sizes = {.n_pages = (kPrompt + kDraft) / kPageTokens + 1, .n_slots = 1, .n_tape = kDraft};
  Plan& plan = rig->plan;
  const Value q = rig->feed(4 * 32), k = rig->feed(2 * 32), v = rig->feed(2 * 32);
  const State& cache = rig->state({"cache", KvState{.n_head_kv = 2, .d_head = 32}});
  plan.kv_store(k, v, cache);
  rig->check("attention", plan.attention(q, cache, {.n_head = 4, .n_head_kv = 2, .d_head = 32, .scale = 0.2f}), kLong);
  const State& net = rig->state({"net", DeltaNetState{.n_channel = 128, .n_v_head = 4, .d_k = 16, .d_v = 16}});
  rig->check("delta_net",
             plan.delta_net(rig->feed(128), rig->feed(4), rig->feed(4), rig->random_floats({128, 4}),
                            rig->floats({4}, {-0.1f, -0.2f, -0.5f, -1}), rig->random_floats({4}), net,
                            {.n_k_head = 2, .n_v_head = 4, .d_k = 16, .d_v = 16}),
             kLong);
  const Value x = rig->feed(256);
  rig->check("f32", plan.matmul(x, rig->random_floats({70, 256})), kLong);
  for (const BlockType type : {BlockType::q4_0, BlockType::q8_0, BlockType::q4_k, BlockType::q6_k}) {
    rig->check(type_name(type), plan.matmul(plan.quantize(x, {}), rig->random_weight(type, {70, 256})), kLong);
  }
  TestBatch prompt = prompt_batch(kPrompt);
  for (int32_t& token : prompt.tokens) token %= 64;
  TestBatch verify;
  verify.sequences = {{.n_tok = kDraft, .pos = kPrompt, .phase = Phase::verify}};
  for (int32_t i = 0; i < kDraft; ++i) verify.tokens.push_back(i);
  rig->batches = {prompt, verify};
  for (int32_t i = 0; i < kDraft; ++i) {
    TestBatch decode;
    decode.tokens = {i};
    decode.sequences = {{.n_tok = 1, .pos = kPrompt + i, .phase = Phase::decode}};
    rig->batches.push_back(decode);
  }
  std::vector<int32_t> pages(static_cast<size_t>(rig->sizes.n_pages));
  std::iota(pages.begin(), pages.end(), 0);
  for (TestBatch& batch : rig->batches) batch.pages = {pages};
  rig->finish();
  return rig;
}

// What makes a text independent of drafting, and of who else is served.
TEST(Cpu, GeneratedRowsAreTheSameAloneOrTogether) {
  const std::unique_ptr<OpRig> rig = generation_rig();
  const size_t n_output = rig->plan.outputs().size();
  std::vector<std::vector<Result>> runs;
  for (const int n_threads : {1, 3}) {
    const std::vector<Result>& run = runs.emplace_back(run_rig(*rig, *cpu(n_threads)));
    for (size_t output = 0; output < n_output; ++output) {
      const Result& together = run[n_output + output];
      for (size_t i = 0; i < kDraft; ++i) {
        const Result& alone = run[(2 + i) * n_output + output];
        const auto begin = together.values.begin() + static_cast<int64_t>(i) * together.width;
        ASSERT_EQ(alone.values, std::vector<float>(begin, begin + together.width))
            << n_threads << " threads, row " << i << ", " << alone.where;
      }
    }
  }
  for (size_t i = n_output; i < runs[0].size(); ++i)
    ASSERT_EQ(runs[0][i].values, runs[1][i].values) << runs[0][i].where;
}

TEST(Cpu, HeadsOfWholeBlocksCanBeKeptInEightBits) {
  const std::unique_ptr<Backend> backend = cpu(1);
  State whole{"blk.3", KvState{.n_head_kv = 2, .d_head = 96}}, odd{"blk.7", KvState{.n_head_kv = 2, .d_head = 80}};
  check_cache(*backend, {&whole}, CacheType::q8_0);
  check_cache(*backend, {&whole, &odd}, CacheType::f16);
  expect_refused({"q8_0", "blk.7", "80", "32"}, [&] { check_cache(*backend, {&whole, &odd}, CacheType::q8_0); });
  const StateSizes one{.n_pages = 1, .cache = CacheType::q8_0};
  EXPECT_EQ(state_bytes(whole, one), 2 * kPageTokens * 2 * (96 + 3 * 2));
}

TEST(Cpu, LongContextsAgreeWithRef) {
  const std::unique_ptr<OpRig> rig = generation_rig();
  EXPECT_EQ(compare_results(*rig, run_rig(*rig, *make_ref_backend()), run_rig(*rig, *cpu(3))), "");
}

TEST(Cpu, CountsDenormalNumbersAsZeroWhileItRuns) {
  OpRig rig("tiny", 4);
  rig.check("y", rig.plan.rms_norm(rig.feed(32), rig.floats({32}, std::vector<float>(32, 1e-40f)), 1e-6f), {});
  rig.finish();
  rig.batches = {prompt_batch(3)};
  for (const Result& result : run_rig(rig, *cpu(2))) {
    if (result.where.find("guard") != std::string::npos) continue;
    EXPECT_EQ(result.values, std::vector<float>(3 * 32, 0.0f));
  }
  volatile float tiny = 1e-40f;
  EXPECT_GT(tiny * 1.0f, 0.0f);  // and not for the caller
}

TEST(Cpu, RowsReadBackFromStripsAreThoseOfTheFile) {
  ThreadPool threads(2);
  Rng rng(5);
  for (const char* isa : {"portable", "avx2", "avxvnni", "avx512", "amx", "dotprod"}) {
    const cpu::Kernels* kernels = nullptr;
    try {
      kernels = &cpu::choose_kernels(isa);
    } catch (const Error&) {
      continue;  // not for this machine
    }
    cpu::WeightStore store(*kernels, threads);
    for (const BlockType type :
         {BlockType::f32, BlockType::f16, BlockType::bf16, BlockType::q4_0, BlockType::q4_1, BlockType::q5_0,
          BlockType::q5_1, BlockType::q8_0, BlockType::q2_k, BlockType::q3_k, BlockType::q4_k, BlockType::q5_k,
          BlockType::q6_k, BlockType::iq4_nl, BlockType::iq4_xs, BlockType::mxfp4}) {
      TestWeight made;
      set_random(made, rng, "table", type, {2, 37, 512});
      store.load(made.weight);
      std::vector<float> expected(512), actual(512);
      for (int64_t row = 0; row < 2 * 37; ++row) {
        decode_row(type, made.weight.data.data() + row * row_bytes(type, 512), expected.data(), 512);
        cpu::gather_row(*kernels, store.get(made.weight), row, actual.data());
        ASSERT_EQ(actual, expected) << isa << " " << type_name(type) << " row " << row;
      }
    }
  }
}

/// A product of 40 rows, its argmax and its 5 largest columns; `logits`: the product is a result too.
std::unique_ptr<OpRig> choice_rig(bool logits) {
  auto rig = std::make_unique<OpRig>("choice", 40, 13);
  constexpr int64_t n_in = 256, n_out = 1300;
  Rng rng(17);
  std::vector<float> rows = random_values(rng, rig->n_token() * n_in), table = random_values(rng, n_out * n_in);
  for (int64_t i = 0; i < n_in; ++i) {  // equal columns far apart, and a row without an order
    table[static_cast<size_t>(900 * n_in + i)] = table[static_cast<size_t>(30 * n_in + i)];
    rows[static_cast<size_t>(3 * n_in + i)] = NAN;
    rows[static_cast<size_t>(4 * n_in + i)] = 0;
    rows[static_cast<size_t>(5 * n_in + i)] = table[static_cast<size_t>(30 * n_in + i)];
  }
  const Value x = rig->feed(n_in, rows);
  for (const bool quantised : {false, true}) {
    const Weight& w =
        quantised ? rig->random_weight(BlockType::q6_k, {n_out, n_in}) : rig->floats({n_out, n_in}, table);
    const std::string label = quantised ? "quantised" : "floats";
    const auto product = [&] { return rig->plan.matmul(quantised ? rig->plan.quantize(x, {}) : x, w); };
    const Value first = product();
    rig->check("next " + label, rig->plan.argmax(first));
    const Value second = product();
    const auto [ids, values] = rig->plan.top_k(second, 5);
    rig->check("ids " + label, ids);
    rig->check("values " + label, values);
    if (logits) rig->plan.output("first " + label, first);
    if (logits) rig->plan.output("second " + label, second);
  }
  rig->finish();
  rig->batches = {prompt_batch(40), prompt_batch(7), prompt_batch(1)};
  return rig;
}

TEST(Cpu, ChoicesAreTheSameWithoutTheRowsTheyAreMadeFrom) {
  const std::unique_ptr<OpRig> alone = choice_rig(false), both = choice_rig(true);
  for (const char* isa : {"", "portable"}) {
    for (const int n_threads : {1, 3}) {
      std::map<std::string, std::vector<Result>> expected, actual;
      for (Result& result : run_rig(*both, *cpu(n_threads, isa))) expected[result.where].push_back(result);
      for (Result& result : run_rig(*alone, *cpu(n_threads, isa))) actual[result.where].push_back(result);
      for (const auto& [where, results] : actual) {
        ASSERT_EQ(results.size(), expected[where].size()) << where;
        for (size_t i = 0; i < results.size(); ++i) {
          EXPECT_EQ(results[i].ids, expected[where][i].ids) << where << " " << i;
          if (where.find("values") == std::string::npos) continue;
          for (size_t j = 0; j < results[i].values.size(); ++j) {
            const float a = results[i].values[j], b = expected[where][i].values[j];
            EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << where << " " << j << ": " << a << ", " << b;
          }
        }
      }
    }
  }
}

TEST(Cpu, BatchesMayAskForChoicesOnly) {
  const std::unique_ptr<OpRig> rig = choice_rig(true);
  const auto backend = cpu(2);
  for (const TestWeight& weight : rig->weights()) backend->load(weight.weight);
  const auto program = backend->compile(rig->plan, {}, rig->limits);
  const TestBatch made = prompt_batch(40);
  std::vector<int32_t> ids[2];
  for (const bool choices_only : {false, true}) {
    const Batch batch{
        .tokens = made.tokens, .sequences = made.sequences, .outputs = made.outputs, .choices_only = choices_only};
    program->wait(program->submit(batch));
    ids[choices_only].resize(5 * 40);
    program->read(rig->plan.find_output("ids quantised"), 0, std::span(ids[choices_only]));
  }
  EXPECT_EQ(ids[0], ids[1]);
}

TEST(Cpu, WeightsTakeAboutTheirFileSize) {
  const auto backend = cpu(1);
  Rng rng(6);
  for (const BlockType type : {BlockType::f32, BlockType::bf16, BlockType::q4_0, BlockType::q8_0, BlockType::q2_k,
                               BlockType::q3_k, BlockType::q4_k, BlockType::q5_k, BlockType::q6_k, BlockType::mxfp4}) {
    TestWeight made;
    set_random(made, rng, "weight", type, {48, 512});
    const double file = static_cast<double>(made.weight.data.size());
    EXPECT_GE(static_cast<double>(backend->weight_bytes(made.weight)), file) << type_name(type);
    EXPECT_LE(static_cast<double>(backend->weight_bytes(made.weight)), 1.04 * file) << type_name(type);
    EXPECT_FALSE(backend->keeps_file_bytes(made.weight));
    made.weight.gather_only = true;
    EXPECT_EQ(backend->weight_bytes(made.weight), 0);
    EXPECT_TRUE(backend->keeps_file_bytes(made.weight));
  }
}

TEST(Cpu, NamesTheInstructionSetsThatItKnows) {
  expect_error(ErrorKind::usage, {"sse9", "amx", "avx512", "avxvnni", "avx2", "dotprod", "portable"}, [] { cpu(1, "sse9"); });
  EXPECT_NE(cpu(1, "portable")->info().description.find("portable"), std::string::npos);
}

TEST(CpuShare, CoversEverythingOnceInWholeUnits) {
  for (const int64_t n : {0, 1, 2, 15, 16, 17, 100, 1000}) {
    for (const int parts : {1, 2, 3, 7}) {
      for (const int64_t unit : {1, 16}) {
        int64_t end = 0;
        for (int i = 0; i < parts; ++i) {
          const cpu::Range range = cpu::share(n, unit, i, parts);
          EXPECT_EQ(range.begin, end);
          EXPECT_TRUE(range.end % unit == 0 || range.end == n);
          end = range.end;
        }
        EXPECT_EQ(end, n);
      }
    }
  }
  EXPECT_EQ(cpu::share(1, 1, 0, 2).size(), 1);
}

// Three pieces of memory: a and b of the same row size, and c of another.
constexpr cpu::Touch read_of(uintptr_t begin, int64_t row = 64) { return {begin, begin + 640, false, row}; }
constexpr cpu::Touch write_of(uintptr_t begin, int64_t row = 64) { return {begin, begin + 640, true, row}; }

TEST(CpuBarriers, StandWhereStepsMeetOnOtherRows) {
  const cpu::StepAccess norm{true, false, {read_of(0), write_of(1000)}};
  const cpu::StepAccess quantise{true, false, {read_of(1000), write_of(2000, 0)}};
  const cpu::StepAccess matmul_q{false, false, {read_of(2000, 0), write_of(3000)}};
  const cpu::StepAccess matmul_k{false, false, {read_of(2000, 0), write_of(4000)}};
  const cpu::StepAccess rope{true, false, {read_of(3000), write_of(3000)}};
  EXPECT_EQ(cpu::place_barriers({norm, quantise, matmul_q, matmul_k, rope}, false),
            (std::vector<bool>{true, false, true, false, true}));
}

TEST(CpuBarriers, GuardMemoryThatIsUsedAgain) {
  // The second step writes where the first still reads, in rows of another size: another thread's rows may lie there.
  const cpu::StepAccess first{true, false, {read_of(0, 64), write_of(1000)}};
  const cpu::StepAccess second{true, false, {read_of(1000), write_of(0, 128)}};
  EXPECT_EQ(cpu::place_barriers({first, second}, false), (std::vector<bool>{true, true}));
  EXPECT_EQ(cpu::place_barriers({first, second}, true), (std::vector<bool>{true, false}));
  // Rows of tokens and rows of outputs are divided differently.
  const cpu::StepAccess outputs{true, true, {read_of(1000), write_of(2000)}};
  EXPECT_EQ(cpu::place_barriers({first, outputs}, false), (std::vector<bool>{true, true}));
}

}  // namespace
}  // namespace onebit::test
