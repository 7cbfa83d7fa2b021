// The command line without a process: parsing, the generated documents, recipes.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "cli/options.h"
#include "cli/recipes.h"
#include "support/expect_error.h"

namespace onebit {
namespace {

using test::expect_error;
using test::expect_refused;

Options parse(const std::vector<std::string>& arguments, std::string_view program = "build/1bit") {
  return parse_command_line(program, arguments);
}

void expect_usage(std::initializer_list<const char*> words, const std::vector<std::string>& arguments) {
  expect_error(ErrorKind::usage, words, [&] { parse(arguments); });
}

TEST(Options, DefaultsAndValues) {
  const Options options = parse({"run", "-m", "a.gguf", "-p", "text", "-n", "-1", "--temp", "0.5", "-s", "9"});
  EXPECT_EQ(options.command, kRun);
  EXPECT_EQ(options.model, "a.gguf");
  EXPECT_EQ(options.prompt, "text");
  EXPECT_EQ(options.n_predict, -1);
  EXPECT_EQ(options.temperature, 0.5);
  EXPECT_EQ(options.seed, 9);
  EXPECT_EQ(options.device, "auto");
  EXPECT_FALSE(options.top_k);
  EXPECT_EQ(options.given, (std::set<std::string>{"--model", "--prompt", "--predict", "--temp", "--seed"}));
}

TEST(Options, OneLetterMeansWhatItsCommandSays) {
  EXPECT_EQ(parse({"serve", "-m", "a", "-p", "81"}).port, 81);
  EXPECT_EQ(parse({"run", "-m", "a", "-p", "81"}).prompt, "81");
  EXPECT_EQ(parse({"bench", "-m", "a", "-p", "81", "-n", "3"}).bench_prompt, "81");
}

TEST(Options, SpellingsOfOneFlag) {
  for (const char* name : {"--mtp-max", "--draft-max", "--spec-draft-n-max"}) {
    EXPECT_EQ(parse({"plan", "-m", "a", name, "3"}).draft_max, 3);
  }
  for (const char* name : {"--parallel", "-np"}) EXPECT_EQ(parse({"serve", "-m", "a", name, "3"}).n_parallel, 3);
  EXPECT_EQ(parse({"serve", "-m", "a", "-np=3"}).n_parallel, 3);
  EXPECT_EQ(parse({"serve", "-m=a", "--port=3"}).port, 3);
  EXPECT_EQ(parse({"run", "-m", "a", "-n64", "-px"}).n_predict, 64);
}

TEST(Options, ValuesMayLookLikeAnything) {
  EXPECT_EQ(parse({"run", "-m", "a", "-p", "-x"}).prompt, "-x");
  EXPECT_EQ(parse({"run", "-m", "a", "-p", "--unknown"}).prompt, "--unknown");
  EXPECT_EQ(parse({"run", "-m", "a", "--prompt=--seed"}).prompt, "--seed");
  EXPECT_EQ(parse({"run", "-m", "a", "-p", ""}).prompt, "");
  EXPECT_EQ(parse({"run", "-m", "a", "-p", "a=b"}).prompt, "a=b");
  EXPECT_EQ(parse({"run", "-m", "a", "--stop", "[a,b]", "--stop", "c d"}).stops,
            (std::vector<std::string>{"[a,b]", "c d"}));
  EXPECT_EQ(parse({"inspect", "--", "--strange.gguf"}).files, std::vector<std::string>{"--strange.gguf"});
}

TEST(Options, TheLastOneCounts) {
  EXPECT_EQ(parse({"serve", "-m", "a", "--port", "1", "--port", "2"}).port, 2);
  EXPECT_EQ(parse({"serve", "-m", "a", "-m", "b"}).model, "b");
}

TEST(Options, RefusesWithTheReason) {
  expect_usage({"which command"}, {});
  expect_usage({"unknown command", "fly"}, {"fly"});
  expect_usage({"unknown flag", "--fly"}, {"run", "--fly"});
  expect_usage({"needs a value"}, {"run", "-m"});
  expect_usage({"needs a value"}, {"run", "-m", "--seed", "1"});
  expect_usage({"--port", "0 to 65535", "-1"}, {"serve", "--port", "-1"});
  expect_usage({"whole number", "2.5"}, {"serve", "--port", "2.5"});
  expect_usage({"\"7x\""}, {"serve", "--port", "7x"});
  expect_usage({"\"inf\""}, {"run", "--temp", "inf"});
  expect_usage({"auto|all|none"}, {"plan", "--w4a4", ""});
  expect_usage({"auto|all|none"}, {"plan", "--w4a4", "auto|all"});
  expect_usage({"--json takes no value"}, {"run", "--json=false"});
  expect_usage({"unexpected argument", "stray"}, {"run", "stray"});
  expect_usage({"expected 2 file name(s), found 1", "IN OUT"}, {"quantize", "a"});
}

TEST(Options, ServesWhenCalledLikeLlamaServer) {
  EXPECT_EQ(parse({"-m", "a"}).command, kServe);
  EXPECT_EQ(parse({"-m", "a"}, "/opt/bin/llama-server").command, kServe);
  expect_error(ErrorKind::usage, {"run"}, [] { parse({"run"}, "llama-server"); });
  EXPECT_EQ(parse({"--help"}).command, kHelp);
  EXPECT_TRUE(parse({"--help"}, "llama-server").help);
  EXPECT_EQ(parse({"--version"}, "llama-server").command, kVersion);
}

TEST(Options, TakesWhatLemonadePasses) {
  const Options options = parse({"-m",
                                 "a",
                                 "--ctx-size",
                                 "4096",
                                 "--device",
                                 "ROCm0",
                                 "--port",
                                 "8001",
                                 "--jinja",
                                 "--metrics",
                                 "--mmproj",
                                 "b",
                                 "--no-mmproj-offload",
                                 "--model-draft",
                                 "d",
                                 "--spec-type",
                                 "draft-dflash",
                                 "--temp",
                                 "1.0",
                                 "--top-p",
                                 "0.95",
                                 "--top-k",
                                 "20",
                                 "--min-p",
                                 "0",
                                 "--repeat-penalty",
                                 "1.0",
                                 "--chat-template-kwargs",
                                 "{}",
                                 "-fa",
                                 "-ngl",
                                 "99"});
  EXPECT_EQ(options.n_ctx, 4096);
  EXPECT_EQ(options.port, 8001);
  EXPECT_EQ(options.drafter, "d");
  EXPECT_EQ(options.top_k, 20);
}

TEST(Flags, NamesAreUniqueWithinACommand) {
  for (const CommandRow& command : command_rows()) {
    std::set<std::string> seen;
    for (const FlagRow& row : flag_rows()) {
      if (!row.belongs_to(command.bit)) continue;
      for (const std::string& spelling : row.spellings()) {
        EXPECT_TRUE(seen.insert(spelling).second) << command.name << " " << spelling;
      }
    }
  }
}

TEST(Flags, NumbersHaveARange) {
  for (const FlagRow& row : flag_rows()) {
    const bool text = std::holds_alternative<std::string Options::*>(row.target) ||
                      std::holds_alternative<std::vector<std::string> Options::*>(row.target);
    const bool none = std::holds_alternative<std::monostate>(row.target);
    const bool flag = std::holds_alternative<bool Options::*>(row.target);
    EXPECT_EQ(row.low < row.high, !text && !none && !flag) << row.names;
    EXPECT_EQ(*row.value == 0, flag || (none && *row.value == 0)) << row.names;
  }
}

TEST(Documents, TheCommandLinePageIsCurrent) {
  std::ifstream file(ONEBIT_SOURCE_DIR "/docs/cli.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), help_markdown()) << "write it anew: build/1bit help markdown > docs/cli.md";
}

TEST(Documents, HelpHasNoLineThatIsTooLong) {
  for (const CommandRow& command : command_rows()) {
    std::stringstream lines(help_text(command));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110u) << line;
  }
}

constexpr const char* kSet = R"({"recipes": [
  {"id": "a", "match": {"device": ["cpu"], "moe": false}, "args": ["--draft-max", "3"], "measured": "yes"},
  {"id": "b", "match": {"architecture": ["qwen3"]}, "args": ["-b", "64", "--mtp-max", "5"], "measured": "yes"},
  {"id": "c", "args": ["--no-recipes"], "measured": "yes"}]})";

