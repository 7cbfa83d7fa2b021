#include "backend/cpu/program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

#include "backend/cpu/schedule.h"
#include "base/error.h"
#include "plan/rope.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace onebit::cpu {
namespace {

constexpr int64_t kLine = 128;  // scratch of different threads is kept this far apart

int64_t aligned(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

/// Weights whose rows are walked as matrices; all others are read element by element.
bool takes_matrix(Op op) {
  return op == Op::embed || op == Op::matmul || op == Op::matmul_experts || op == Op::select_walk;
}

Touch touch_of(const Operand& value, const PlanLimits& limits, bool written) {
  const auto begin = reinterpret_cast<uintptr_t>(value.data);
  const int64_t row = value_row_bytes(value.info) * value.info.multiple;
  // Rows of activations interleave within a tile, so their memory can't be divided by rows.
  return {begin, begin + static_cast<uintptr_t>(max_rows(value.info, limits) * value_row_bytes(value.info)), written,
          value.info.type == Dtype::act ? 0 : row};
}

Touch touch_of(const void* memory, bool written) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  return {begin, begin + 1, written, 0};
}

/// What a thread does while it waits for others in a small batch, whose speed is that of the memory: it brings the
/// start of its share of the next matrix into its L2 cache.
class Ahead {
 public:
  Ahead(int64_t n_tok, int thread, int n_thread) : thread_(thread), n_thread_(n_thread), on_(n_tok <= kTileTokens) {}

  void wait(ThreadPool& pool, const LoadedWeight* next) {
    if (!on_ || !next) return pool.barrier();
    if (next != matrix_) aim(*next);
    pool.barrier([this] {
      if (at_ >= end_) return false;
      __builtin_prefetch(at_, 0, 2);
      at_ += 64;
      return true;
    });
  }

 private:
  static constexpr int64_t kMost = 256 << 10;

  void aim(const LoadedWeight& next) {
    matrix_ = &next;
    const Range strips = share(next.n_strip(), 1, thread_, n_thread_);
    at_ = next.data + strips.begin * next.strip_bytes;
    end_ = at_ + std::min(kMost, strips.size() * next.strip_bytes);
  }

  int thread_, n_thread_;
  bool on_;
  const LoadedWeight* matrix_ = nullptr;
  const uint8_t *at_ = nullptr, *end_ = nullptr;
};

/// Numbers below 2^-126 count as 0 while this lives: decays of the delta rule reach them, and processors take a hundred
/// times as long for them.
class NoDenormals {
 public:
#if defined(__SSE2__)
  NoDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlush | kAsZero); }
  ~NoDenormals() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kFlush = 0x8000, kAsZero = 0x0040;
  unsigned before_;
#elif defined(__aarch64__)
  NoDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    set(before_ | kFlush);
  }
  ~NoDenormals() { set(before_); }

 private:
  static constexpr uint64_t kFlush = 1u << 24;  // results and operands
  static void set(uint64_t fpcr) { asm volatile("msr fpcr, %0" : : "r"(fpcr)); }
  uint64_t before_;
#endif
};

bool writes_state(Op op) { return op == Op::kv_store || op == Op::delta_net || op == Op::store_rows; }

}  // namespace

CpuProgram::CpuProgram(const Plan& plan, std::span<StatePool* const> pools, const PlanLimits& limits,
                       const Kernels& kernels, WeightStore& weights, ThreadPool& pool, Membership membership)
    : plan_(plan),
      limits_(limits),
      weights_(weights),
      pool_(pool),
      placement_(place_values(plan, limits)),
      values_(placement_.bytes),
      check_(plan, limits) {
  run_.kernels = &kernels;
  run_.membership = std::move(membership);
  run_.rows.resize(static_cast<size_t>(limits.n_tok));
  for (const Step& step : plan_.steps()) steps_.push_back(bind(step, pools));
  for (const PlanOutput& output : plan_.outputs()) CHECK(plan_.info(output.value).type != Dtype::act);
  find_choices();
  allocate_scratch();
  place_barriers();
  find_next_matrices();
}

