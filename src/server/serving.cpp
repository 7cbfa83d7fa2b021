// Loading, and the loop that runs the scheduler.
#include "server/serving.h"

#include <chrono>
#include <filesystem>

#include "engine/drafter_check.h"
#include "server/api_error.h"

namespace onebit {

namespace {

std::string file_id(const std::string& path) {
  const std::filesystem::path file(path);
  return (file.extension() == ".gguf" ? file.stem() : file.filename()).string();
}

std::unique_ptr<Engine> load_engine(EngineOptions options, TextReading& text) {
  options.on_progress = [&text, told = std::move(options.on_progress)](double share) {
    text.check();
    if (told) told(share);
  };
  return std::make_unique<Engine>(plan_engine(options));
}

}  // namespace

Serving::Serving(const ServerOptions& options, EngineOptions engine_options)
    : Serving(options, std::move(engine_options), TextReading(options.engine.model_path, options.chat_template)) {}

Serving::Serving(const ServerOptions& options, EngineOptions engine_options, TextReading text)
    : engine_(load_engine(std::move(engine_options), text)),
      text_(text.take()),
      model_id_(options.alias.empty() ? file_id(options.engine.model_path) : options.alias),
      started_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      scheduler_(std::make_unique<Scheduler>(*engine_)),
      n_places_(std::make_shared<std::atomic<int64_t>>(0)),
      max_places_(engine_->options().n_slots + options.max_queue) {
  defaults_.model = &text_;
  defaults_.sampling = options.sampling ? options.sampling(text_.sampling) : text_.sampling;
  defaults_.seed = options.seed;
  defaults_.max_tokens = options.max_tokens;
  defaults_.n_ctx = engine_->options().n_ctx;
  defaults_.max_messages = options.max_messages;
  defaults_.template_kwargs = options.template_kwargs;
  defaults_.split_reasoning = options.reasoning_format != "none";
}

std::string Serving::check_drafter() {
  return scheduler_->check_drafter(text_.tokenizer.encode(kDrafterCheckText, ParseSpecial::no)).warning();
}

std::string Serving::drafter_kind() const {
  if (engine_->drafter() == nullptr) return "none";
  return engine_->drafter()->kind();
}

std::shared_ptr<void> Serving::take_place() {
  std::shared_ptr<void> place(nullptr, [n = n_places_](void*) { --*n; });
  if (++*n_places_ > max_places_) {
    throw unavailable(fmt::format("all slots are busy and the queue is full ({} requests); ask again", max_places_));
  }
  return place;
}

RequestId Serving::submit(Request request, std::shared_ptr<Listener> listener) {
  const std::lock_guard lock(closing_);
  if (closed_) throw unavailable("the server is stopping");
  return scheduler_->submit(std::move(request), std::move(listener));
}

std::future<SlotFileReport> Serving::act_on_slot(int32_t slot, SlotAction action, std::string path) {
  const std::lock_guard lock(closing_);
  if (closed_) throw unavailable("the server is stopping");
  return scheduler_->act_on_slot(slot, action, std::move(path));
}

void Serving::run() {
  try {
    while (!stopping_) {
      if (!scheduler_->step()) scheduler_->wait_for_work(1000);
    }
  } catch (...) {
    close();
    throw;
  }
  close();
}

/// Nothing is submitted any more; everything that was is ended.
void Serving::close() {
  {
    const std::lock_guard lock(closing_);
    closed_ = true;
  }
  scheduler_->cancel_all();
}

void Serving::stop() {
  stopping_ = true;
  scheduler_->wake();
}

}  // namespace onebit
