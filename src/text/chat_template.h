// A model's chat template: owns the parsed Jinja text; messages, tools and settings come in, the prompt goes out as
// segments that say which characters came from the request, so that special-token text a user typed is never taken for
// a control token.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace onebit {

namespace jinja {
struct Template;
}

/// A piece of a prompt. Neighbouring segments differ in `from_input`. The text is one string for the tokenizer (words
/// may span segments); only a special token that touches a byte with `from_input` must be read as plain text.
struct Segment {
  std::string text;
  bool from_input = false;
};

/// What a template is rendered with. Everything in `messages`, `tools` and `kwargs` counts as input from the request.
struct TemplateInput {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();  ///< OpenAI chat messages
  nlohmann::ordered_json tools;  ///< array of {"type":"function","function":{...}}, or null
  bool add_generation_prompt = true;
  std::string bos_token;
  std::string eos_token;
  nlohmann::ordered_json kwargs =
      nlohmann::ordered_json::object();  ///< further variables: enable_thinking, documents, ...
  std::function<std::tm()> now;          ///< for strftime_now; empty = the local wall clock
};

/// What a template understands, found once by rendering small conversations with it; messages are reshaped to fit.
struct TemplateTraits {
  bool system_role = true;       ///< renders a leading system message (else it moves into the first user message)
  bool late_system = true;       ///< accepts system messages after the first (else they are merged into it)
  bool developer_role = false;   ///< names and renders the role `developer` (else it becomes `system`)
  bool object_arguments = true;  ///< wants tool-call arguments as an object (else as JSON text)
  bool content_parts = false;    ///< walks content that is a list of parts (else text parts are joined by line ends)
  bool null_content = true;      ///< wants null for the missing content of a tool-calling turn (else "")
  bool null_tools = true;        ///< takes none for no tools (else an empty list)
  bool thinking_switch = false;  ///< `enable_thinking` changes the prompt
};

/// The template used when a file has none: ChatML.
extern const char* const kChatMlTemplate;

class ChatTemplate {
 public:
  /// Parses a template. Throws Error(refused) with line and column on a syntax error.
  explicit ChatTemplate(std::string source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// Renders a prompt; safe to call from several threads. Throws Error(usage) when the messages are malformed, when the
  /// template raises an exception (its own message is kept) or fails on them, and when a limit is exceeded.
  std::vector<Segment> render(const TemplateInput& input) const;

  const std::string& source() const { return source_; }
  const TemplateTraits& traits() const { return traits_; }
  /// True when `enable_thinking` changes what this template renders.
  bool supports_thinking_switch() const { return traits_.thinking_switch; }
  /// True when the template's text names `variable` (for settings such as preserve_thinking).
  bool mentions(std::string_view variable) const { return source_.find(variable) != std::string::npos; }

 private:
  std::string source_;
  std::unique_ptr<const jinja::Template> template_;
  TemplateTraits traits_;
};

/// The whole prompt as one string.
std::string prompt_text(const std::vector<Segment>& prompt);

/// True when the prompt ends inside a `<think>` block that the template opened, so that generation starts as reasoning.
bool template_opens_think(const std::vector<Segment>& prompt);

}  // namespace onebit
