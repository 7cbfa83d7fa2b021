// Multi-token heads, in the target's file and beside it, of dense models and of mixtures: against the definition in
// double precision, and as drafters.
#include "model/mtp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/devices.h"
#include "support/engine_run.h"
#include "support/runner.h"

namespace onebit::test {
namespace {

using Vec = std::vector<double>;
using Ids = std::vector<int32_t>;

TinyShape shape_with_head(bool mixture) {
  TinyShape shape;
  shape.mtp = true;
  shape.n_expert = mixture ? 5 : 0;
  shape.seed = 3;
  return shape;
}

/// Copies what `wanted` names of a file, with other counts of blocks.
void copy_part(const std::string& from, const std::string& to, uint32_t n_block, uint32_t n_mtp,
               const std::function<bool(const std::string&)>& wanted) {
  const GgufFile file = GgufFile::open(from);
  GgufWriter out(to);
  for (const MetaEntry& entry : file.metadata()) out.add(entry.key, entry.value);
  out.add(keys::block_count(file.architecture()), n_block);
  out.add(keys::nextn_predict_layers(file.architecture()), n_mtp);
  for (const TensorInfo& t : file.tensors()) {
    if (wanted(t.name)) out.declare(t.name, t.type, t.shape);
  }
  for (const TensorInfo& t : file.tensors()) {
    if (wanted(t.name)) out.write(t.name, t.data);
  }
  out.finish();
}

/// One model three times: with its head, without, and the head alone.
struct Files {
  explicit Files(bool mixture) : shape(shape_with_head(mixture)) {
    write_tiny_target(whole, shape);
    const auto n = static_cast<uint32_t>(shape.n_layer);
    const std::string block = keys::block(shape.n_layer, "");
    copy_part(whole, trunk, n, 0, [&](const std::string& name) { return !name.starts_with(block); });
    copy_part(whole, head, n + 1, 1, [&](const std::string& name) { return name.starts_with(block); });
  }
  TempDir dir;
  TinyShape shape;
  std::string whole = dir.file("whole.gguf"), trunk = dir.file("trunk.gguf"), head = dir.file("head.gguf");
};

// --- the definition --------------------------------------------------------------------------------------------------

/// The head's block in double precision, row by row.
class Definition {
 public:
  Definition(const std::string& path, const TinyShape& shape) : file_(GgufFile::open(path)), s_(shape) {}

  /// The state behind the trunk's final norm.
  Vec final_norm(const Vec& x) const { return normed(x, tensor(keys::kOutputNorm)); }
  /// Takes the token of the next position with the hidden state of the one before; the head's own hidden state.
  Vec step(int32_t token, const Vec& hidden) {
    const Vec embedding = tensor(keys::kTokenEmbd);
    const auto begin = embedding.begin() + token * s_.n_embd;
    Vec joined = normed({begin, begin + s_.n_embd}, weight(keys::kNextnEnorm));
    const Vec h = normed(hidden, weight(keys::kNextnHnorm));
    joined.insert(joined.end(), h.begin(), h.end());
    Vec c = times(keys::kNextnEhProj, joined);
    c = plus(c, attention(normed(c, weight(keys::kAttnNorm))));
    const Vec b = normed(c, weight(keys::kPostAttentionNorm));
    c = plus(c, s_.n_expert > 0 ? mixture(b) : swiglu(b, keys::kFfnGate, keys::kFfnUp, keys::kFfnDown));
    return normed(c, weight(keys::kNextnSharedHeadNorm));
  }
  Vec logits(const Vec& hidden) const { return product(tensor(keys::kOutput), hidden); }

