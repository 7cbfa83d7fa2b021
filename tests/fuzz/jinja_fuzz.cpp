// Any text as a template, rendered with a small conversation: a clear error or a prompt within the limits.
#include <cstddef>
#include <cstdint>

#include "text/jinja_interpreter.h"
#include "text/jinja_json.h"
#include "text/jinja_parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace onebit;
  static const auto kVariables = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "user", "content": "Hi  you\n"}, {"role": "assistant", "content": null, "tool_calls": [{"a": 1.5}]}],
    "tools": [{"function": {"name": "f", "parameters": {"b": [true, 1, "é"]}}}], "x": "s", "n": -3})");
  jinja::Limits limits;
  limits.steps = 50'000;
  limits.bytes = 4 << 20;
  limits.output = 1 << 20;
  try {
    const jinja::Template body = jinja::parse({reinterpret_cast<const char*>(data), size});
    jinja::Runtime rt(limits);
    rt.now = [] { return std::tm{}; };
    jinja::Scope variables;
    for (const auto& [name, value] : kVariables.items()) variables.set(rt, name, jinja::from_json(rt, value, true));
    const jinja::Text prompt = jinja::render(body, rt, variables);
    if (prompt.size() > limits.output) __builtin_trap();
    size_t end = 0;
    for (const jinja::Span& span : prompt.input_spans()) {
      if (span.begin < end || span.end <= span.begin || span.end > prompt.size()) __builtin_trap();
      end = span.end;
    }
  } catch (const Error&) {
  }
  return 0;
}
