// Messages, tools and template settings of a chat request: only text, in the shape that templates understand.
#include <algorithm>
#include <array>

#include "server/api_error.h"
#include "server/billing_line.h"
#include "server/generation_request.h"

namespace onebit {

namespace {

constexpr std::array<std::string_view, 6> kRoles{"system", "developer", "user", "assistant", "tool", "function"};
constexpr std::array<const char*, 5> kReservedKwargs{"messages", "tools", "add_generation_prompt", "bos_token",
                                                     "eos_token"};

[[noreturn]] void refuse_message(size_t index, const std::string& what) {
  throw invalid_request(fmt::format("messages[{}]{}", index, what));
}

/// The text of content that is a list of parts, one line a part.
std::string joined_parts(const Json& parts, size_t index) {
  std::string text;
  for (const Json& part : parts) {
    const bool typed = part.is_object() && part.contains("type") && part["type"].is_string();
    if (!typed) refuse_message(index, ".content: expected parts with a type");
    const auto& type = part["type"].get_ref<const std::string&>();
    if (type != "text")
      refuse_message(index,
                     fmt::format(".content: only parts of type 'text' are supported, found '{}'", type.substr(0, 40)));
    if (!part.contains("text") || !part["text"].is_string()) refuse_message(index, ".content: a text part has no text");
    if (!text.empty()) text += '\n';
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

Json read_message(const Json& from, size_t index) {
  if (!from.is_object()) refuse_message(index, fmt::format(": expected an object, found {}", kind_of(from)));
  Json message = from;
  const auto role = from.find("role");
  if (role == from.end() || !role->is_string()) refuse_message(index, ".role: expected a string");
  if (std::find(kRoles.begin(), kRoles.end(), role->get_ref<const std::string&>()) == kRoles.end()) {
    refuse_message(index, ".role: expected system, developer, user, assistant or tool");
  }
  const auto calls = from.find("tool_calls");
  const bool has_calls = calls != from.end() && !calls->is_null();
  if (has_calls && !calls->is_array()) refuse_message(index, ".tool_calls: expected an array");
  if (!has_calls || calls->empty()) message.erase("tool_calls");
  const auto content = from.find("content");
  if (content == from.end() || content->is_null()) {
    if (*role != "assistant") refuse_message(index, ".content: expected a string or an array of text parts");
    message["content"] = has_calls ? Json() : Json("");
  } else if (content->is_array()) {
    message["content"] = joined_parts(*content, index);
  } else if (!content->is_string()) {
    refuse_message(index,
                   fmt::format(".content: expected a string or an array of text parts, found {}", kind_of(*content)));
  }
  if ((*role == "system" || *role == "developer") && message["content"].is_string())
    drop_billing_lines(message["content"].get_ref<std::string&>());
  return message;
}

Json read_tools(const Fields& fields) {
  const Json* choice = fields.find("tool_choice");
  if (choice != nullptr && *choice == "none") return nullptr;
  if (choice != nullptr && *choice != "auto") fields.refuse("tool_choice", "'auto' or 'none'", *choice);
  const Json* tools = fields.array("tools");
  if (tools == nullptr || tools->empty()) return nullptr;
  for (const Json& tool : *tools) {
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    if (!tool.is_object() || function == tool.end() || !function->is_object() || !function->contains("name") ||
        !(*function)["name"].is_string()) {
      throw invalid_request("tools: expected objects like {\"type\": \"function\", \"function\": {\"name\": ...}}");
    }
  }
  return *tools;
}

/// The template's variables: the server's, then the request's, then what other fields say about them.
Json read_kwargs(const Fields& fields, const RequestDefaults& defaults, bool echoes_reasoning) {
  Json kwargs = defaults.template_kwargs;
  const ChatTemplate& chat_template = defaults.model->chat_template;
  // Reasoning that the client sends back stays in the prompt, so that the next turn can start from this one's state.
  if (echoes_reasoning && chat_template.mentions("preserve_thinking") && !kwargs.contains("preserve_thinking")) {
    kwargs["preserve_thinking"] = true;
  }
  if (const auto effort = fields.string("reasoning_effort")) {
    if (*effort == "none") kwargs["enable_thinking"] = false;
    kwargs["reasoning_effort"] = *effort;
  }
  if (const auto thinking = fields.boolean("enable_thinking")) kwargs["enable_thinking"] = *thinking;
  if (const Json* own = fields.object("chat_template_kwargs")) {
    for (const char* name : kReservedKwargs) {
      if (own->contains(name))
        throw invalid_request(fmt::format("chat_template_kwargs.{}: has a field of its own", name));
    }
    kwargs.update(*own);
  }
  return kwargs;
}

}  // namespace

TemplateInput read_conversation(const Json& body, const RequestDefaults& defaults) {
  const Fields fields(body);
  const Json* messages = fields.array("messages");
  if (messages == nullptr || messages->empty())
    throw invalid_request("messages: expected an array with at least one message");
  if (static_cast<int64_t>(messages->size()) > defaults.max_messages) {
    throw invalid_request(
        fmt::format("messages: expected at most {}, found {}", defaults.max_messages, messages->size()));
  }
  TemplateInput input;
  bool echoes_reasoning = false;
  for (const Json& message : *messages) {
    input.messages.push_back(read_message(message, input.messages.size()));
    echoes_reasoning = echoes_reasoning || input.messages.back().contains("reasoning_content");
  }
  input.tools = read_tools(fields);
  input.kwargs = read_kwargs(fields, defaults, echoes_reasoning);
  input.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  return input;
}

}  // namespace onebit