 private:
  Vec tensor(const std::string& name) const {
    const TensorInfo& t = file_.tensor(name);
    std::vector<float> values(t.data.size() / 4);
    std::memcpy(values.data(), t.data.data(), t.data.size());
    return {values.begin(), values.end()};
  }
  Vec weight(const char* role) const { return tensor(keys::block(s_.n_layer, role)); }
  Vec expert(const char* role, int64_t e) const {
    const Vec all = weight(role);
    const int64_t n = static_cast<int64_t>(all.size()) / s_.n_expert;
    return {all.begin() + e * n, all.begin() + (e + 1) * n};
  }
  static Vec product(const Vec& w, const Vec& x) {
    Vec y(w.size() / x.size());
    for (size_t i = 0; i < w.size(); ++i) y[i / x.size()] += w[i] * x[i % x.size()];
    return y;
  }
  Vec times(const char* role, const Vec& x) const { return product(weight(role), x); }
  static Vec plus(Vec a, const Vec& b, double scale = 1) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += scale * b[i];
    return a;
  }
  static Vec normed(Vec x, const Vec& w) {
    double square = 0;
    for (const double v : x) square += v * v;
    for (size_t i = 0; i < x.size(); ++i) x[i] *= w[i] / std::sqrt(square / static_cast<double>(x.size()) + 1e-6);
    return x;
  }
  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  /// silu(gate) * up
  static Vec gated(Vec gate, const Vec& up) {
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= sigmoid(gate[i]) * up[i];
    return gate;
  }
  Vec swiglu(const Vec& x, const char* gate, const char* up, const char* down) const {
    return times(down, gated(times(gate, x), times(up, x)));
  }
  Vec mixture(const Vec& x) const {
    const Vec router = times(keys::kFfnGateInp, x);
    Ids order(router.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return router[a] > router[b]; });
    order.resize(static_cast<size_t>(s_.n_expert_used));
    double total = 0;
    for (const int32_t e : order) total += std::exp(router[e]);
    Vec y = swiglu(x, keys::kFfnGateShexp, keys::kFfnUpShexp, keys::kFfnDownShexp);
    const double open = sigmoid(times(keys::kFfnGateInpShexp, x)[0]);
    for (double& v : y) v *= open;
    for (const int32_t e : order) {
      const Vec hidden = gated(product(expert(keys::kFfnGateExps, e), x), product(expert(keys::kFfnUpExps, e), x));
      y = plus(y, product(expert(keys::kFfnDownExps, e), hidden), std::exp(router[e]) / total);
    }
    return y;
  }
  /// A head's part of `x`, normed and rotated: pairs (i, i + n_rot / 2) of the first n_rot = d_head / 2.
  Vec rotated(const Vec& x, int64_t begin, const char* norm, double pos) const {
    Vec y = normed({x.begin() + begin, x.begin() + begin + s_.d_head}, weight(norm));
    const int64_t half = s_.d_head / 4;
    for (int64_t i = 0; i < half; ++i) {
      const double angle = pos * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
      const double a = y[i], b = y[i + half];
      y[i] = a * std::cos(angle) - b * std::sin(angle);
      y[i + half] = a * std::sin(angle) + b * std::cos(angle);
    }
    return y;
  }
  Vec attention(const Vec& a) {
    const auto pos = static_cast<double>(keys_.size());
    keys_.push_back(rotated(times(keys::kAttnK, a), 0, keys::kAttnKNorm, pos));  // one key head
    values_.push_back(times(keys::kAttnV, a));
    const Vec q_gate = times(keys::kAttnQ, a);
    Vec all;
    for (int64_t head = 0; head < s_.n_head; ++head) {
      const int64_t begin = 2 * head * s_.d_head;  // d query rows, d gate rows
      const Vec q = rotated(q_gate, begin, keys::kAttnQNorm, pos);
      Vec shares;
      for (const Vec& k : keys_) {
        shares.push_back(std::exp(product(k, q)[0] / std::sqrt(static_cast<double>(s_.d_head))));
      }
      const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
      Vec y(static_cast<size_t>(s_.d_head));
      for (size_t p = 0; p < shares.size(); ++p) y = plus(y, values_[p], shares[p] / total);
      for (int64_t i = 0; i < s_.d_head; ++i) all.push_back(y[i] * sigmoid(q_gate[begin + s_.d_head + i]));
    }
    return times(keys::kAttnOutput, all);
  }

