// POST /slots/N?action=save|restore|erase: the state of a slot to a file of --slot-save-path and back, as llama-server
// does it.
#include <charconv>
#include <chrono>

#include "server/api_error.h"
#include "server/application.h"

namespace onebit {

namespace {

constexpr int kPollMs = 20;
constexpr size_t kMaxName = 200;

int32_t read_slot_number(const std::string& path) {
  const std::string_view text = std::string_view(path).substr(std::string_view("/slots/").size());
  int32_t slot = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slot);
  if (error != std::errc() || end != text.data() + text.size())
    throw invalid_request(fmt::format("{}: expected the number of a slot after /slots/", printable(path)));
  return slot;
}

SlotAction read_action(const HttpRequest& request) {
  const std::string action = find_header(request.query, "action").value_or("");
  if (action == "save") return SlotAction::save;
  if (action == "restore") return SlotAction::restore;
  if (action == "erase") return SlotAction::erase;
  throw invalid_request(fmt::format("action: expected save, restore or erase, found '{}'", printable(action)));
}

/// A plain name, so that it can't lead out of the folder: letters, digits, and . _ - except in front.
std::string read_file_name(const Json& body) {
  const auto name = Fields(body).string("filename");
  if (!name) throw invalid_request("filename: expected a name, found nothing");
  bool plain = !name->empty() && name->size() <= kMaxName && name->front() != '.' && name->front() != '-';
  for (const char c : *name) {
    plain = plain && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                      c == '_' || c == '-');
  }
  if (!plain) {
    throw invalid_request(
        fmt::format("filename: expected up to {} letters, digits and . _ - (not . or - in front), found '{}'", kMaxName,
                    printable(name->substr(0, kMaxName))));
  }
  return *name;
}

/// Waits for the engine's thread, as long as the client does.
SlotFileReport await(std::future<SlotFileReport> report, const HttpClient& client) {
  while (report.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    const auto wait = client.wait(-1, kPollMs);
    if (wait == HttpClient::Wait::gone) throw ApiError(499, error_type(499), "the client has left");
    if (wait == HttpClient::Wait::stopping) throw unavailable("the server is stopping");
  }
  return report.get();
}

Json report_json(SlotAction action, int32_t slot, const std::string& name, const SlotFileReport& report) {
  if (action == SlotAction::erase) return {{"id_slot", slot}, {"n_erased", report.n_tokens}};
  const bool save = action == SlotAction::save;
  return {{"id_slot", slot},
          {"filename", name},
          {save ? "n_saved" : "n_restored", report.n_tokens},
          {save ? "n_written" : "n_read", report.n_bytes},
          {"timings", {{save ? "save_ms" : "restore_ms", report.ms}}}};
}

}  // namespace

HttpReply Application::slot_action(Serving& serving, HttpRequest& request) {
  const int32_t slot = read_slot_number(request.path);
  const SlotAction action = read_action(request);
  std::string name, path;
  if (action != SlotAction::erase) {
    if (options_.slot_save_path.empty())
      throw not_supported("slots can't be saved: the server was started without --slot-save-path DIR");
    name = read_file_name(parse_body(request.body));
    path = options_.slot_save_path + "/" + name;
  }
  const SlotFileReport report = await(serving.act_on_slot(slot, action, path), *request.client);
  HttpReply reply;
  reply.body = to_text(report_json(action, slot, name, report));
  return reply;
}

}  // namespace onebit
