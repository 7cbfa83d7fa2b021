// The handlers that only tell: health, models, properties, slots, metrics, tokens.
#include <algorithm>

#include "server/api_error.h"
#include "server/application.h"
#include "server/reply_format.h"
#include "text/stream_decoder.h"

namespace onebit {

namespace {

HttpReply json_reply(const Json& json) {
  HttpReply reply;
  reply.body = to_text(json);
  return reply;
}

int64_t n_parameters(const GgufFile& file) {
  int64_t n = 0;
  for (const TensorInfo& tensor : file.tensors()) n += tensor.n_elements();
  return n;
}

std::string piece_text(const Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id ? std::string(tokenizer.piece(*id)) : std::string();
}

/// A piece that isn't whole UTF-8 is a list of its bytes.
Json piece_json(std::string_view piece) {
  std::string text;
  Utf8Stream stream;
  stream.push(piece, text);
  stream.finish(text);
  if (text == piece) return text;
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<uint8_t>(c));
  return bytes;
}

}  // namespace

HttpReply Application::health(Serving&, HttpRequest&) { return json_reply({{"status", "ok"}}); }

HttpReply Application::models(Serving& serving, HttpRequest&) {
  const ModelConfig& config = serving.engine().config();
  const GgufFile& file = serving.engine().model().file();
  Json model = {{"id", serving.model_id()},
                {"object", "model"},
                {"created", serving.started()},
                {"owned_by", "1bit"},
                {"device", serving.engine().device().name},
                {"meta",
                 {{"vocab_type", 2},
                  {"n_vocab", config.n_vocab},
                  {"n_ctx_train", config.n_ctx_train},
                  {"n_embd", config.n_embd},
                  {"n_params", n_parameters(file)},
                  {"size", file.file_bytes()}}}};
  return json_reply({{"object", "list"}, {"data", Json::array({std::move(model)})}});
}

HttpReply Application::props(Serving& serving, HttpRequest&) {
  const EngineOptions& engine = serving.engine().options();
  const Tokenizer& tokenizer = serving.text().tokenizer;
  Json params = sampling_json(serving.defaults().sampling);
  params["seed"] = serving.defaults().seed ? Json(*serving.defaults().seed) : Json(-1);
  params["n_predict"] = serving.defaults().max_tokens;
  Json settings = {{"id", 0}, {"n_ctx", engine.n_ctx}, {"params", std::move(params)}};
  return json_reply(
      {{"default_generation_settings", std::move(settings)},
       {"total_slots", engine.n_slots},
       {"model_alias", serving.model_id()},
       {"model_path", engine.model_path},
       {"chat_template", serving.text().chat_template.source()},
       {"thinking_switch", serving.text().chat_template.supports_thinking_switch()},
       {"modalities", {{"vision", false}, {"audio", false}}},
       {"bos_token", piece_text(tokenizer, tokenizer.bos())},
       {"eos_token", piece_text(tokenizer, tokenizer.eos())},
       {"device", serving.engine().device().name},
       {"speculative", {{"kind", serving.drafter_kind()}, {"n_max", engine.draft_max}, {"p_min", engine.draft_p_min}}},
       {"build_info", options_.version},
       {"is_sleeping", false}});
}

HttpReply Application::slots(Serving& serving, HttpRequest& request) {
  const std::vector<SlotStatus> slots = serving.scheduler().slots();
  const bool all_busy = std::all_of(slots.begin(), slots.end(), [](const SlotStatus& s) { return s.request != 0; });
  if (all_busy && find_header(request.query, "fail_on_no_slot").value_or("0") == "1")
    throw unavailable("no slot is idle");
  Json list = Json::array();
  for (const SlotStatus& slot : slots) {
    list.push_back({{"id", slot.slot},
                    {"id_task", slot.request == 0 ? Json(-1) : Json(slot.request)},
                    {"n_ctx", serving.engine().options().n_ctx},
                    {"speculative", serving.engine().drafter() != nullptr},
                    {"is_processing", slot.request != 0},
                    {"n_past", slot.n_past},
                    {"n_prompt_tokens", slot.n_prompt},
                    {"next_token", {{"n_decoded", slot.n_generated}}}});
  }
  return json_reply(list);
}

HttpReply Application::metrics(Serving& serving, HttpRequest&) {
  HttpReply reply;
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  reply.body = serving.metrics().text(serving.scheduler().slots(), serving.scheduler().n_queued(),
                                      serving.scheduler().prefix_cache());
  return reply;
}

HttpReply Application::tokenize(Serving& serving, HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Fields fields(body);
  const Tokenizer& tokenizer = serving.text().tokenizer;
  const auto content = fields.string("content");
  if (!content) throw invalid_request("content: expected a string, found nothing");
  const bool special = fields.boolean("parse_special").value_or(true);
  std::vector<int32_t> ids = tokenizer.encode(*content, special ? ParseSpecial::yes : ParseSpecial::no);
  if (fields.boolean("add_special").value_or(false)) tokenizer.add_special_ids(ids);
  if (!fields.boolean("with_pieces").value_or(false)) return json_reply({{"tokens", ids}});
  Json tokens = Json::array();
  for (const int32_t id : ids) tokens.push_back({{"id", id}, {"piece", piece_json(tokenizer.piece(id))}});
  return json_reply({{"tokens", std::move(tokens)}});
}

HttpReply Application::detokenize(Serving& serving, HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Json* tokens = Fields(body).array("tokens");
  if (tokens == nullptr) throw invalid_request("tokens: expected an array of token ids, found nothing");
  std::vector<int32_t> ids;
  for (const Json& token : *tokens) ids.push_back(read_token_id("tokens", token, serving.text().tokenizer));
  return json_reply({{"content", serving.text().tokenizer.decode(ids)}});
}

HttpReply Application::apply_template(Serving& serving, HttpRequest& request) {
  const Json body = parse_body(request.body);
  return json_reply({{"prompt", chat_prompt(serving.text(), read_conversation(body, serving.defaults())).text}});
}

}  // namespace onebit