Options plan_options(const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"plan", "-m", "a"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return parse(arguments);
}

TEST(Recipes, ApplyInOrderBehindTheUser) {
  const std::vector<Recipe> recipes = parse_recipes(kSet, "set");
  ASSERT_EQ(recipes.size(), 3u);
  RecipeFacts facts;
  facts.device = "cpu";
  facts.architecture = "qwen3";
  Options options = plan_options();
  std::vector<AppliedRecipe> applied = apply_recipes(recipes, facts, options);
  ASSERT_EQ(applied.size(), 3u);
  EXPECT_EQ(applied[0].added, (std::vector<std::string>{"--draft-max", "3"}));
  EXPECT_EQ(applied[1].added, (std::vector<std::string>{"-b", "64"}));
  EXPECT_EQ(options.draft_max, 3);
  EXPECT_EQ(options.n_batch, 64);

  options = plan_options({"--spec-draft-n-max", "7", "-b", "8"});
  applied = apply_recipes(recipes, facts, options);
  ASSERT_EQ(applied.size(), 1u);  // all that a and b would add was given
  EXPECT_EQ(options.draft_max, 7);
  EXPECT_EQ(options.n_batch, 8);

  facts.moe = true;
  facts.architecture = "llama";
  options = plan_options();
  EXPECT_EQ(apply_recipes(recipes, facts, options).size(), 1u);
}