  GgufFile file_;
  TinyShape s_;
  std::vector<Vec> keys_, values_;
};

// --- the head on a device --------------------------------------------------------------------------------------------

class HeadRun {
 public:
  HeadRun(const std::string& target, const std::string& head, const Device& device)
      : model_(Model::open(target, W4a4::none)), head_(Drafter::open(head, *model_)), backend_(device.make()) {
    const Plan target_plan = model_->plan(&head_->taps()), encode = head_->encode_plan(), draft = head_->draft_plan();
    std::vector<const Weight*> loaded;
    for (const Plan* plan : {&target_plan, &encode, &draft}) {
      for (const Weight* w : plan->weights()) {
        if (std::find(loaded.begin(), loaded.end(), w) == loaded.end()) backend_->load(*w), loaded.push_back(w);
      }
    }
    states_ =
        backend_->make_states(model_->states(), {.n_pages = 2, .n_slots = 1, .n_tape = 1, .cache = CacheType::f32});
    head_states_ = backend_->make_states(head_->states(), {.n_pages = 2, .cache = CacheType::f32});
    rows_ = backend_->make_states({head_->taps().rows}, {.n_rows = kRows});
    StatePool* const target_pools[] = {states_.get(), rows_.get()};
    StatePool* const head_pools[] = {head_states_.get(), rows_.get()};
    target_ = backend_->compile(target_plan, target_pools, {kRows, kRows});
    encode_ = backend_->compile(encode, head_pools, {kRows, 1});
    draft_ = backend_->compile(draft, head_pools, {1, 1});
    states_->clear_slot(0);
  }

  /// The target reads, the head is fed.
  void read(const Ids& tokens) {
    const auto n = static_cast<int32_t>(tokens.size());
    const Sequence rows{0, n, 0, Phase::decode, 0, 0, kPages};
    const int32_t last = n - 1;
    Ids places(tokens.size()), sources(tokens.size());
    std::iota(places.begin(), places.end(), 0);
    std::iota(sources.begin(), sources.end(), -1);
    sources[0] = kZero;
    target_->wait(
        target_->submit({.tokens = tokens, .sequences = {&rows, 1}, .outputs = {&last, 1}, .tap_rows = places}));
    const Sequence fed{0, n, 0, Phase::draft, 0, 0, kPages};
    encode_->wait(encode_->submit({.tokens = tokens, .sequences = {&fed, 1}, .source_rows = sources}));
  }
  /// Candidates and their logits behind `token`, from the hidden state in row `from`; leaves its own in row kOwn.
  std::pair<Ids, std::vector<float>> step(int32_t token, int32_t pos, int32_t from) {
    const Sequence row{0, 1, pos, Phase::draft, 0, 0, kPages};
    const int32_t output = 0, own = kOwn;
    draft_->wait(draft_->submit({.tokens = {&token, 1},
                                 .sequences = {&row, 1},
                                 .outputs = {&output, 1},
                                 .source_rows = {&from, 1},
                                 .tap_rows = {&own, 1}}));
    std::pair<Ids, std::vector<float>> result{Ids(10), std::vector<float>(10)};
    draft_->read(0, 0, result.first);
    draft_->read(1, 0, result.second);
    return result;
  }
  static constexpr int32_t kRows = 40, kOwn = 38, kZero = 39;

 private:
  static constexpr int32_t kPages[] = {0, 1};
  std::unique_ptr<Model> model_;
  std::unique_ptr<Drafter> head_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<StatePool> states_, head_states_, rows_;
  std::unique_ptr<Program> target_, encode_, draft_;
};

