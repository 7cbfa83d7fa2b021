// The life of a request on its connection's thread.
#include "server/answering.h"

#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/answer_channel.h"
#include "server/api_error.h"
#include "server/reply_format.h"

namespace onebit {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLastStepMs = 1000;

/// A submitted request. However its connection's thread leaves it, it is cancelled unless it has ended, counted, and
/// logged in one line.
class RunningRequest {
 public:
  RunningRequest(Serving& serving, GenerationRequest request, Wake wake, const HttpClient& client,
                 const AnsweringOptions& options)
      : serving_(serving),
        request_(std::move(request)),
        client_(client),
        options_(options),
        format_(request_, serving.text().tokenizer, serving.model_id(), serving.drafter_kind()),
        channel_(std::make_shared<AnswerChannel>(serving.text().tokenizer, request_.text, wake, serving.take_place())),
        id_(serving.submit(request_.request, channel_)) {}
  RunningRequest(const RunningRequest&) = delete;

  ~RunningRequest() {
    try {
      conclude();
    } catch (const std::exception&) {
      // Out of memory; the request is cancelled all the same.
    }
  }

  Json whole() {
    AnswerPart all;
    while (!end_.finished) {
      const auto wait = next(-1, all);
      if (wait == HttpClient::Wait::gone) throw ApiError(499, error_type(499), "the client has left");
      if (wait == HttpClient::Wait::stopping) break;
    }
    conclude();
    throw_unless_answered();
    all.statistics = end_.statistics;
    all.reason = end_.reason;
    return format_.whole(all, channel_->matched_stop());
  }

  void stream(HttpSink& sink) {
    if (!send(sink, format_.first_chunk())) return;
    auto silent_since = Clock::now();
    while (!end_.finished) {
      AnswerPart part;
      const auto wait = next(ms_left(silent_since), part);
      if (wait == HttpClient::Wait::gone) return;
      if (wait == HttpClient::Wait::stopping) break;
      bool sent = false;
      if (!send_part(sink, part, sent)) return;
      if (!sent && ms_left(silent_since) == 0) {
        if (!sink.write(": still here\n\n")) return;
        sent = true;
      }
      if (sent) silent_since = Clock::now();
    }
    conclude();
    try {
      throw_unless_answered();
      if (send(sink, format_.last_chunk(end_, channel_->matched_stop()))) send(sink, format_.usage_chunk(end_));
    } catch (const ApiError& error) {
      serving_.metrics().count_error(error.status());
      send(sink, error_json(error));
    }
    sink.write(format_.done());
  }

 private:
  /// Waits for news and adds them to `part`.
  HttpClient::Wait next(int timeout_ms, AnswerPart& part) {
    const auto wait = client_.wait(channel_->fd(), timeout_ms);
    if (wait == HttpClient::Wait::ready) add(channel_->take(), part);
    return wait;
  }

  void add(AnswerPart news, AnswerPart& part) {
    part.text.content += news.text.content;
    part.text.reasoning += news.text.reasoning;
    part.tokens.insert(part.tokens.end(), news.tokens.begin(), news.tokens.end());
    if (news.finished) {
      end_ = news;
      end_.text = {};
      end_.tokens.clear();
    }
    part.prompt_moved = news.prompt_moved;
    part.n_prompt_done = news.n_prompt_done;
    part.n_prompt = news.n_prompt;
    part.n_generated = news.n_generated;
    part.prompt_ms = news.prompt_ms;
    part.predicted_ms = news.predicted_ms;
  }

  /// Counts and logs the end, once.
  void conclude() {
    if (std::exchange(concluded_, true)) return;
    if (!end_.finished) {
      serving_.cancel(id_);
      await_end();
    }
    const Statistics& s = end_.statistics;
    const double first_ms = channel_->first_token_ms();
    serving_.metrics().count(end_.reason, s, first_ms);
    options_.logger->info(
        "request {}: slot {}, prompt {} cached {} generated {}, first token {:.0f} ms, {:.1f} tok/s, drafts {}/{} "
        "({:.2f} tokens a step, by position {}), {:.0f} ms, {}",
        id_, s.slot, s.prompt_n, s.cache_n, s.predicted_n, first_ms, s.predicted_per_second(), s.draft_n_accepted,
        s.draft_n, s.tokens_per_step(), fmt::join(s.accepted_per_position, " "), channel_->elapsed_ms(),
        finish_name(end_.reason));
  }

  /// After cancel(): the engine answers within a step, unless it is stuck in a long one.
  void await_end() {
    const auto deadline = Clock::now() + std::chrono::milliseconds(kLastStepMs);
    while (!end_.finished && Clock::now() < deadline) {
      pollfd fd{channel_->fd(), POLLIN, 0};
      if (::poll(&fd, 1, kLastStepMs) <= 0) break;
      AnswerPart rest;
      add(channel_->take(), rest);
    }
    if (!end_.finished) end_.reason = FinishReason::cancelled;
  }

  /// Milliseconds until a comment is due.
  int ms_left(Clock::time_point silent_since) const {
    const auto silent = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - silent_since).count();
    return static_cast<int>(std::max<int64_t>(options_.keep_alive_s * 1000 - silent, 0));
  }

  /// `sent`: whether there was anything to send. False: the client is gone.
  bool send_part(HttpSink& sink, const AnswerPart& part, bool& sent) {
    if (part.prompt_moved && request_.return_progress) {
      sent = true;
      if (!send(sink, format_.progress_chunk(part, channel_->n_cached()))) return false;
    }
    const Json chunk = format_.text_chunk(part);
    sent = sent || !chunk.is_null();
    return send(sink, chunk);
  }

  static bool send(HttpSink& sink, const Json& json) { return json.is_null() || sink.write(ReplyFormat::event(json)); }

  void throw_unless_answered() const {
    if (!end_.finished || end_.reason == FinishReason::cancelled) throw unavailable("the server is stopping");
    if (end_.reason == FinishReason::error) throw ApiError(500, error_type(500), "the engine failed: " + end_.message);
  }

  Serving& serving_;
  const GenerationRequest request_;
  const HttpClient& client_;
  const AnsweringOptions options_;
  ReplyFormat format_;
  std::shared_ptr<AnswerChannel> channel_;
  const RequestId id_;
  AnswerPart end_;
  bool concluded_ = false;
};

}  // namespace

HttpReply answer_request(Serving& serving, Api api, HttpRequest& request, const AnsweringOptions& options) {
  const Json body = parse_body(request.body);
  request.body = {};
  const bool streams = Fields(body).boolean("stream").value_or(false);
  auto running = std::make_shared<RunningRequest>(serving, read_generation_request(api, body, serving.defaults()),
                                                  streams ? Wake::each_part : Wake::at_end, *request.client, options);
  HttpReply reply;
  if (streams) {
    reply.content_type = "text/event-stream";
    reply.headers.emplace_back("Cache-Control", "no-cache");
    reply.headers.emplace_back("X-Accel-Buffering", "no");
    reply.stream = [running](HttpSink& sink) { running->stream(sink); };
  } else {
    reply.body = to_text(running->whole());
  }
  return reply;
}

}  // namespace onebit