CpuStep CpuProgram::bind(const Step& step, std::span<StatePool* const> pools) {
  CpuStep bound;
  bound.op = step.op;
  bound.params = step.params;
  const auto operand = [this](Value v) {
    return Operand{values_.data() + placement_.offset[static_cast<size_t>(v.id)], plan_.info(v)};
  };
  for (Value v : step.in) bound.in.push_back(operand(v));
  for (Value v : step.out) bound.out.push_back(operand(v));
  bind_weights(step, bound);
  if (step.state) bind_state(step, pools, bound);
  if (step.op == Op::rope) {
    bound.rope = rope_table(std::get<RopeParams>(step.params), bound.plain.empty() ? nullptr : bound.plain[0]);
  }
  bound.run = op_entry(step.op).run;
  return bound;
}

void CpuProgram::bind_weights(const Step& step, CpuStep& bound) {
  for (size_t i = 0; i < step.weights.size(); ++i) {
    const Weight& weight = *step.weights[i];
    const bool matrix = takes_matrix(step.op), taps = step.op == Op::delta_net && i == 0;
    bound.plain.push_back(matrix ? nullptr : weights_.plain(weight, taps));
    bound.matrices.push_back(matrix ? &weights_.get(weight) : nullptr);
    if (step.op == Op::matmul || step.op == Op::matmul_experts) {
      const LoadedWeight::Form form = bound.matrices.back()->form;
      CHECK(form == LoadedWeight::Form::strips || form == LoadedWeight::Form::floats);
    }
  }
}

void CpuProgram::bind_state(const Step& step, std::span<StatePool* const> pools, CpuStep& bound) {
  for (StatePool* pool : pools) {
    auto* states = dynamic_cast<States*>(pool);
    CHECK(states);
    bound.state = states->find(step.state);
    if (!bound.state) continue;
    check_.add_state(step, states->sizes());
    return;
  }
  CHECK(!"the state belongs to one of the pools");
}

const RopeTable* CpuProgram::rope_table(const RopeParams& params, const float* factors) {
  for (const auto& table : ropes_) {
    if (table->factors == factors && same_angles(table->params, params)) return table.get();
  }
  ropes_.push_back(std::make_unique<RopeTable>(make_rope_table(params, factors, limits_.n_tok)));
  return ropes_.back().get();
}

/// Products that nothing but the argmax or top_k behind them reads, apart from the caller perhaps.
void CpuProgram::find_choices() {
  for (size_t i = 0; i + 1 < steps_.size(); ++i) {
    const Step &product = plan_.steps()[i], &choice = plan_.steps()[i + 1];
    if (product.op != Op::matmul || (choice.op != Op::argmax && choice.op != Op::top_k)) continue;
    const int32_t id = product.out[0].id;
    const auto reads = [id](const Step& step) {
      return std::any_of(step.in.begin(), step.in.end(), [id](Value v) { return v.id == id; });
    };
    if (!reads(choice) ||
        std::any_of(plan_.steps().begin() + static_cast<int64_t>(i) + 2, plan_.steps().end(), reads)) {
      continue;
    }
    const bool is_output = std::any_of(plan_.outputs().begin(), plan_.outputs().end(),
                                       [id](const PlanOutput& output) { return output.value.id == id; });
    const int64_t k = choice.op == Op::argmax ? 1 : std::get<TopKParams>(choice.params).k;
    shortlists_.push_back(std::make_unique<Shortlists>(k, max_rows(plan_.info(product.out[0]), limits_), pool_.size(),
                                                       is_output ? steps_[i].out[0].data : nullptr));
    steps_[i].shortlists = steps_[i + 1].shortlists = shortlists_.back().get();
    steps_[i].run = run_matmul_shortlist;
    steps_[i + 1].run = run_choose_shortlist;
  }
}

