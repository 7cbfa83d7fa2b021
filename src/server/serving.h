// What serves once the model is loaded: the engine with its scheduler, the text side, and the way in for requests.
// Handlers on many threads share it; only the engine's thread calls run().
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "engine/engine.h"
#include "engine/scheduler.h"
#include "engine/text_model.h"
#include "server/generation_request.h"
#include "server/metrics.h"
#include "server/server.h"

namespace onebit {

class Serving {
 public:
  /// Loads; throws what Engine throws.
  Serving(const ServerOptions& options, EngineOptions engine_options);

  const Engine& engine() const { return *engine_; }
  const Scheduler& scheduler() const { return *scheduler_; }
  const TextModel& text() const { return text_; }
  const RequestDefaults& defaults() const { return defaults_; }
  const std::string& model_id() const { return model_id_; }
  /// Seconds since 1970.
  int64_t started() const { return started_; }
  /// none, dflash, dflash2 or mtp.
  std::string drafter_kind() const;
  /// What is wrong with the drafter, or "". Before run().
  std::string check_drafter();
  Metrics& metrics() { return metrics_; }

  /// A place among the requests in slots and in the queue, given back when the pointer is released. Throws
  /// ApiError(503) when all are taken.
  std::shared_ptr<void> take_place();
  /// Throws ApiError(503) once run() has ended.
  RequestId submit(Request request, std::shared_ptr<Listener> listener);
  void cancel(RequestId id) { scheduler_->cancel(id); }
  /// As Scheduler::act_on_slot(). Throws ApiError(503) once run() has ended.
  std::future<SlotFileReport> act_on_slot(int32_t slot, SlotAction action, std::string path);

  /// The engine's loop: until stop() or an exception that the scheduler couldn't turn into a failed request. Ends all
  /// requests before it returns.
  void run();
  void stop();

 private:
  Serving(const ServerOptions& options, EngineOptions engine_options, TextReading text);
  void close();

  std::unique_ptr<Engine> engine_;
  TextModel text_;
  RequestDefaults defaults_;
  std::string model_id_;
  int64_t started_;
  std::unique_ptr<Scheduler> scheduler_;
  Metrics metrics_;
  std::shared_ptr<std::atomic<int64_t>> n_places_;
  int64_t max_places_;
  std::atomic<bool> stopping_ = false;
  std::mutex closing_;  // guards closed_ together with submissions
  bool closed_ = false;
};

}  // namespace onebit
