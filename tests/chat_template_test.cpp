// Chat templates against Python's jinja2: 43 public templates over the conversations of tests/golden/conversations.json
// (made by tools/goldens/chat_templates.py), and the rules of reshaping, segments and limits.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace onebit {
namespace {

using Json = nlohmann::ordered_json;

std::string read_golden(const std::string& name) {
  std::ifstream file(std::string(ONEBIT_SOURCE_DIR) + "/tests/golden/" + name);
  EXPECT_TRUE(file) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// 2025-03-09 07:05:02, the clock of the goldens.
std::tm golden_now() {
  std::tm t{};
  t.tm_year = 125, t.tm_mon = 2, t.tm_mday = 9, t.tm_hour = 7, t.tm_min = 5, t.tm_sec = 2;
  t.tm_wday = 0, t.tm_yday = 67;
  return t;
}

TemplateInput golden_input(const Json& conversation) {
  TemplateInput input;
  input.messages = conversation["messages"];
  input.tools = conversation.value("tools", Json());
  input.kwargs = conversation.value("kwargs", Json::object());
  input.add_generation_prompt = conversation.value("add_generation_prompt", true);
  input.bos_token = "<BOS>";
  input.eos_token = "<EOS>";
  input.now = golden_now;
  return input;
}

std::vector<std::string> template_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(ONEBIT_SOURCE_DIR "/tests/golden/templates")) {
    if (entry.path().extension() == ".jinja") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class PublicTemplate : public testing::TestWithParam<std::string> {};

TEST_P(PublicTemplate, RendersAsJinja2Does) {
  static const Json conversations = Json::parse(read_golden("conversations.json"));
  static const Json goldens = Json::parse(read_golden("chat_templates.json"));
  const ChatTemplate chat(read_golden("templates/" + GetParam() + ".jinja"));
  for (const auto& [name, golden] : goldens.at(GetParam()).items()) {
    SCOPED_TRACE(name);
    try {
      const std::string prompt = prompt_text(chat.render(golden_input(conversations.at(name))));
      if (golden.contains("prompt")) {
        EXPECT_EQ(prompt, golden["prompt"].get<std::string>());
      } else {
        EXPECT_FALSE(golden["raised"]) << prompt;  // other errors: e.g. our filters give lists where jinja2's give generators
      }
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage);
      ASSERT_TRUE(golden.contains("error")) << e.what();
      const std::string wanted = golden["raised"] ? golden["error"].get<std::string>() : "chat template, line";
      EXPECT_NE(std::string(e.what()).find(wanted), std::string::npos) << e.what();
    }
  }
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, PublicTemplate, testing::ValuesIn(template_names()), test_name);

}  // namespace
}  // namespace onebit
