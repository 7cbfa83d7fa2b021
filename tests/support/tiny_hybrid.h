// A tiny model with one layer of each kind (attention with a window, gated delta net), for tests of what must not
// depend on how rows are divided into batches. A HybridRun is one device with its states; timelines are tracked here.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "support/test_weights.h"

namespace onebit::test {

class TinyHybrid {
 public:
  static constexpr int64_t kVocab = 40, kWidth = 32, kHead = 2, kDim = 16, kTape = 7, kMaxRows = 100;

  TinyHybrid() : plan_("tiny hybrid"), rng_(11) {
    const Value x = plan_.embed(floats({kVocab, kWidth}));
    const Value h = plan_.add(x, attention_layer(plan_.rms_norm(x, ones(kWidth), 1e-6f)));
    const Value y = plan_.add(h, delta_layer(plan_.rms_norm(h, ones(kWidth), 1e-6f)));
    plan_.output("hidden", y);
    plan_.output("last", plan_.gather_rows(y));
  }
  TinyHybrid(const TinyHybrid&) = delete;

  const Plan& plan() const { return plan_; }
  const std::deque<TestWeight>& weights() const { return weights_; }
  std::vector<const State*> states() const { return {&cache_, &net_}; }

 private:
  const Weight& floats(std::vector<int64_t> shape, float scale = 1) {
    const int64_t n = element_count(shape);
    set_floats(weights_.emplace_back(), "w", std::move(shape), random_values(rng_, n, scale));
    return weights_.back().weight;
  }
  const Weight& ones(int64_t n) {
    set_floats(weights_.emplace_back(), "norm", {n}, std::vector<float>(static_cast<size_t>(n), 1.0f));
    return weights_.back().weight;
  }
  const Weight& decays() {
    set_floats(weights_.emplace_back(), "a", {2}, {-0.1f, -0.5f});
    return weights_.back().weight;
  }
  /// x times a random matrix of the given type.
  Value project(Value x, int64_t n_out, BlockType type) {
    const int64_t n_in = plan_.info(x).width;
    std::vector<uint8_t> bytes(static_cast<size_t>(n_out * row_bytes(type, n_in)));
    encode_row(type, random_values(rng_, n_out * n_in, 0.2f).data(), bytes.data(), n_out * n_in);
    set_weight(weights_.emplace_back(), "w", type, {n_out, n_in}, std::move(bytes));
    if (type_info(type).quantised) x = plan_.quantize(x, {.rotate = true});
    return plan_.matmul(x, weights_.back().weight);
  }
  Value attention_layer(Value x) {
    const RopeParams rope{.n_head = kHead, .d_head = kDim, .n_rot = 8, .theta = 10000};
    const Value q = plan_.rope(project(x, kHead * kDim, BlockType::q4_0), rope, nullptr);
    RopeParams one_head = rope;
    one_head.n_head = 1;
    const Value k = plan_.rope(project(x, kDim, BlockType::q4_0), one_head, nullptr);
    plan_.kv_store(k, project(x, kDim, BlockType::q8_0), cache_);
    const Value y =
        plan_.attention(q, cache_, {.n_head = kHead, .n_head_kv = 1, .d_head = kDim, .scale = 0.25f, .window = 50});
    return project(y, kWidth, BlockType::q4_0);
  }
  Value delta_layer(Value x) {
    const DeltaNetParams net{.n_k_head = 1, .n_v_head = 2, .d_k = 16, .d_v = 16, .n_tap = 4};
    const Value u = project(x, 64, BlockType::q8_0);
    const Value y = plan_.delta_net(u, project(x, 2, BlockType::f32), project(x, 2, BlockType::f32),
                                    floats({64, 4}, 0.5f), decays(), floats({2}), net_, net);
    return project(plan_.gated_norm(y, ones(16), project(x, 32, BlockType::q8_0), 1e-6f), kWidth, BlockType::q4_0);
  }

  Plan plan_;
  Rng rng_;
  std::deque<TestWeight> weights_;
  State cache_{"cache", KvState{1, kDim}};
  State net_{"net", DeltaNetState{64, 4, 2, 16, 16}};
};

/// What one sequence of a batch brings.
struct Part {
  int slot = 0;
  int32_t pos = 0;
  std::vector<int32_t> tokens;
  Phase phase = Phase::decode;
  int32_t n_commit = 0;
};

/// The model on a device, with two slots and a third for snapshots; slot s keeps its positions in pages of its own.
class HybridRun {
 public:
  HybridRun(const TinyHybrid& model, std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {
    const Plan* const plans[] = {&model.plan()};
    backend_->place(plans);
    for (const TestWeight& weight : model.weights()) backend_->load(weight.weight);
    pool_ = backend_->make_states(model.states(), {9, 3, TinyHybrid::kTape, 0, CacheType::f16});
    StatePool* const pools[] = {pool_.get()};
    program_ = backend_->compile(model.plan(), pools, {2 * TinyHybrid::kMaxRows, 2});
  }

  StatePool& pool() { return *pool_; }
  /// The pages of a slot's positions.
  static std::span<const int32_t> pages(int slot) { return kPages[slot]; }

  /// Runs one batch; the hidden rows of all parts, in order.
  std::vector<std::vector<float>> run(const std::vector<Part>& parts) {
    std::vector<int32_t> tokens, outputs;
    std::vector<Sequence> sequences;
    for (const Part& part : parts) {
      const auto row = static_cast<int32_t>(tokens.size()), n_tok = static_cast<int32_t>(part.tokens.size());
      sequences.push_back({row, n_tok, part.pos, part.phase, part.slot, part.n_commit, kPages[part.slot]});
      tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
      outputs.push_back(row + n_tok - 1);
    }
    program_->wait(program_->submit({tokens, sequences, outputs}));
    std::vector<std::vector<float>> rows;
    for (size_t r = 0; r < tokens.size(); ++r) {
      rows.emplace_back(TinyHybrid::kWidth);
      program_->read(0, static_cast<int64_t>(r), std::span<float>(rows.back()));
    }
    std::vector<float> last(TinyHybrid::kWidth);
    for (size_t i = 0; i < outputs.size(); ++i) {
      program_->read(1, static_cast<int64_t>(i), std::span<float>(last));
      if (last != rows[static_cast<size_t>(outputs[i])]) rows.clear();  // gathered rows are copies
    }
    return rows;
  }

 private:
  static constexpr int32_t kPages[3][3] = {{4, 0, 7}, {2, 8, 1}, {3, 5, 6}};
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<StatePool> pool_;
  std::unique_ptr<Program> program_;
};

}  // namespace onebit::test
