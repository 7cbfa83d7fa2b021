// Chat templates: reshapes OpenAI messages to what the template understands, renders, and splits the prompt into
// segments.
#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <optional>

#include "text/jinja_interpreter.h"
#include "text/jinja_json.h"
#include "text/jinja_parser.h"
#include "text/unicode.h"

namespace onebit {

using Json = nlohmann::ordered_json;

const char* const kChatMlTemplate =
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

namespace {

// ---- rendering ----

std::tm local_now() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

/// The messages as values. Everything in them is input but the well-known roles: templates build control tokens of
/// these.
jinja::Value message_values(jinja::Runtime& rt, const Json& messages) {
  static constexpr std::array<std::string_view, 6> kRoles = {"system", "user",      "assistant",
                                                             "tool",   "developer", "function"};
  const jinja::Value values = jinja::from_json(rt, messages, true);
  const jinja::Value key = rt.text("role");
  for (const jinja::Value& message : jinja::as<jinja::List>(values)->items) {
    jinja::Value* role = jinja::lookup(rt, *jinja::as<jinja::Dict>(message), key);
    const jinja::Text* name = role ? jinja::as_text(*role) : nullptr;
    if (name && std::find(kRoles.begin(), kRoles.end(), name->str()) != kRoles.end()) *role = rt.text(name->str());
  }
  return values;
}

std::vector<Segment> to_segments(const jinja::Text& text) {
  std::vector<Segment> segments;
  const std::string& bytes = text.str();
  size_t done = 0;
  for (const jinja::Span& span : text.input_spans()) {
    if (span.begin > done) segments.push_back({bytes.substr(done, span.begin - done), false});
    segments.push_back({bytes.substr(span.begin, span.end - span.begin), true});
    done = span.end;
  }
  if (done < bytes.size()) segments.push_back({bytes.substr(done), false});
  return segments;
}

/// Renders messages that are shaped already; `no_tools` stands for tools when there are none.
std::vector<Segment> render_shaped(const jinja::Template& body, const TemplateInput& input, const Json& messages,
                                   const Json& no_tools, const jinja::Limits& limits) {
  jinja::Runtime rt(limits);
  rt.now = input.now ? input.now : local_now;
  jinja::Scope variables;
  variables.set(rt, "bos_token", rt.text(input.bos_token));
  variables.set(rt, "eos_token", rt.text(input.eos_token));
  variables.set(rt, "documents", jinja::None{});
  for (const auto& [name, value] : input.kwargs.items()) variables.set(rt, name, jinja::from_json(rt, value, true));
  const bool has_tools = input.tools.is_array() && !input.tools.empty();
  variables.set(rt, "tools", jinja::from_json(rt, has_tools ? input.tools : no_tools, true));
  variables.set(rt, "messages", message_values(rt, messages));
  variables.set(rt, "add_generation_prompt", input.add_generation_prompt);
  return to_segments(jinja::render(body, rt, variables));
}

// ---- reshaping messages ----

constexpr int kMaxNesting = 200;  // of JSON in a request

bool nests_deeper(const Json& json, int levels) {
  if (!json.is_structured()) return false;
  return levels == 0 ||
         std::any_of(json.begin(), json.end(), [&](const Json& j) { return nests_deeper(j, levels - 1); });
}

void check_messages(const TemplateInput& input) {
  for (const Json* json : {&input.messages, &input.tools, &input.kwargs}) {
    if (nests_deeper(*json, kMaxNesting))
      fail(ErrorKind::usage, "messages or tools: nested more than {} levels", kMaxNesting);
  }
  if (!input.messages.is_array()) fail(ErrorKind::usage, "messages: expected an array of messages");
  for (size_t i = 0; i < input.messages.size(); ++i) {
    const Json& message = input.messages[i];
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      fail(ErrorKind::usage, "messages[{}]: expected an object with a string 'role'", i);
    }
  }
  if (!input.tools.is_null() && !input.tools.is_array()) fail(ErrorKind::usage, "tools: expected an array of tools");
  if (!input.kwargs.is_object()) fail(ErrorKind::usage, "chat_template_kwargs: expected an object");
}

bool is_role(const Json& message, std::string_view role) {
  return message["role"].get_ref<const std::string&>() == role;
}

/// The text of content: a string, or all text parts with line ends between; nothing when it has other parts.
std::optional<std::string> content_text(const Json& content) {
  if (content.is_null()) return "";
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const Json& part : content) {
    const bool is_text = part.is_object() && part.contains("text") && part["text"].is_string();
    if (!is_text) return std::nullopt;
    if (!text.empty()) text += "\n";
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

/// JSON text -> object; text that is not an object in JSON, or nests too deep, stays as it is.
void parse_arguments(Json& tool_call) {
  if (!tool_call.is_object()) return;
  Json& call = tool_call.contains("function") ? tool_call["function"] : tool_call;
  if (!call.is_object() || !call.contains("arguments")) return;
  Json& arguments = call["arguments"];
  if (arguments.is_null() || arguments == "") arguments = Json::object();
  if (!arguments.is_string()) return;
  bool is_deep = false;
  const auto check_depth = [&](int depth, Json::parse_event_t, Json&) { return !(is_deep |= depth > kMaxNesting / 2); };
  Json parsed = Json::parse(arguments.get_ref<const std::string&>(), check_depth, false);
  if (parsed.is_object() && !is_deep) arguments = std::move(parsed);
}

void shape_message(Json& message, const TemplateTraits& traits) {
  if (is_role(message, "developer") && !traits.developer_role) message["role"] = "system";
  const bool has_calls =
      message.contains("tool_calls") && message["tool_calls"].is_array() && !message["tool_calls"].empty();
  if (!has_calls) message.erase("tool_calls");
  if (has_calls && traits.object_arguments) {
    for (Json& call : message["tool_calls"]) parse_arguments(call);
  }
  if (!message.contains("content")) message["content"] = nullptr;
  Json& content = message["content"];
  if (content.is_null() && !(has_calls && traits.null_content)) content = "";
  if (content.is_array() && !traits.content_parts) {
    if (const auto text = content_text(content)) content = *text;
  }
}

/// Puts `text` in front of a message's content, an empty line between them.
void prepend_text(Json& message, const std::string& text) {
  Json& content = message["content"];
  if (content.is_array()) {
    content.insert(content.begin(), Json{{"type", "text"}, {"text", text + "\n\n"}});
  } else {
    const std::string rest = content_text(content).value_or("");
    content = rest.empty() ? text : text + "\n\n" + rest;
  }
}

/// Moves the system messages' text to where the template takes it: the first message, or the first one of the user.
void merge_system(Json& messages, const TemplateTraits& traits) {
  std::string text;
  Json others = Json::array();
  for (const Json& message : messages) {
    const auto part = is_role(message, "system") ? content_text(message["content"]) : std::nullopt;
    if (part) {
      text += (text.empty() || part->empty() ? "" : "\n\n") + *part;
    } else {
      others.push_back(message);
    }
  }
  const auto user = std::find_if(others.begin(), others.end(), [](const Json& m) { return is_role(m, "user"); });
  if (traits.system_role) {
    others.insert(others.begin(), Json{{"role", "system"}, {"content", text}});
  } else if (user != others.end()) {
    if (!text.empty()) prepend_text(*user, text);
  } else {
    others.insert(others.begin(), Json{{"role", "user"}, {"content", text}});
  }
  messages = std::move(others);
}

Json shape_messages(Json messages, const TemplateTraits& traits) {
  for (Json& message : messages) shape_message(message, traits);
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!is_role(messages[i], "system")) continue;
    if (!traits.system_role || (i > 0 && !traits.late_system)) {
      merge_system(messages, traits);
      break;
    }
  }
  return messages;
}