void CpuProgram::allocate_scratch() {
  int64_t shared_bytes = 0;
  for (const CpuStep& step : steps_) {
    const OpEntry& entry = op_entry(step.op);
    const Needs needs = entry.needs ? entry.needs(step, limits_, pool_.size()) : Needs{};
    thread_bytes_ = std::max(thread_bytes_, aligned(needs.thread));
    shared_bytes = std::max(shared_bytes, needs.shared);
  }
  thread_scratch_ = Pages(thread_bytes_ * pool_.size());
  shared_scratch_ = Pages(shared_bytes);
  claims_stride_ = (static_cast<int64_t>(steps_.size()) + 15) / 16 * 16;  // counters of two threads share no line
  claims_ = std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(claims_stride_ * pool_.size()));
  for (size_t i = 0; i < steps_.size(); ++i) {
    steps_[i].claims = &claims_[i];
    steps_[i].claims_stride = claims_stride_;
    steps_[i].shared = shared_scratch_.data();
  }
}

void CpuProgram::place_barriers() {
  std::vector<StepAccess> accesses;
  for (const CpuStep& step : steps_) {
    const OpEntry& entry = op_entry(step.op);
    StepAccess access;
    access.row_local = entry.row_local;
    const ValueInfo& rows = step.out.empty() ? step.in[0].info : step.out[0].info;
    access.by_outputs = rows.rows == Rows::outputs;
    for (const Operand& value : step.in) access.touches.push_back(touch_of(value, limits_, false));
    for (const Operand& value : step.out) access.touches.push_back(touch_of(value, limits_, true));
    if (step.state) access.touches.push_back(touch_of(step.state, writes_state(step.op)));
    if (entry.needs && entry.needs(step, limits_, pool_.size()).shared > 0) {
      access.touches.push_back(touch_of(step.shared, true));
    }
    accesses.push_back(std::move(access));
  }
  barriers_ = cpu::place_barriers(accesses, false);
  single_row_barriers_ = cpu::place_barriers(accesses, true);
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].op == Op::quantize) accesses[i].row_local = false;
  }
  one_tile_barriers_ = cpu::place_barriers(accesses, false);
}

void CpuProgram::find_next_matrices() {
  next_matrix_.assign(steps_.size(), nullptr);
  const LoadedWeight* next = nullptr;
  for (size_t i = steps_.size(); i-- > 0;) {
    if (steps_[i].op == Op::matmul && steps_[i].matrices[0]->form == LoadedWeight::Form::strips) {
      next = steps_[i].matrices[0];
    }
    next_matrix_[i] = next;
  }
}

const std::vector<bool>& CpuProgram::barriers() const {
  if (run_.n_tok == 1) return single_row_barriers_;
  return is_one_tile(run_.n_tok) ? one_tile_barriers_ : barriers_;
}

Ticket CpuProgram::submit(const Batch& batch) {
  check_.check(batch);
  run_.batch = &batch;
  choices_only_ = batch.choices_only;
  run_.n_tok = batch.n_tok();
  run_.n_out = batch.n_out();
  int32_t index = 0;
  for (const Sequence& sequence : batch.sequences) {
    for (int32_t i = 0; i < sequence.n_tok; ++i) {
      run_.rows[static_cast<size_t>(sequence.row + i)] = {index, sequence.pos + i};
    }
    ++index;
  }
  pool_.run([this](int thread) { run_thread(thread); });
  return ++last_;
}

