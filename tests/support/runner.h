// One model on one device with one sequence, without engine or scheduler: feed rows, read logits and tapped hidden
// states.
#pragma once

#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/model.h"

namespace onebit::test {

class Runner {
 public:
  /// Taps every block when `tap` is set. Caches are f32 unless told otherwise.
  Runner(const std::string& path, std::unique_ptr<Backend> backend, bool tap = false, W4a4 w4a4 = W4a4::automatic,
         CacheType cache = CacheType::f32)
      : model_(Model::open(path, w4a4)), backend_(std::move(backend)) {
    const ModelConfig& c = model_->config();
    rows_ = {"taps", RowsState{c.n_layer * c.n_embd}};
    taps_.layers.resize(static_cast<size_t>(c.n_layer));
    std::iota(taps_.layers.begin(), taps_.layers.end(), 1);
    taps_.rows = &rows_;
    const Plan plan = model_->plan(tap ? &taps_ : nullptr);
    Plan load("load taps");
    load.output("rows", load.load_rows(rows_));
    const Plan* const plans[] = {&plan, &load};
    backend_->place(plans);
    for (const Weight* w : plan.weights()) backend_->load(*w);
    states_ = backend_->make_states(model_->states(), {.n_pages = kPages, .n_slots = 1, .n_tape = 16, .cache = cache});
    tap_states_ = backend_->make_states({&rows_}, {.n_rows = kMaxRows});
    StatePool* const pools[] = {states_.get(), tap_states_.get()};
    program_ = backend_->compile(plan, pools, {kMaxRows, kMaxRows});
    load_ = backend_->compile(load, pools, {kMaxRows, 1});
    states_->clear_slot(0);
    for (int32_t i = 0; i < kPages; ++i) pages_.push_back(i);
  }

  Model& model() { return *model_; }
  int64_t n_vocab() const { return model_->config().n_vocab; }

  /// Forgets the sequence.
  void clear() { states_->clear_slot(0); }
  /// Evaluates tokens at positions from `pos` on; logits of every row [n, n_vocab].
  std::vector<float> run(std::span<const int32_t> tokens, int64_t pos, Phase phase, int32_t n_commit = 0) {
    const auto n = static_cast<int32_t>(tokens.size());
    const Sequence sequence{0, n, static_cast<int32_t>(pos), phase, 0, n_commit, pages_};
    std::vector<int32_t> outputs(tokens.size());
    std::iota(outputs.begin(), outputs.end(), 0);
    Batch batch;
    batch.tokens = tokens;
    batch.sequences = {&sequence, 1};
    batch.outputs = outputs;
    batch.tap_rows = outputs;
    program_->wait(program_->submit(batch));
    std::vector<float> logits(tokens.size() * static_cast<size_t>(n_vocab()));
    program_->read(0, 0, logits);
    return logits;
  }

  /// Hidden states after every block for row `row` of the last run [n_layer * n_embd].
  std::vector<float> taps(int32_t row) {
    const Sequence sequence{0, 1, 0, Phase::draft, 0, 0, {}};
    Batch batch;
    batch.sequences = {&sequence, 1};
    batch.source_rows = {&row, 1};
    load_->wait(load_->submit(batch));
    std::vector<float> hidden(static_cast<size_t>(std::get<RowsState>(rows_.kind).width));
    load_->read(0, 0, hidden);
    return hidden;
  }

 private:
  static constexpr int32_t kPages = 16;
  static constexpr int64_t kMaxRows = 512;

  std::unique_ptr<Model> model_;
  std::unique_ptr<Backend> backend_;
  State rows_;
  Taps taps_;
  std::vector<int32_t> pages_;
  std::unique_ptr<StatePool> states_, tap_states_;
  std::unique_ptr<Program> program_, load_;
};

}  // namespace onebit::test