/// The hidden states behind the final norm of all positions.
std::vector<Vec> hidden_states(const Files& files, const Definition& definition, const Ids& tokens) {
  Runner runner(files.trunk, make_backend("ref", {}), true);
  runner.run(tokens, 0, Phase::decode);
  std::vector<Vec> all;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::vector<float> taps = runner.taps(static_cast<int32_t>(i));
    all.push_back(definition.final_norm({taps.end() - files.shape.n_embd, taps.end()}));
  }
  return all;
}

void expect_the_definition(bool mixture, bool sidecar, const Device& device) {
  const Files files(mixture);
  Rng rng(7);
  Ids tokens(30);
  for (int32_t& id : tokens) id = static_cast<int32_t>(rng.next() % static_cast<uint64_t>(files.shape.n_vocab));
  Definition definition(files.whole, files.shape);
  const std::vector<Vec> hidden = hidden_states(files, definition, tokens);
  Vec state(static_cast<size_t>(files.shape.n_embd));  // none before the first token
  for (size_t i = 0; i < tokens.size(); ++i) {
    definition.step(tokens[i], state);
    state = hidden[i];
  }
  HeadRun run(sidecar ? files.trunk : files.whole, sidecar ? files.head : files.whole, device);
  run.read(tokens);
  int32_t token = 5, from = static_cast<int32_t>(tokens.size()) - 1;
  for (int32_t i = 0; i < 4; ++i) {
    state = definition.step(token, state);
    const Vec logits = definition.logits(state);
    const auto [ids, scores] = run.step(token, static_cast<int32_t>(tokens.size()) + i, from);
    Vec sorted = logits;
    std::sort(sorted.rbegin(), sorted.rend());
    for (size_t j = 0; j < ids.size(); ++j) {
      EXPECT_NEAR(scores[j], sorted[j], 2e-4) << "token " << i << " candidate " << j;
      EXPECT_NEAR(scores[j], logits[static_cast<size_t>(ids[j])], 2e-4) << "token " << i << " candidate " << j;
    }
    token = ids[0];
    from = HeadRun::kOwn;
  }
}

TEST(MtpHead, ComputesItsDefinition) {
  for (const Device& device : test_devices()) {
    for (const bool mixture : {false, true}) {
      for (const bool sidecar : {false, true}) {
        SCOPED_TRACE(device.label() + (mixture ? " mixture" : " dense") + (sidecar ? " sidecar" : ""));
        expect_the_definition(mixture, sidecar, device);
      }
    }
  }
}

TEST(MtpHead, DraftsTheSameFromEitherFile) {
  for (const bool mixture : {false, true}) {
    const Files files(mixture);
    EngineOptions plain, inside, beside;
    for (EngineOptions* o : {&plain, &inside, &beside}) {
      o->model_path = files.trunk;
      o->device = "ref";
      o->draft_adaptive = false;
      o->n_ctx = 512;
    }
    inside.model_path = inside.drafter_path = files.whole;
    beside.drafter_path = files.head;
    int64_t n_accepted = 0;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      Rng rng(seed);
      Ids prompt(20 + 30 * seed);
      for (int32_t& id : prompt) id = static_cast<int32_t>(rng.next() % static_cast<uint64_t>(files.shape.n_vocab));
      Request request = greedy(prompt, 60);
      request.sampling.temperature = seed % 3 == 0 ? 0.7f : 0;
      request.sampling.seed = seed;
      const auto expected = run(plain, request), a = run(inside, request), b = run(beside, request);
      EXPECT_EQ(a->ids, expected->ids) << "mixture " << mixture << " seed " << seed;
      EXPECT_EQ(b->ids, expected->ids) << "mixture " << mixture << " seed " << seed;
      EXPECT_GT(a->statistics.rounds, 0);
      EXPECT_EQ(a->statistics.accepted_per_round, b->statistics.accepted_per_round);
      n_accepted += a->statistics.draft_n_accepted;
    }
    EXPECT_GT(n_accepted, 0);
  }
}

}  // namespace
}  // namespace onebit::test
