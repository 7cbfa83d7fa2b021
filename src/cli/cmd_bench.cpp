// `1bit bench`: prompt, decode and verify speed, and text with and without the drafter, each test in turn with the
// others so that a busy moment does not fall on one of them alone.
#include <algorithm>
#include <thread>

#include "base/error.h"
#include "cli/answer.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/engine_setup.h"
#include "cli/output.h"
#include "cli/peaks.h"

namespace onebit {
namespace {

struct Row {
  std::string test;
  std::vector<BenchRun> runs;
};

struct Spread {
  double median = 0, low = 0, high = 0;
};

template <typename F>
Spread spread(const std::vector<BenchRun>& runs, F value) {
  std::vector<double> values;
  for (const BenchRun& run : runs) values.push_back(run.seconds > 0 ? value(run) / run.seconds : 0);
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {(values[(n - 1) / 2] + values[n / 2]) / 2, values.front(), values.back()};
}

/// Room for the longest test unless the user says otherwise.
void fit_context(const Options& options, EngineOptions& engine) {
  const int64_t need = std::max(options.bench_prompt, options.bench_gen + 128) + 64 + options.bench_verify;
  if (engine.n_ctx == 0) engine.n_ctx = std::max(need, kDefaultContext / 8);
  if (engine.n_ctx < need) {
    fail(ErrorKind::usage, "--ctx-size: these tests need {} tokens, found {}", need, engine.n_ctx);
  }
  engine.n_verify = static_cast<int32_t>(options.bench_verify);
}

std::vector<BenchTest> make_tests(const Options& options, Engine& engine, Scheduler& scheduler, const TextModel& model,
                                  const PlanCost& cost, const StopSignals& signals) {
  std::vector<BenchTest> tests;
  if (options.bench_prompt > 0) tests.push_back(prompt_test(engine, cost, options.bench_prompt));
  if (options.bench_gen > 0) tests.push_back(decode_test(engine, cost, options.bench_gen));
  if (options.bench_verify > 0) tests.push_back(verify_test(engine, cost, options.bench_verify));
  if (!engine.drafter() || options.bench_gen == 0) return tests;
  for (const BenchPrompt& prompt : bench_prompts()) {
    tests.push_back(text_test(scheduler, model, prompt, options.bench_gen, false, signals));
    tests.push_back(text_test(scheduler, model, prompt, options.bench_gen, true, signals));
  }
  return tests;
}

/// Every test once to warm up, then all of them in turn.
std::vector<Row> measure(const std::vector<BenchTest>& tests, int64_t reps, const StopSignals& signals) {
  std::vector<Row> rows;
  Progress progress("measuring");
  const double n_runs = static_cast<double>(reps + 1) * static_cast<double>(tests.size());
  double done = 0;
  for (const BenchTest& test : tests) rows.push_back({test.name, {}});
  for (int64_t rep = -1; rep < reps; ++rep) {
    for (size_t i = 0; i < tests.size(); ++i) {
      BenchRun run = tests[i].run();
      signals.check();
      if (rep >= 0) rows[i].runs.push_back(std::move(run));
      progress.update(++done / n_runs);
    }
  }
  return rows;
}

Json row_json(const Row& row) {
  const Spread speed = spread(row.runs, [](const BenchRun& run) { return run.n_tok; });
  const Spread bytes = spread(row.runs, [](const BenchRun& run) { return run.bytes; });
  const Spread operations = spread(row.runs, [](const BenchRun& run) { return run.operations; });
  Json json = {{"test", row.test},
               {"tokens_per_second", {{"median", speed.median}, {"min", speed.low}, {"max", speed.high}}},
               {"gbps", bytes.high > 0 ? Json(bytes.median / 1e9) : Json(nullptr)},
               {"tops", operations.high > 0 ? Json(operations.median / 1e12) : Json(nullptr)},
               {"reps", row.runs.size()}};
  const Statistics& last = row.runs.back().statistics;
  if (last.rounds > 0) {
    json["tokens_per_step"] = last.tokens_per_step();
    json["drafted"] = last.draft_n;
    json["accepted"] = last.draft_n_accepted;
  }
  return json;
}

Json document(const Engine& engine, const std::vector<Row>& rows, const Peaks& peaks, int n_threads) {
  Json list = Json::array();
  for (const Row& row : rows) list.push_back(row_json(row));
  return Json{{"model", engine.options().model_path},
              {"drafter", engine.drafter() ? Json(engine.options().drafter_path) : Json(nullptr)},
              {"device", engine.device().name},
              {"device_description", engine.device().description},
              {"threads", n_threads},
              {"rows", list},
              {"peaks", {{"gbps", peaks.gbps}, {"int8_tops", peaks.int8_tops}}}};
}

std::string number(const Json& value, const char* format) {
  return value.is_null() ? "-" : fmt::format(fmt::runtime(format), value.get<double>());
}

void print_text(const Json& json) {
  print(fmt::format("{} on {}, {} threads\n", json["model"].get<std::string>(),
                    json["device_description"].get<std::string>(), json["threads"].get<int>()));
  print(fmt::format("{:<14} {:>10} {:>10} {:>10} {:>8} {:>8}  {}\n", "test", "tok/s", "min", "max", "GB/s", "TOPS",
                    "tokens a step"));
  for (const Json& row : json["rows"]) {
    const Json& speed = row["tokens_per_second"];
    print(fmt::format("{:<14} {:>10} {:>10} {:>10} {:>8} {:>8}  {}\n", row["test"].get<std::string>(),
                      number(speed["median"], "{:.1f}"), number(speed["min"], "{:.1f}"), number(speed["max"], "{:.1f}"),
                      number(row["gbps"], "{:.1f}"), number(row["tops"], "{:.3f}"),
                      number(row.value("tokens_per_step", Json(nullptr)), "{:.2f}")));
  }
  const Json& peaks = json["peaks"];
  print(fmt::format("peaks: {} GB/s from memory, {} TOPS int8\n", number(peaks["gbps"], "{:.1f}"),
                    number(peaks["int8_tops"], "{:.2f}")));
}

}  // namespace

int cmd_bench(Options options) {
  const StopSignals signals;
  EngineSetup setup = set_up_engine(options);
  fit_context(options, setup.engine);
  const int n_threads = setup.engine.backend.n_threads > 0 ? setup.engine.backend.n_threads
                                                           : std::max(1u, std::thread::hardware_concurrency());
  const Peaks peaks = measure_peaks(n_threads);
  const std::unique_ptr<Engine> engine = load_engine(setup, "bench", signals);
  const TextModel model = read_text_model(engine->model().file());
  const PlanCost cost = plan_cost(Model::open(options.model, setup.engine.w4a4)->plan(nullptr));
  Scheduler scheduler(*engine);
  const std::vector<BenchTest> tests = make_tests(options, *engine, scheduler, model, cost, signals);
  if (tests.empty()) fail(ErrorKind::usage, "no test is left: --prompt, --gen and --verify are all 0");
  const Json json = document(*engine, measure(tests, options.bench_reps, signals), peaks, n_threads);
  if (options.json) {
    print_json(json);
  } else {
    print_text(json);
  }
  return 0;
}

}  // namespace onebit