TEST(Recipes, LeaveOutWhatTheCommandDoesNotHave) {
  const char* set = R"({"recipes": [{"id": "a", "args": ["--max-queue", "3", "-b", "64"], "measured": "yes"}]})";
  Options options = parse({"run", "-m", "a"});
  const std::vector<AppliedRecipe> applied = apply_recipes(parse_recipes(set, "set"), {}, options);
  ASSERT_EQ(applied.size(), 1u);
  EXPECT_EQ(applied[0].added, (std::vector<std::string>{"-b", "64"}));
}

TEST(Recipes, BuiltInSetIsValid) { EXPECT_NO_THROW(parse_recipes(kBuiltInRecipes, "built-in")); }

TEST(Recipes, RefusesByName) {
  const auto refused = [](std::initializer_list<const char*> words, const std::string& recipe) {
    expect_refused(words, [&] { parse_recipes("{\"recipes\": [" + recipe + "]}", "set"); });
  };
  refused({"set", "recipe 1", "object"}, "3");
  refused({"recipe 1", "id"}, R"({"args": ["--json"], "measured": "x"})");
  refused({"recipe \"a\"", "measured"}, R"({"id": "a", "args": ["--json"]})");
  refused({"recipe \"a\"", "args"}, R"({"id": "a", "args": [], "measured": "x"})");
  refused({"recipe \"a\"", "--fly"}, R"({"id": "a", "args": ["--fly"], "measured": "x"})");
  refused({"recipe \"a\"", "not with a flag"}, R"({"id": "a", "args": ["7", "--json"], "measured": "x"})");
  refused({"recipe \"a\"", "needs a value"}, R"({"id": "a", "args": ["--draft-max"], "measured": "x"})");
  refused({"recipe \"a\"", "unknown key", "colour"},
          R"({"id": "a", "colour": 1, "args": ["--json"], "measured": "x"})");
  refused({"recipe \"a\"", "unknown key", "colour"},
          R"({"id": "a", "match": {"colour": 1}, "args": ["--json"], "measured": "x"})");
  refused({"recipe \"a\"", "device"},
          R"({"id": "a", "match": {"device": "cpu"}, "args": ["--json"], "measured": "x"})");
  expect_refused({"set", "JSON"}, [] { parse_recipes("{", "set"); });
  expect_refused({"set", "recipes"}, [] { parse_recipes("{}", "set"); });
  expect_refused({"set", "object"}, [] { parse_recipes("[]", "set"); });
}

}  // namespace
}  // namespace onebit
