// The template language: against Python's jinja2 (tests/golden/jinja_language.json, made by
// tools/goldens/jinja_language.py), its errors, its limits, the marks on text from the request, and random templates.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <fstream>

#include "text/jinja_interpreter.h"
#include "text/jinja_json.h"
#include "text/jinja_parser.h"

namespace onebit::jinja {
namespace {

using Json = nlohmann::ordered_json;

/// Renders a template; strings in `variables` are input.
Text run(const std::string& source, const Json& variables = Json::object(), const Limits& limits = {}) {
  const Template body = parse(source);
  Runtime rt(limits);
  rt.now = [] {
    std::tm t{};
    t.tm_year = 125, t.tm_mon = 2, t.tm_mday = 9, t.tm_hour = 7, t.tm_min = 5, t.tm_sec = 2, t.tm_yday = 67;
    return t;
  };
  Scope scope;
  for (const auto& [name, value] : variables.items()) scope.set(rt, name, from_json(rt, value, true));
  return render(body, rt, scope);
}

/// The error a template ends with; fails the test when it renders.
Error error_of(const std::string& source, const Limits& limits = {}) {
  try {
    ADD_FAILURE() << source << " renders " << run(source, Json::object(), limits).str().substr(0, 100);
  } catch (const Error& e) {
    return e;
  }
  return Error(ErrorKind::runtime, "none");
}

TEST(Jinja, EqualsJinja2) {
  const Json goldens = Json::parse(std::ifstream(ONEBIT_SOURCE_DIR "/tests/golden/jinja_language.json"));
  for (const Json& golden : goldens["cases"]) {
    const std::string source = golden["template"];
    try {
      const std::string text = run(source, goldens["variables"]).str();
      EXPECT_EQ(text, golden.value("text", "an error: " + golden.dump())) << source;
    } catch (const Error& e) {
      EXPECT_FALSE(golden.contains("text")) << source << "\n" << e.what();
      EXPECT_TRUE(e.kind() == ErrorKind::usage || e.kind() == ErrorKind::refused) << source;
    }
  }
}

TEST(Jinja, SyntaxErrorsNameLineAndColumn) {
  const auto expect = [](const std::string& source, const std::string& message) {
    const Error e = error_of(source);
    EXPECT_EQ(e.kind(), ErrorKind::refused) << source;
    EXPECT_EQ(std::string(e.what()), "chat template, " + message) << source;
  };
  expect("a\n{{ 1 + }}", "line 2, column 8: expected an expression, found '}}'");
  expect("a\n{% if x %}\n b", "line 3, column 3: '{% endif %}' is missing");
  expect("{% for x in y %}{% endif %}", "line 1, column 17: '{% endfor %}' is missing");
  expect("\n\n {% frob %}", "line 3, column 5: unknown tag 'frob'");
  expect("x {{ 'abc }}", "line 1, column 6: the string has no end");
  expect("x\n{# abc", "line 2, column 1: the comment has no end, '#}' is missing");
  expect("{{ a ", "line 1, column 1: the tag has no end, '}}' is missing");
  expect("{{ a ? b }}", "line 1, column 6: unexpected character '?'");
  expect("{{ (a] }}", "line 1, column 6: unexpected ']'");
  expect("{{ f(*a) }}", "line 1, column 6: unpacking arguments with * is not supported");
  expect("{% include 'x' %}", "line 1, column 4: unknown tag 'include'");
  expect("{{ 99999999999999999999 }}", "line 1, column 4: '99999999999999999999' is not an integer of 64 bits");
  expect("{{ '\\ud800' }}", "line 1, column 4: a character escape is no character");
}

TEST(Jinja, RunTimeErrorsNameTheLine) {
  const auto expect = [](const std::string& source, const std::string& message) {
    const Error e = error_of(source);
    EXPECT_EQ(e.kind(), ErrorKind::usage) << source;
    EXPECT_EQ(std::string(e.what()), "chat template, " + message) << source;
  };
  expect("a\n\n{{ x.y }}", "line 3: 'x' is undefined");
  expect("{% macro m() %}\n{{ 1 + 'a' }}\n{% endmacro %}\n\n{{ m() }}",
         "line 2: '+' does not work on values of types int and str");
  expect("{{ raise_exception('Only user messages, please') }}", "line 1: Only user messages, please");
  expect("{{ 1|frob }}", "line 1: there is no filter 'frob'");
  expect("{{ 'a'|trim(1, 2) }}", "line 1: 'trim' got too many arguments");
  expect("{{ [1]|tojson(depth=1) }}", "line 1: 'tojson' has no argument 'depth'");
  expect("{{ 9223372036854775807 + 1 }}", "line 1: an integer needs more than 64 bits");
  expect("{{ [1][0]() }}", "line 1: a value of type int can't be called");
}

// ---- limits ----

std::string repeated(const std::string& part, int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += part;
  return text;
}

/// A part of what a rendering may use, so that the tests are quick.
Limits small_limits() {
  Limits limits;
  limits.steps /= 20;
  limits.bytes /= 10;
  return limits;
}

TEST(JinjaLimits, LongLoopsEnd) {
  for (const char* numbers : {"range(100000)", "range(30)"}) {
    const std::string begin = fmt::format("{{% for a in {} %}}", numbers);
    const std::string loops = repeated(begin, 12) + repeated("{% endfor %}", 12);
    const std::string message = error_of(loops, small_limits()).what();
    EXPECT_NE(message.find("more than"), std::string::npos) << message;
  }
}

TEST(JinjaLimits, DoublingEnds) {
  const std::string loop = "{% set ns = namespace(x='ab') %}{% for i in range(100) %}";
  for (const char* body :
       {"{% set ns.x = ns.x + ns.x %}", "{% set ns.x = ns.x ~ ns.x %}", "{% set ns.x = [ns.x] * 9 %}",
        "{% set ns.x = ns.x|replace('', ns.x) %}", "{% set ns.x = ns.x|string|tojson|tojson %}",
        "{% set ns.x = ns.x|join(ns.x) %}", "{% set ns.x = ns.x * 1000000000000 %}",
        "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}", "{% set ns.x = [ns.x, ns.x]|string %}",
        "{% set ns.x = ns.x|indent(9223372036854775807, true) %}"}) {
    EXPECT_EQ(error_of(loop + body + "{% endfor %}{{ ns.x }}", small_limits()).kind(), ErrorKind::usage) << body;
  }
}

TEST(JinjaLimits, SharedListsAreNotWrittenOutForever) {
  const std::string list =
      "{% set ns = namespace(x=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
  for (const char* use : {"{{ ns.x }}", "{{ ns.x|tojson }}", "{{ ns.x == ns.x }}", "{{ [ns.x] < [[ns.x[0], 1]] }}"}) {
    EXPECT_EQ(error_of(list + use, small_limits()).kind(), ErrorKind::usage) << use;
  }
}

TEST(JinjaLimits, CyclesEnd) {
  const std::string cycle = "{% set x = [] %}{% set _ = x.append(x) %}{% set y = [] %}{% set _ = y.append(y) %}";
  for (const char* use :
       {"{{ x }}", "{{ x|tojson }}", "{{ x == y }}", "{{ x < y }}", "{{ x in [y] }}", "{{ x|unique }}"}) {
    EXPECT_NE(std::string(error_of(cycle + use).what()).find("nested more than"), std::string::npos) << use;
  }
  EXPECT_EQ(run(cycle + "{{ x|length }}").str(), "1");
}

TEST(JinjaLimits, RecursionEnds) {
  EXPECT_NE(std::string(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").what()).find("nested more than"),
            std::string::npos);
  EXPECT_EQ(error_of("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{% if true %}{{ a() }}{% endif %}{% "
                     "endmacro %}{{ a() }}")
                .kind(),
            ErrorKind::usage);
  EXPECT_EQ(error_of("{% macro m(x) %}{{ caller(x) }}{% endmacro %}{% macro r(x) %}{% call(y) m(x) %}{{ r(y) }}{% "
                     "endcall %}{% endmacro %}{{ r(1) }}")
                .kind(),
            ErrorKind::usage);
  EXPECT_EQ(
      error_of("{% set l = [] %}{% set _ = l.append(l) %}{% for x in l recursive %}{{ loop(x) }}{% endfor %}").kind(),
      ErrorKind::usage);
  const std::string deep_list =
      "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}";
  EXPECT_EQ(run(deep_list + "{{ ns.x|length }}").str(), "1");  // may exist, and is freed without recursion
  EXPECT_EQ(error_of(deep_list + "{{ ns.x }}").kind(), ErrorKind::usage);
}

TEST(JinjaLimits, DeepSyntaxIsRefused) {
  constexpr int kMany = 20'000;
  const std::string sources[] = {
      "{{ " + repeated("(", kMany) + "1" + repeated(")", kMany) + " }}",
      "{{ " + repeated("[", kMany) + repeated("]", kMany) + " }}",
      "{{ " + repeated("{1:", kMany) + "1" + repeated("}", kMany) + " }}",
      "{{ " + repeated("not ", kMany) + "1 }}",
      "{{ " + repeated("-", kMany) + "1 }}",
      "{{ 1" + repeated(" + 1", kMany) + " }}",
      "{{ 1" + repeated(" ** 1", kMany) + " }}",
      "{{ x" + repeated(".x", kMany) + " }}",
      "{{ x" + repeated("[0]", kMany) + " }}",
      "{{ x" + repeated("()", kMany) + " }}",
      "{{ x" + repeated("|string", kMany) + " }}",
      "{{ x" + repeated(" if x", kMany) + " }}",
      "{{ " + repeated("x if x else ", kMany) + "x }}",
      repeated("{% if x %}", kMany) + repeated("{% endif %}", kMany),
      repeated("{% for x in y %}", kMany),
      "{% for " + repeated("(", kMany) + "x" + repeated(")", kMany) + " in y %}{% endfor %}",
  };
  for (const std::string& source : sources)
    EXPECT_EQ(error_of(source).kind(), ErrorKind::refused) << source.substr(0, 20);
  EXPECT_EQ(run("{{ 1" + repeated(" ~ 1", 1000) + " }}").size(), 1001u);
  EXPECT_EQ(run("{% if false %}a" + repeated("{% elif false %}a", 1000) + "{% else %}b{% endif %}").str(), "b");
}

TEST(JinjaLimits, OutputAndMemoryAreBounded) {
  Limits limits;
  limits.output = 10;
  EXPECT_EQ(run("{{ '1234567890' }}", Json::object(), limits).size(), 10u);
  EXPECT_NE(std::string(error_of("{{ '12345678901' }}", limits).what()).find("more than 10 bytes"), std::string::npos);
  limits.output = 1000;
  limits.bytes = 10'000;
  EXPECT_EQ(error_of("{% set x = 'a' * 20000 %}", limits).kind(), ErrorKind::usage);
  EXPECT_EQ(error_of("{% for i in range(1000) %}{% set x = [1, 2, 3] %}{% endfor %}", limits).kind(), ErrorKind::usage);
}

TEST(JinjaLimits, InputNestsNoDeeperThanTheLimit) {
  const std::string deep = repeated("[", 5000) + repeated("]", 5000);
  EXPECT_THROW(run("{{ 1 }}", {{"x", Json::parse(deep)}}), Error);
  EXPECT_EQ(error_of("{{ ('[' * 5000 ~ ']' * 5000)|from_json }}").kind(), ErrorKind::usage);
}

TEST(JinjaLimits, LoopsReuseTheirScopesUnlessAMacroNeedsThem) {
  EXPECT_EQ(run("{% set ns = namespace(m=[]) %}{% for i in range(3) %}{% set j = i %}{% macro m() %}{{ i }}{{ j }}{% "
                "endmacro %}"
                "{% set _ = ns.m.append(m) %}{% endfor %}{% for m in ns.m %}{{ m() }} {% endfor %}")
                .str(),
            "00 11 22 ");
  EXPECT_EQ(run("{% for i in range(3) %}{{ j is defined }}{% set j = i %}{% endfor %}").str(), "FalseFalseFalse");
  Limits limits;
  limits.bytes = 6 << 20;  // the numbers take 4.8 MB, twice 24 bytes each
  EXPECT_EQ(run("{% for i in range(100000) %}{% set j = i %}{% endfor %}", Json::object(), limits).str(), "");
}

// ---- marks ----

/// The text with <...> around what came from the request.
std::string marked(const std::string& source, const Json& variables) {
  const Text text = run(source, variables);
  std::string out;
  size_t done = 0;
  for (const Span& span : text.input_spans()) {
    out +=
        text.str().substr(done, span.begin - done) + "<" + text.str().substr(span.begin, span.end - span.begin) + ">";
    done = span.end;
  }
  return out + text.str().substr(done);
}

TEST(JinjaMarks, FollowTheCharacters) {
  const Json in = {{"x", "in put"}, {"l", {"a", "b"}}, {"d", {{"key", "value"}}}, {"n", 5}};
  const std::pair<const char*, const char*> cases[] = {
      {"a{{ x }}b", "a<in put>b"},
      {"{{ 'a' + x ~ 'b' + x[0:2] }}", "a<in put>b<in>"},
      {"{{ x[::-1] }}{{ x[0] }}{{ x[-1] }}", "<tup niit>"},
      {"{{ (' a' ~ x ~ ' ')|trim }}", "a<in put>"},
      {"{{ x.split(' ')[1] }}{{ x.split()|join('+') }}", "<putin>+<put>"},
      {"{{ x|replace(' ', '_') }}{{ 'a-b'|replace('-', x) }}", "<in>_<put>a<in put>b"},
      {"{{ x|upper }}{{ ('a' ~ x)|capitalize }}", "<IN PUT>A<in put>"},
      {"{{ l|join(',') }}{{ l }}", "<a>,<b>['<a>', '<b>']"},
      {"{{ d|tojson }}", "{\"<key>\": \"<value>\"}"},
      {"{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", "<key>=<value>"},
      {"{% set y %}[{{ x }}]{% endset %}{{ y }}", "[<in put>]"},
      {"{% macro m(t) %}({{ t }}){% endmacro %}{{ m(x) }}", "(<in put>)"},
      {"{{ x|string|safe|indent }}{{ '<'|e ~ x|e }}", "<in put>&lt;<in put>"},
      {"{{ n }}{{ x|length }}{{ x == 'in put' }}", "56True"},
      {"{{ ('[' ~ x|tojson ~ ']')|from_json }}", "['<in put>']"},
  };
  for (const auto& [source, wanted] : cases) EXPECT_EQ(marked(source, in), wanted) << source;
}

TEST(JinjaMarks, EscapesOfInputAreInput) { EXPECT_EQ(marked("{{ x|tojson }}", {{"x", "a\n\"b"}}), "\"<a\\n\\\"b>\""); }

// ---- random templates ----

/// Pieces of templates in random order: much of it parses, most of the rest fails late.
std::string random_template() {
  static const std::vector<std::string> kPieces = {"{{ ",
                                                   " }}",
                                                   "{% if x %}",
                                                   "{% endif %}",
                                                   "{% for a in x %}",
                                                   "{% endfor %}",
                                                   "{% set y = ",
                                                   " %}",
                                                   "{%- ",
                                                   " -%}",
                                                   "{# ",
                                                   " #}",
                                                   "x",
                                                   "y.a",
                                                   "[0]",
                                                   "[::-1]",
                                                   "[",
                                                   "]",
                                                   "(",
                                                   ")",
                                                   "'s'",
                                                   "1",
                                                   "-1",
                                                   "2.5",
                                                   " + ",
                                                   " * ",
                                                   " // ",
                                                   " % ",
                                                   " ** ",
                                                   " ~ ",
                                                   " in ",
                                                   " is ",
                                                   " not ",
                                                   "defined",
                                                   "string",
                                                   "|",
                                                   "length",
                                                   "tojson",
                                                   "join(x)",
                                                   "replace('', x)",
                                                   "upper",
                                                   "map('upper')",
                                                   "list",
                                                   "sort",
                                                   "items",
                                                   ".split()",
                                                   ".append(x)",
                                                   "loop",
                                                   "(x)",
                                                   "{% macro m(a, b=x) %}",
                                                   "{% endmacro %}",
                                                   "m(x)",
                                                   "namespace(a=x)",
                                                   "{% set y.a = x %}",
                                                   "{% raw %}",
                                                   "{% endraw %}",
                                                   "\n",
                                                   "text ",
                                                   "é",
                                                   "\xff",
                                                   "{",
                                                   "}",
                                                   "%",
                                                   "#",
                                                   "\\",
                                                   "'",
                                                   "\"",
                                                   "range(9)",
                                                   "{'a': x}",
                                                   ", ",
                                                   " if ",
                                                   " else ",
                                                   " and ",
                                                   "{% break %}",
                                                   "{% filter trim %}",
                                                   "{% endfilter %}"};
  const auto pieces = *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(kPieces));
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

RC_GTEST_PROP(JinjaProperty, RandomTemplatesRenderOrFailCleanly, ()) {
  Limits limits;
  limits.steps = 20'000;
  limits.bytes = 1 << 20;
  try {
    const Text text = run(random_template(), {{"x", {"a", "B", 3}}}, limits);
    RC_ASSERT(text.size() <= limits.bytes);
  } catch (const Error& e) {
    RC_ASSERT(e.kind() == ErrorKind::usage || e.kind() == ErrorKind::refused);
  }
}

RC_GTEST_PROP(JinjaProperty, InputNeverBecomesTemplateText, (const std::string& a, const std::string& b)) {
  const Text text =
      run("<{{ a ~ b }}|{{ b.strip() }}|{{ a[1:] }}|{{ a.replace('x', b) }}|{{ [a, b]|join }}>", {{"a", a}, {"b", b}});
  std::string outside;
  size_t done = 0;
  for (const Span& span : text.input_spans()) {
    outside += text.str().substr(done, span.begin - done);
    done = span.end;
  }
  RC_ASSERT(outside + text.str().substr(done) == "<||||>");
}

}  // namespace
}  // namespace onebit::jinja