// ---- finding out what a template understands ----

class Prober {
 public:
  explicit Prober(const jinja::Template& body) : body_(body) {}

  TemplateTraits traits(bool names_developer) {
    TemplateTraits t;
    const Json user = message("user", "question"), answer = message("assistant", "answer");
    t.null_tools = prompt({user}).has_value();
    if (!t.null_tools) no_tools_ = Json::array();
    if (!prompt({user})) return TemplateTraits{};  // wants more than this; nothing can be learnt
    t.system_role = shows({message("system", "needle"), user}, "needle");
    const std::vector<Json> late = {message("system", "first"), user, answer, message("system", "needle"), user};
    t.developer_role = names_developer && shows({message("developer", "needle"), user}, "needle");
    t.late_system = t.system_role && shows(late, "needle");
    const auto parts =
        prompt({message("user", {{{"type", "text"}, {"text", "needle"}}, {{"type", "text"}, {"text", "needle"}}})});
    t.content_parts = parts && count(*parts, "needle") == 2 && count(*parts, "'text'") + count(*parts, "\"text\"") == 0;
    probe_tool_calls(t, user);
    t.thinking_switch = prompt({user}, {{"enable_thinking", true}}) != prompt({user}, {{"enable_thinking", false}});
    return t;
  }

 private:
  static Json message(const char* role, Json content) { return {{"role", role}, {"content", std::move(content)}}; }