void CpuProgram::run_thread(int thread) {
  [[maybe_unused]] const NoDenormals guard;
  Worker worker(run_, pool_, thread, thread_scratch_.data() + thread * thread_bytes_);
  for (int64_t i = 0; i < claims_stride_; ++i) {
    claims_[static_cast<size_t>(thread * claims_stride_ + i)].store(0, std::memory_order_relaxed);
  }
  for (const auto& rope : ropes_) fill_rope_table(*rope, run_, share(run_.n_tok, 1, thread, pool_.size()));
  if (thread == 0 && !times_.empty()) return run_measured(worker);
  Ahead ahead(run_.n_tok, thread, pool_.size());
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (barriers()[i]) ahead.wait(pool_, next_matrix_[i]);
    steps_[i].run(steps_[i], worker);
  }
}

/// A step's time runs until the next one starts, so that waiting for other threads counts as its own.
void CpuProgram::run_measured(Worker& worker) {
  using Clock = std::chrono::steady_clock;
  Ahead ahead(run_.n_tok, worker.thread(), pool_.size());
  ahead.wait(pool_, next_matrix_[0]);
  Clock::time_point start = Clock::now();
  for (size_t i = 0; i < steps_.size(); ++i) {
    steps_[i].run(steps_[i], worker);
    if (i + 1 < steps_.size() && barriers()[i + 1]) ahead.wait(pool_, next_matrix_[i + 1]);
    const Clock::time_point end = Clock::now();
    ++times_[i].n_run;
    times_[i].seconds += std::chrono::duration<double>(end - start).count();
    start = end;
  }
}

std::vector<StepTime> CpuProgram::step_times() const {
  std::map<std::string, StepTime> by_name;
  for (size_t i = 0; i < times_.size(); ++i) {
    const Step& step = plan_.steps()[i];
    std::string name(op_info(step.op).name);
    if (step.op == Op::matmul || step.op == Op::matmul_experts) {
      const Weight& w = *step.weights[0];
      name += fmt::format(" {} [{}, {}]", type_name(w.type), w.n_out(), w.n_in());
    }
    StepTime& sum = by_name[name];
    sum.name = name;
    sum.n_run += times_[i].n_run;
    sum.seconds += times_[i].seconds;
  }
  std::vector<StepTime> list;
  for (auto& [name, time] : by_name) list.push_back(std::move(time));
  return list;
}

void CpuProgram::wait(Ticket ticket) { CHECK(ticket <= last_); }

template <class T>
void CpuProgram::copy_out(int index, int64_t row, std::span<T> to, Dtype type) const {
  CHECK(last_ > 0 && index >= 0 && index < static_cast<int>(plan_.outputs().size()));
  const Value value = plan_.outputs()[static_cast<size_t>(index)].value;
  const ValueInfo& info = plan_.info(value);
  const int64_t n_row = (info.rows == Rows::tokens ? run_.n_tok : run_.n_out) * info.multiple;
  const auto size = static_cast<int64_t>(to.size());
  CHECK(info.type == type && row >= 0 && size % info.width == 0 && row + size / info.width <= n_row);
  const uint8_t* from = values_.data() + placement_.offset[static_cast<size_t>(value.id)];
  for (const auto& lists : shortlists_) CHECK(!choices_only_ || lists->output != from);  // it was not written
  from += row * info.width * 4;
  if (!to.empty()) std::memcpy(to.data(), from, to.size_bytes());
}

void CpuProgram::read(int index, int64_t row, std::span<float> to) { copy_out(index, row, to, Dtype::f32); }
void CpuProgram::read(int index, int64_t row, std::span<int32_t> to) { copy_out(index, row, to, Dtype::i32); }

void CpuProgram::write(int index, std::span<const float> rows) {
  const Value value = plan_.entries().at(static_cast<size_t>(index));
  const ValueInfo& info = plan_.info(value);
  CHECK(info.type == Dtype::f32 && static_cast<int64_t>(rows.size()) <= max_rows(info, limits_) * info.width);
  uint8_t* to = values_.data() + placement_.offset[static_cast<size_t>(value.id)];
  if (!rows.empty()) std::memcpy(to, rows.data(), rows.size_bytes());
}

}  // namespace onebit::cpu
