// `1bit bench`: prompt, decode and verify speed, and text with and without the drafter, each test in turn with the
// others so that a busy moment does not fall on one of them alone.
#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/process_limits.h"
#include "cli/answer.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/engine_setup.h"
#include "cli/output.h"
#include "model/shapes.h"

namespace onebit {
namespace {

struct Row {
  std::string test;
  std::vector<BenchRun> runs;
};

struct Spread {
  double median = 0, low = 0, high = 0;
};

/// Of value(run) a second.
template <typename F>
Spread spread(const std::vector<BenchRun>& runs, F value) {
  std::vector<double> values;
  for (const BenchRun& run : runs) values.push_back(run.seconds > 0 ? value(run) / run.seconds : 0);
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {(values[(n - 1) / 2] + values[n / 2]) / 2, values.front(), values.back()};
}

/// The sizes of the tests.
struct Sizes {
  std::vector<int64_t> prompt, gen, verify, depth;
};

/// "8,16,512" -> its numbers; 0 stands for nothing unless `zero_counts`.
std::vector<int64_t> numbers_in(const char* flag, const std::string& text, int64_t most, bool zero_counts) {
  std::vector<int64_t> numbers;
  for (const char *at = text.data(), *end = at + text.size(); at <= end;) {
    int64_t n = -1;
    const auto [next, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n < 0 || n > most || (next != end && *next != ',')) {
      fail(ErrorKind::usage, "{}: expected numbers up to {} with commas between them, found {}", flag, most, text);
    }
    if (n > 0 || zero_counts) numbers.push_back(n);
    at = next + 1;
  }
  return numbers;
}

Sizes read_sizes(const Options& options) {
  return {numbers_in("--prompt", options.bench_prompt, 1 << 20, false),
          numbers_in("--gen", options.bench_gen, 1 << 20, false),
          numbers_in("--verify", options.bench_verify, 1024, false),
          numbers_in("--depth", options.bench_depth, 1 << 20, true)};
}

int64_t largest(const std::vector<int64_t>& numbers) {
  return numbers.empty() ? 0 : *std::max_element(numbers.begin(), numbers.end());
}

/// Room for the longest test unless the user says otherwise.
void fit_context(const Sizes& sizes, EngineOptions& engine) {
  const int64_t gen = largest(sizes.gen) + 128, verify = 16 * largest(sizes.verify);
  const int64_t need = largest(sizes.depth) + std::max({largest(sizes.prompt), gen, verify}) + 64;
  if (engine.n_ctx == 0) engine.n_ctx = std::max(need, kDefaultContext / 8);
  if (engine.n_ctx < need) {
    fail(ErrorKind::usage, "--ctx-size: these tests need {} tokens, found {}", need, engine.n_ctx);
  }
  engine.n_verify = static_cast<int32_t>(largest(sizes.verify));
}

std::vector<BenchTest> make_tests(const Sizes& sizes, BenchTarget& target) {
  std::vector<BenchTest> tests;
  for (const int64_t depth : sizes.depth) {
    for (const int64_t n : sizes.prompt) tests.push_back(prompt_test(target, n, depth));
    for (const int64_t n : sizes.gen) tests.push_back(decode_test(target, n, depth));
    for (const int64_t n : sizes.verify) tests.push_back(verify_test(target, n, depth));
  }
  return tests;
}

void add_text_tests(int64_t n, Scheduler& scheduler, const TextModel& model, const StopSignals& signals,
                    std::vector<BenchTest>& tests) {
  for (const BenchPrompt& prompt : bench_prompts()) {
    tests.push_back(text_test(scheduler, model, prompt, n, false, signals));
    tests.push_back(text_test(scheduler, model, prompt, n, true, signals));
  }
}

Peaks mean(const Peaks& a, const Peaks& b) { return {(a.gbps + b.gbps) / 2, (a.int8_tops + b.int8_tops) / 2}; }

/// Every test once to warm up, then all of them in turn. The machine's peaks are measured between them: where others
/// share its memory they change from second to second.
std::vector<Row> measure(const std::vector<BenchTest>& tests, int64_t reps, Engine& engine,
                         const StopSignals& signals) {
  std::vector<Row> rows;
  Progress progress("measuring");
  const double n_runs = static_cast<double>(reps + 1) * static_cast<double>(tests.size());
  double done = 0;
  Peaks before;
  for (const BenchTest& test : tests) rows.push_back({test.name, {}});
  for (int64_t rep = -1; rep < reps; ++rep) {
    for (size_t i = 0; i < tests.size(); ++i) {
      BenchRun run = tests[i].run();
      signals.check();
      const Peaks after = engine.measure_peaks();
      run.peaks = mean(before, after);
      before = after;
      if (rep >= 0) rows[i].runs.push_back(std::move(run));
      progress.update(++done / n_runs);
    }
  }
  return rows;
}

/// 0 where one of them is not known.
double share_of(double work, double peak) { return peak > 0 ? work / peak : 0; }

Json row_json(const Row& row) {
  const Spread speed = spread(row.runs, [](const BenchRun& run) { return run.n_tok; });
  const Spread bytes = spread(row.runs, [](const BenchRun& run) { return run.bytes; });
  const Spread operations = spread(row.runs, [](const BenchRun& run) { return run.operations; });
  Json json = {{"test", row.test},
               {"tokens_per_second", {{"median", speed.median}, {"min", speed.low}, {"max", speed.high}}},
               {"gbps", bytes.high > 0 ? Json(bytes.median / 1e9) : Json(nullptr)},
               {"tops", operations.high > 0 ? Json(operations.median / 1e12) : Json(nullptr)},
               {"reps", row.runs.size()}};
  const Spread memory = spread(row.runs, [](const BenchRun& run) { return share_of(run.bytes, 1e9 * run.peaks.gbps); });
  const Spread int8 =
      spread(row.runs, [](const BenchRun& run) { return share_of(run.operations, 1e12 * run.peaks.int8_tops); });
  if (memory.high > 0) json["share_of_memory"] = memory.median;
  if (int8.high > 0) json["share_of_int8"] = int8.median;
  const Statistics& last = row.runs.back().statistics;
  if (last.rounds > 0) {
    json["tokens_per_step"] = last.tokens_per_step();
    json["drafted"] = last.draft_n;
    json["accepted"] = last.draft_n_accepted;
  }
  return json;
}

Json document(const Engine& engine, const std::vector<Row>& rows, int n_threads) {
  Json list = Json::array();
  Peaks peaks;  // the best of all
  for (const Row& row : rows) {
    list.push_back(row_json(row));
    for (const BenchRun& run : row.runs) {
      peaks.gbps = std::max(peaks.gbps, run.peaks.gbps);
      peaks.int8_tops = std::max(peaks.int8_tops, run.peaks.int8_tops);
    }
  }
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

std::string share(const Json& row, const char* key) {
  return row.contains(key) ? fmt::format("{:.0f}%", 100 * row[key].get<double>()) : "-";
}

void print_text(const Json& json) {
  print(fmt::format("{} on {}, {} threads\n", json["model"].get<std::string>(),
                    json["device_description"].get<std::string>(), json["threads"].get<int>()));
  print(fmt::format("{:<14} {:>10} {:>10} {:>10} {:>7} {:>6} {:>7} {:>6}  {}\n", "test", "tok/s", "min", "max", "GB/s",
                    "of max", "TOPS", "of max", "tokens a step"));
  for (const Json& row : json["rows"]) {
    const Json& speed = row["tokens_per_second"];
    print(fmt::format("{:<14} {:>10} {:>10} {:>10} {:>7} {:>6} {:>7} {:>6}  {}\n", row["test"].get<std::string>(),
                      number(speed["median"], "{:.1f}"), number(speed["min"], "{:.1f}"), number(speed["max"], "{:.1f}"),
                      number(row["gbps"], "{:.1f}"), share(row, "share_of_memory"), number(row["tops"], "{:.3f}"),
                      share(row, "share_of_int8"), number(row.value("tokens_per_step", Json(nullptr)), "{:.2f}")));
  }
  const Json& peaks = json["peaks"];
  print(fmt::format("peaks: {} GB/s from memory, {} TOPS int8\n", number(peaks["gbps"], "{:.1f}"),
                    number(peaks["int8_tops"], "{:.2f}")));
}

/// A program's table of --steps, the longest first; nothing if it did not run.
void print_steps(const char* name, std::vector<StepTime> times) {
  std::sort(times.begin(), times.end(), [](const StepTime& a, const StepTime& b) { return a.seconds > b.seconds; });
  double total = 0;
  for (const StepTime& time : times) total += time.seconds;
  if (total == 0) return;
  print(fmt::format("{:<56} {:>9} {:>10} {:>6}\n", name, "runs", "us each", "share"));
  for (const StepTime& time : times) {
    print(fmt::format("{:<56} {:>9} {:>10.1f} {:>5.1f}%\n", time.name, time.n_run,
                      1e6 * time.seconds / static_cast<double>(time.n_run), 100 * time.seconds / total));
  }
}

}  // namespace

int cmd_bench(Options options) {
  const StopSignals signals;
  const Sizes sizes = read_sizes(options);
  EngineSetup setup = set_up_engine(options);
  fit_context(sizes, setup.engine);
  const int given = setup.engine.backend.n_threads, n_threads = given > 0 ? given : usable_cores();
  const std::unique_ptr<Engine> engine = load_engine(setup, "bench", signals);
  BenchTarget target{*engine, engine->model_plan()};
  Scheduler scheduler(*engine);
  std::vector<BenchTest> tests = make_tests(sizes, target);
  std::optional<TextModel> model;
  const int64_t n_text = engine->drafter() ? largest(sizes.gen) : 0;
  if (n_text > 0 && options.draft_accept > 0) {
    tests.push_back(synthetic_draft_test(target, n_text, options.draft_accept));
  } else if (n_text > 0 && !is_shape(options.model)) {
    model = read_text_model(engine->model().file());
    add_text_tests(n_text, scheduler, *model, signals, tests);
  }
  if (tests.empty()) fail(ErrorKind::usage, "no test is left: --prompt, --gen and --verify are all 0");
  const std::pair<const char*, Program*> programs[] = {{"step of the target", &engine->target_program()},
                                                       {"step of the drafter's encoding", engine->encode_program()},
                                                       {"step of drafting", engine->draft_program()}};
  for (const auto& [name, program] : programs) {
    if (options.steps && program) program->measure_steps();
  }
  const Json json = document(*engine, measure(tests, options.bench_reps, *engine, signals), n_threads);
  if (options.json) {
    print_json(json);
  } else {
    print_text(json);
    for (const auto& [name, program] : programs) {
      if (options.steps && program) print_steps(name, program->step_times());
    }
  }
  return 0;
}

}  // namespace onebit