  void probe_tool_calls(TemplateTraits& t, const Json& user) const {
    const auto conversation = [&](Json content, Json arguments) {
      const Json call = {{"id", "call12345"},
                         {"type", "function"},
                         {"function", {{"name", "tool"}, {"arguments", std::move(arguments)}}}};
      const Json turn = {{"role", "assistant"}, {"content", std::move(content)}, {"tool_calls", Json::array({call})}};
      const Json result = {{"role", "tool"}, {"content", "result"}, {"name", "tool"}, {"tool_call_id", "call12345"}};
      return prompt({user, turn, result});
    };
    const Json object = {{"needle", "value"}}, text = "{\"needle\": \"value\"}";
    const auto with_null = [&] { return conversation(nullptr, t.object_arguments ? object : text); };
    const auto with_empty = [&] { return conversation("", t.object_arguments ? object : text); };
    const auto usable = [](const auto& p) { return p && count(*p, "needle") > 0 && count(*p, "{'needle'") == 0; };
    const bool takes_object = usable(with_null()) || usable(with_empty());
    t.object_arguments = false;
    t.object_arguments = takes_object || !(usable(with_null()) || usable(with_empty()));
    const auto null = with_null(), empty = with_empty();
    t.null_content = null && (!empty || count(*null, "None") <= count(*empty, "None"));
  }

  /// The prompt of these messages, nothing when the template fails on them.
  std::optional<std::string> prompt(const std::vector<Json>& messages, Json kwargs = Json::object()) const {
    jinja::Limits limits;
    limits.steps = 100'000;
    limits.bytes = 8u << 20;
    TemplateInput input;
    input.tools = {{{"type", "function"},
                    {"function",
                     {{"name", "tool"},
                      {"description", "A tool."},
                      {"parameters", {{"type", "object"}, {"properties", {{"needle", {{"type", "string"}}}}}}}}}}};
    input.tools = uses_tools(messages) ? input.tools : Json();
    input.kwargs = std::move(kwargs);
    input.now = [] { return std::tm{}; };
    try {
      return prompt_text(render_shaped(body_, input, Json(messages), no_tools_, limits));
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  static bool uses_tools(const std::vector<Json>& messages) { return is_role(messages.back(), "tool"); }

  bool shows(const std::vector<Json>& messages, std::string_view text) const {
    const auto p = prompt(messages);
    return p && count(*p, text) > 0;
  }

  static int count(std::string_view s, std::string_view part) {
    int n = 0;
    for (size_t pos = s.find(part); pos != s.npos; pos = s.find(part, pos + part.size())) ++n;
    return n;
  }

  const jinja::Template& body_;
  Json no_tools_;
};

std::unique_ptr<const jinja::Template> parse_checked(const std::string& source) {
  constexpr size_t kMaxSource = 1u << 20;
  if (source.size() > kMaxSource) refuse("chat template: {} bytes are more than {}", source.size(), kMaxSource);
  if (!is_valid_utf8(source)) refuse("chat template: the text is not UTF-8");
  return std::make_unique<const jinja::Template>(jinja::parse(source));
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source)
    : source_(std::move(source)),
      template_(parse_checked(source_)),
      traits_(Prober(*template_).traits(mentions("developer"))) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::vector<Segment> ChatTemplate::render(const TemplateInput& input) const {
  check_messages(input);
  return render_shaped(*template_, input, shape_messages(input.messages, traits_),
                       traits_.null_tools ? Json() : Json::array(), jinja::Limits{});
}

std::string prompt_text(const std::vector<Segment>& prompt) {
  std::string text;
  for (const Segment& segment : prompt) text += segment.text;
  return text;
}

bool template_opens_think(const std::vector<Segment>& prompt) {
  bool open = false;
  for (const Segment& segment : prompt) {
    if (segment.from_input) continue;
    const size_t begin = segment.text.rfind("<think>"), end = segment.text.rfind("</think>");
    if (begin == std::string::npos && end == std::string::npos) continue;
    open = begin != std::string::npos && (end == std::string::npos || begin > end);
  }
  return open;
}

}  // namespace onebit
