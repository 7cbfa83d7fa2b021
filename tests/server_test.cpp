// A whole server in this process, with a tiny random model: loading, queueing, leaving, stopping. What real clients see
// of the real program is in tests/http.
#include "server/server.h"

#include <gtest/gtest.h>
#include <httplib.h>
#include <spdlog/sinks/null_sink.h>

#include <future>
#include <thread>

#include "base/error.h"
#include "server/json.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/tiny_text_model.h"

namespace onebit {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::expect_error;

/// True as soon as `condition` holds, within 20 s.
template <class F>
bool eventually(F condition) {
  for (int i = 0; i < 4000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return false;
}

class ServerTest : public testing::Test {
 protected:
  ServerTest() {
    options_.engine.model_path = folder_.file("tiny.gguf");
    options_.engine.device = "ref";
    options_.engine.n_ctx = 4096;
    options_.port = 0;
    options_.logger = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::null_sink_mt>());
    test::write_tiny_text_model(options_.engine.model_path);
  }
  ~ServerTest() override { stop(); }

  void start() {
    std::promise<std::string> url;
    options_.on_listen = [&](const std::string& u) { url.set_value(u); };
    server_ = std::make_unique<Server>(options_);
    ended_ = std::async(std::launch::async, [this] { server_->run(); });
    url_ = url.get_future().get();
    ASSERT_TRUE(eventually([&] { return get("/health") == 200; }));
  }
  /// What run() threw comes out of here.
  void stop() {
    if (!ended_.valid()) return;
    server_->stop();
    ended_.get();
  }

  httplib::Client client() const {
    httplib::Client client(url_);
    client.set_read_timeout(20);
    return client;
  }
  int get(const char* path) const {
    auto c = client();
    const auto reply = c.Get(path);
    return reply ? reply->status : 0;
  }
  Json get_json(const char* path) const {
    auto c = client();
    return Json::parse(c.Get(path)->body);
  }
  int n_busy() const {
    int n = 0;
    for (const Json& slot : get_json("/slots")) n += slot["is_processing"] ? 1 : 0;
    return n;
  }
  static std::string body(int max_tokens, bool stream) {
    return to_text(
        {{"prompt", "abc"}, {"max_tokens", max_tokens}, {"stream", stream}, {"ignore_eos", true}, {"temperature", 0}});
  }

  test::TempDir folder_;
  ServerOptions options_;
  std::unique_ptr<Server> server_;
  std::future<void> ended_;
  std::string url_;
};

/// A stream that is read on a thread of its own.
class Stream {
 public:
  Stream(httplib::Client client, std::string body) : client_(std::move(client)) {
    thread_ = std::thread([this, body = std::move(body)] {
      httplib::Request request;
      request.method = "POST";
      request.path = "/v1/completions";
      request.body = body;
      request.content_receiver = [this](const char* data, size_t n, uint64_t, uint64_t) {
        const std::lock_guard lock(mutex_);
        text_.append(data, n);
        return !leaving_;
      };
      client_.send(request);
      ended_ = true;
    });
  }
  ~Stream() { leave(); }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  bool ended() const { return ended_; }
  void leave() {
    leaving_ = true;
    client_.stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  httplib::Client client_;
  mutable std::mutex mutex_;
  std::string text_;
  std::atomic<bool> leaving_ = false, ended_ = false;
  std::thread thread_;
};

TEST_F(ServerTest, AnswersWithTheSameTextInEveryWay) {
  start();
  auto c = client();
  const Json whole = Json::parse(c.Post("/v1/completions", body(30, false), "application/json")->body);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 30);
  Stream stream(client(), body(30, true));
  ASSERT_TRUE(eventually([&] { return stream.ended(); }));
  std::string text, rest = stream.text();
  for (size_t end; (end = rest.find("\n\n")) != std::string::npos; rest.erase(0, end + 2)) {
    const std::string event = rest.substr(0, end);
    if (event != "data: [DONE]") text += Json::parse(event.substr(6))["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, whole["choices"][0]["text"]);
}

TEST_F(ServerTest, AStreamThatWaitsIsKeptAlive) {
  options_.keep_alive_s = 1;
  start();
  Stream running(client(), body(4000, true));
  ASSERT_TRUE(eventually([&] { return n_busy() == 1; }));
  Stream waiting(client(), body(5, true));
  ASSERT_TRUE(eventually([&] { return waiting.text().find(": still here\n\n") != std::string::npos; }));
  EXPECT_EQ(waiting.text().substr(0, 2), ": ");  // the text comes later
}

TEST_F(ServerTest, AFullQueueIsTold) {
  options_.max_queue = 1;
  start();
  Stream running(client(), body(4000, true));
  ASSERT_TRUE(eventually([&] { return n_busy() == 1; }));
  Stream waiting(client(), body(4000, true));
  auto c = client();
  ASSERT_TRUE(
      eventually([&] { return c.Get("/metrics")->body.find("llamacpp:requests_deferred 1\n") != std::string::npos; }));
  const auto refused = c.Post("/v1/completions", body(1, false), "application/json");
  EXPECT_EQ(refused->status, 503);
  EXPECT_TRUE(refused->has_header("Retry-After"));
  waiting.leave();
  running.leave();
  EXPECT_TRUE(eventually([&] { return n_busy() == 0; }));
  EXPECT_EQ(c.Post("/v1/completions", body(1, false), "application/json")->status, 200);
}

TEST_F(ServerTest, WhoLeavesIsForgotten) {
  start();
  for (const bool stream : {true, false}) {
    Stream leaver(client(), body(4000, stream));
    ASSERT_TRUE(eventually([&] { return n_busy() == 1; }));
    leaver.leave();
    ASSERT_TRUE(eventually([&] { return n_busy() == 0; }));
  }
  auto c = client();
  EXPECT_NE(c.Get("/metrics")->body.find("finish_reason=\"cancelled\"} 2\n"), std::string::npos);
}

TEST_F(ServerTest, StoppingEndsEverybody) {
  start();
  Stream streaming(client(), body(4000, true));
  ASSERT_TRUE(eventually([&] { return n_busy() == 1; }));
  Stream waiting(client(), body(4000, true)), whole(client(), body(4000, false));
  auto c = client();
  ASSERT_TRUE(
      eventually([&] { return c.Get("/metrics")->body.find("llamacpp:requests_deferred 2\n") != std::string::npos; }));
  const auto before = std::chrono::steady_clock::now();
  stop();
  EXPECT_LT(std::chrono::steady_clock::now() - before, seconds(4));
  ASSERT_TRUE(eventually([&] { return streaming.ended() && waiting.ended() && whole.ended(); }));
  for (const Stream* stream : {&streaming, &waiting}) {
    EXPECT_NE(stream->text().find("the server is stopping"), std::string::npos);
    EXPECT_TRUE(stream->text().ends_with("data: [DONE]\n\n"));
  }
  EXPECT_EQ(get("/health"), 0);
}

TEST_F(ServerTest, ADefaultIsASettingOfTheServer) {
  options_.alias = "mine";
  options_.seed = 3;
  options_.max_tokens = 2;
  options_.sampling = [](SamplingOptions s) {
    s.temperature = 0.25;
    return s;
  };
  start();
  auto c = client();
  const Json reply = Json::parse(c.Post("/completion", R"({"prompt": "abc"})", "application/json")->body);
  EXPECT_EQ(reply["model"], "mine");
  EXPECT_EQ(reply["tokens_predicted"], 2);
  EXPECT_EQ(reply["generation_settings"]["seed"], 3);
  EXPECT_EQ(reply["generation_settings"]["temperature"], 0.25);
}

TEST_F(ServerTest, FilesThatCannotBeLoadedEndIt) {
  options_.engine.model_path = folder_.file("missing.gguf");
  Server server(options_);
  test::expect_refused({"missing.gguf"}, [&] { server.run(); });
}

TEST_F(ServerTest, StoppedWhileLoading) {
  options_.engine.on_progress = [this](double) { server_->stop(); };
  server_ = std::make_unique<Server>(options_);
  EXPECT_NO_THROW(server_->run());
}

TEST_F(ServerTest, OptionsThatDoNotFit) {
  const auto usage = [&](const char* word, auto change) {
    ServerOptions options = options_;
    change(options);
    expect_error(ErrorKind::usage, {word}, [&] { Server(options).run(); });
  };
  usage("--host", [](ServerOptions& o) { o.host = "0.0.0.0"; });
  usage("--port", [](ServerOptions& o) { o.port = 70'000; });
  usage("--api-key", [](ServerOptions& o) { o.api_keys = {""}; });
  usage("--reasoning-format", [](ServerOptions& o) { o.reasoning_format = "x"; });
  usage("--chat-template-kwargs", [](ServerOptions& o) { o.template_kwargs = Json::array(); });
}

}  // namespace
}  // namespace onebit
