#include "measure/block_walk.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "gguf/blocks.h"

namespace onebit {

BlockWalk::BlockWalk(Model& model, const TextChunks& chunks, const MeasureOptions& options)
    : model_(model),
      chunks_(chunks),
      options_(options),
      blocks_(model),
      hidden_(chunks.tokens.size() * static_cast<size_t>(model.config().n_embd)) {
  look_up_embeddings();
}

/// The plan's steps before the first block on the host: only a look-up in the architectures that there are.
void BlockWalk::look_up_embeddings() {
  CHECK(blocks_.begin(0) == 1 && plan().steps()[0].op == Op::embed);
  const Weight& table = *plan().steps()[0].weights[0];
  const int64_t bytes = row_bytes(table.type, table.n_in());
  float* to = hidden_.data();
  for (int64_t c = 0; c < chunks_.n_chunk(); ++c) {
    for (const int32_t token : chunks_.evaluated(c)) {
      decode_row(table.type, table.data.data() + token * bytes, to, table.n_in());
      to += table.n_in();
    }
  }
  model_.file().release(model_.file().tensor(table.name));
}

Value BlockWalk::entry_of(int64_t block) const {
  const size_t at = blocks_.begin(block);
  std::vector<bool> before(plan().values().size());
  for (size_t s = 0; s < at; ++s) {
    for (Value v : plan().steps()[s].out) before[static_cast<size_t>(v.id)] = true;
  }
  for (size_t s = at; s < plan().steps().size(); ++s) {
    for (Value v : plan().steps()[s].in) {
      if (before[static_cast<size_t>(v.id)]) return v;
    }
  }
  check_failed("a block reads what is before it", __FILE__, __LINE__);
}

void BlockWalk::run(const InputCallback& inputs, const std::function<void()>& stop) {
  CHECK(next_ < blocks_.n_block());
  const size_t begin = blocks_.begin(next_), end = blocks_.begin(next_ + 1);
  const Value entry = entry_of(next_);
  const Value exit = next_ + 1 < blocks_.n_block() ? entry_of(next_ + 1) : plan().steps()[end].in[0];
  const std::vector<InputGroup> groups = blocks_.groups(next_);
  const int64_t n_embd = model_.config().n_embd, n_tok = static_cast<int64_t>(chunks_.tokens.size());

  Weight table;
  table.name = "hidden states";
  table.shape = {n_tok, n_embd};
  table.data = {reinterpret_cast<const uint8_t*>(hidden_.data()), hidden_.size() * 4};
  table.gather_only = true;
  Plan part = plan().part(begin, end, entry, table);
  part.output("exit", exit);
  const auto name_of = [](Value v) { return fmt::format("value {}", v.id); };
  const auto give = [&](Value v) {  // matrices of experts and others may read the same
    if (part.find_output(name_of(v)) < 0) part.output(name_of(v), v);
  };
  for (const InputGroup& group : groups) {
    give(group.x);
    if (group.n_used > 0) give(group.ids);
  }

  const std::unique_ptr<Backend> backend = make_backend(options_.device, options_.backend);
  const Plan* const plans[] = {&part};
  backend->place(plans);
  for (const Weight* weight : part.weights()) backend->load(*weight);
  std::vector<const State*> states;
  for (const Step& step : part.steps()) {
    if (step.state && std::find(states.begin(), states.end(), step.state) == states.end()) states.push_back(step.state);
  }
  const std::vector<int32_t> pages = all_pages(chunks_.n_ctx);
  const auto pool = backend->make_states(
      states, {.n_pages = static_cast<int64_t>(pages.size()), .n_slots = 1, .n_tape = 1, .cache = CacheType::f32});
  StatePool* const pools[] = {pool.get()};
  const auto program = backend->compile(part, pools, {.n_tok = chunks_.n_ctx, .n_out = 1});

  std::vector<int32_t> rows(static_cast<size_t>(chunks_.n_ctx)), ids;
  std::vector<float> x;
  for (int64_t c = 0; c < chunks_.n_chunk(); ++c) {
    stop();
    pool->clear_slot(0);
    std::iota(rows.begin(), rows.end(), static_cast<int32_t>(c * chunks_.n_ctx));
    const Sequence sequence{0, static_cast<int32_t>(chunks_.n_ctx), 0, Phase::prompt, 0, 0, pages};
    Batch batch;
    batch.tokens = rows;
    batch.sequences = {&sequence, 1};
    program->wait(program->submit(batch));
    for (const InputGroup& group : groups) {
      const int64_t multiple = part.info(group.x).multiple, n_row = chunks_.n_ctx * multiple;
      x.resize(static_cast<size_t>(n_row * group.k));
      program->read(part.find_output(name_of(group.x)), 0, x);
      ids.resize(static_cast<size_t>(chunks_.n_ctx * group.n_used));
      if (group.n_used > 0) program->read(part.find_output(name_of(group.ids)), 0, ids);
      inputs(group, {x, ids, n_row, multiple});
    }
    program->read(part.find_output("exit"), 0,
                  std::span(hidden_).subspan(static_cast<size_t>(c * chunks_.n_ctx * n_embd),
                                             static_cast<size_t>(chunks_.n_ctx * n_embd)));
  }
  for (const Weight* weight : part.weights()) {
    if (weight != &table) model_.file().release(model_.file().tensor(weight->name));
  }
  ++next_;
}

}  // namespace onebit
