#include "backend/gpu/program.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "base/error.h"

namespace onebit::gpu {
namespace {

constexpr int32_t kGraphRows = 64;          // runs of more rows are enqueued kernel by kernel
constexpr size_t kMostGraphs = 64;          // the least recently used goes
constexpr int64_t kSmallWidth = 64;         // results of at most this many columns come to the host with every run
constexpr int64_t kFirstPages = 4096;       // room for pages to begin with
constexpr int64_t kHoldCycles = 8'000'000;  // some 5 ms
constexpr int64_t kAlign = 16;              // of the parts of a batch

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// The parts of a batch in one piece of memory, packed for its counts; pages last.
struct BatchLayout {
  int64_t tokens, outputs, source_rows, tap_rows, row_sequence, row_pos, int4_rows, int4_outputs, sequences, pages;

  BatchLayout(int64_t n_tok, int64_t n_out, int64_t n_sequence) {
    int64_t at = 0;
    const auto take = [&at](int64_t bytes) {
      const int64_t begin = at;
      at += aligned(bytes);
      return begin;
    };
    tokens = take(n_tok * 4);
    outputs = take(n_out * 4);
    source_rows = take(n_tok * 4);
    tap_rows = take(n_tok * 4);
    row_sequence = take(n_tok * 4);
    row_pos = take(n_tok * 4);
    int4_rows = take(n_tok);
    int4_outputs = take(n_out);
    sequences = take(n_sequence * static_cast<int64_t>(sizeof(DeviceSequence)));
    pages = at;
  }
};

/// Lets a device read another's memory directly where the machine can; where not, the driver copies through the host.
void reach(const Stream& stream, const Stream& other) {
  int can = 0;
  check(gpuDeviceCanAccessPeer(&can, stream.ordinal(), other.ordinal()), "copying between devices");
  if (!can) return;
  const gpuError_t error = gpuDeviceEnablePeerAccess(other.ordinal(), 0);
  if (error != gpuErrorPeerAccessAlreadyEnabled) return check(error, "copying between devices");
  (void)gpuGetLastError();  // a failed call must not fail the next check
}

ActsMix mix_of(int64_t n_int4, int64_t n) {
  return n_int4 == 0 ? ActsMix::int8 : n_int4 == n ? ActsMix::int4 : ActsMix::mixed;
}

int64_t n_pages(const Batch& batch) {
  int64_t n = 0;
  for (const Sequence& sequence : batch.sequences) n += static_cast<int64_t>(sequence.pages.size());
  return n;
}

}  // namespace

GpuProgram::GpuProgram(const Plan& plan, std::span<StatePool* const> pools, const PlanLimits& limits,
                       WeightStore& weights, const Chip& chip, Membership membership, std::shared_ptr<Stream> stream)
    : plan_(plan),
      limits_(limits),
      stream_(std::move(stream)),
      binder_(plan_, pools, limits, weights, chip, std::move(membership), stream_->get()),
      groups_(binder_.groups()),
      check_(plan_, limits) {
  for (const Step& step : plan_.steps()) {
    if (step.state) check_.add_state(step, pool_of(step, pools).sizes());
  }
  int64_t bytes = 0;
  for (const PlanOutput& output : plan_.outputs()) {
    const ValueInfo& info = plan_.info(output.value);
    CHECK(info.type != Dtype::act);
    if (info.width > kSmallWidth) continue;
    small_.push_back({output.value, bytes});
    bytes += aligned(max_rows(info, limits_) * info.width * 4);
  }
  results_ = PinnedMemory(bytes, "a program's results");
  reserve_pages(kFirstPages);
}

GpuProgram::~GpuProgram() {
  (void)gpuStreamSynchronize(stream_->get());  // nothing may still use the memory
  forget_graphs();
}

void GpuProgram::reserve_pages(int64_t n) {
  if (n <= most_pages_) return;
  if (last_ > 0) stream_->wait("running a batch");
  forget_graphs();  // they know the old memory
  most_pages_ = std::max(n, 2 * most_pages_);
  const int64_t bytes = BatchLayout(limits_.n_tok, limits_.n_out, limits_.n_tok).pages + most_pages_ * 4;
  host_batch_ = PinnedMemory(bytes, "batches");
  batch_ = DeviceMemory(bytes, "batches");
}

GpuProgram::Shape GpuProgram::shape_of(const Batch& batch) const {
  Shape shape{batch.n_tok(), batch.n_out(), static_cast<int32_t>(batch.sequences.size())};
  int64_t end = 1, n_int4 = 0, n_int4_outputs = 0;
  size_t output = 0;
  for (const Sequence& sequence : batch.sequences) {
    end = std::max<int64_t>(end, sequence.pos + sequence.n_tok);
    const bool prompt = sequence.phase == Phase::prompt;
    if (prompt) n_int4 += sequence.n_tok;
    for (; output < batch.outputs.size() && batch.outputs[output] < sequence.row + sequence.n_tok; ++output) {
      if (prompt) ++n_int4_outputs;
    }
  }
  shape.context = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(end)));
  shape.mix = mix_of(n_int4, shape.n_tok);
  shape.mix_outputs = mix_of(n_int4_outputs, shape.n_out);
  shape.taps = !batch.tap_rows.empty();
  return shape;
}

BatchRows GpuProgram::bring(const Batch& batch) {
  reserve_pages(n_pages(batch));
  brought_.wait("running a batch");
  const BatchLayout at(batch.n_tok(), batch.n_out(), static_cast<int64_t>(batch.sequences.size()));
  uint8_t* host = host_batch_.data();
  const auto host_ints = [host](int64_t offset) { return reinterpret_cast<int32_t*>(host + offset); };
  std::ranges::copy(batch.tokens, host_ints(at.tokens));
  std::ranges::copy(batch.outputs, host_ints(at.outputs));
  std::ranges::copy(batch.source_rows, host_ints(at.source_rows));
  std::ranges::copy(batch.tap_rows, host_ints(at.tap_rows));
  int32_t* pages = host_ints(at.pages);
  int32_t n_page = 0, index = 0;
  for (const Sequence& s : batch.sequences) {
    for (int32_t i = 0; i < s.n_tok; ++i) {
      host_ints(at.row_sequence)[s.row + i] = index;
      host_ints(at.row_pos)[s.row + i] = s.pos + i;
      host[at.int4_rows + s.row + i] = s.phase == Phase::prompt;
    }
    const auto count = static_cast<int32_t>(s.pages.size());
    reinterpret_cast<DeviceSequence*>(host + at.sequences)[index] = {
        s.row,         s.n_tok, s.pos, s.phase == Phase::verify, s.slot, s.n_commit, n_page, count,
        s.temperature, s.seed,  s.draw};
    std::ranges::copy(s.pages, pages + n_page);
    n_page += count;
    ++index;
  }
  for (int32_t i = 0; i < batch.n_out(); ++i) {
    host[at.int4_outputs + i] = host[at.int4_rows + batch.outputs[static_cast<size_t>(i)]];
  }
  check(gpuMemcpyAsync(batch_.data(), host, static_cast<size_t>(at.pages + int64_t{n_page} * 4), gpuMemcpyHostToDevice,
                       stream_->get()),
        "bringing a batch");
  brought_.record(stream_->get());

  const auto ints = [this](int64_t offset) { return reinterpret_cast<const int32_t*>(batch_.data() + offset); };
  BatchRows rows;
  rows.n_tok = batch.n_tok();
  rows.n_out = batch.n_out();
  rows.n_sequence = index;
  rows.tokens = ints(at.tokens);
  rows.outputs = ints(at.outputs);
  rows.source_rows = ints(at.source_rows);
  rows.tap_rows = ints(at.tap_rows);
  rows.row_sequence = ints(at.row_sequence);
  rows.row_pos = ints(at.row_pos);
  rows.int4_rows = batch_.data() + at.int4_rows;
  rows.int4_outputs = batch_.data() + at.int4_outputs;
  rows.sequences = reinterpret_cast<const DeviceSequence*>(batch_.data() + at.sequences);
  rows.pages = ints(at.pages);
  return rows;
}

Ticket GpuProgram::submit(const Batch& batch) {
  stream_->use_device();
  check_.check(batch);
  const Shape shape = shape_of(batch);
  const Run run{bring(batch), stream_->get(), shape.taps, shape.context, shape.mix, shape.mix_outputs};
  n_tok_ = shape.n_tok;
  n_out_ = shape.n_out;
  if (!marks_.empty()) {
    run_measured(run);
  } else if (shape.n_tok <= kGraphRows) {
    run_graph(run, shape);
  } else {
    enqueue(run);
  }
  done_.record(stream_->get());
  return ++last_;
}

void GpuProgram::enqueue(const Run& run) {
  for (const BoundGroup& group : groups_) group.run(run);
  check_launch("running a batch");
  bring_results(run);
}

void GpuProgram::bring_results(const Run& run) {
  for (const SmallResult& small : small_) {
    const ValueInfo& info = plan_.info(small.value);
    const auto bytes = static_cast<size_t>(rows_now(info) * info.width * 4);
    if (bytes == 0) continue;
    check(
        gpuMemcpyAsync(results_.data() + small.at, binder_.data(small.value), bytes, gpuMemcpyDeviceToHost, run.stream),
        "reading results");
  }
}

void GpuProgram::measure_steps() {
  stream_->use_device();
  for (size_t i = 0; i <= groups_.size(); ++i) marks_.push_back(std::make_unique<Event>(true));
  times_.assign(groups_.size(), {});
}

/// All groups are enqueued while the device is held up, so that their times are not those of enqueuing them.
void GpuProgram::run_measured(const Run& run) {
  hold(kHoldCycles, run.stream);
  for (size_t i = 0; i < groups_.size(); ++i) {
    marks_[i]->record(run.stream);
    groups_[i].run(run);
  }
  marks_.back()->record(run.stream);
  check_launch("running a batch");
  bring_results(run);
  stream_->wait("running a batch");
  for (size_t i = 0; i < groups_.size(); ++i) {
    ++times_[i].n_run;
    times_[i].seconds += marks_[i + 1]->milliseconds_since(*marks_[i]) / 1e3;
  }
}

std::vector<StepTime> GpuProgram::step_times() const {
  std::map<std::string, StepTime> by_name;
  for (size_t i = 0; i < times_.size(); ++i) {
    StepTime& sum = by_name[groups_[i].name];
    sum.name = groups_[i].name;
    sum.n_run += times_[i].n_run;
    sum.seconds += times_[i].seconds;
  }
  std::vector<StepTime> list;
  for (auto& [name, time] : by_name) list.push_back(std::move(time));
  return list;
}

void GpuProgram::run_graph(const Run& run, const Shape& shape) {
  const auto found = std::ranges::find_if(recorded_, [&](const Recorded& r) { return r.shape == shape; });
  if (found == recorded_.end()) {
    if (recorded_.size() == kMostGraphs) {
      if (recorded_.back().graph) {
        stream_->wait("running a batch");  // it may still be at work
        (void)gpuGraphExecDestroy(recorded_.back().graph);
      }
      recorded_.pop_back();
    }
    recorded_.push_front({shape, nullptr});
    enqueue(run);
    return;
  }
  recorded_.splice(recorded_.begin(), recorded_, found);
  if (!found->graph) found->graph = record(run);
  check(gpuGraphLaunch(found->graph, stream_->get()), "running a batch");
}

gpuGraphExec_t GpuProgram::record(const Run& run) {
  check(gpuStreamBeginCapture(run.stream, gpuStreamCaptureModeRelaxed), "recording a graph");
  gpuGraph_t graph = nullptr;
  try {
    enqueue(run);
  } catch (...) {
    if (gpuStreamEndCapture(run.stream, &graph) == gpuSuccess) (void)gpuGraphDestroy(graph);
    throw;
  }
  check(gpuStreamEndCapture(run.stream, &graph), "recording a graph");
  gpuGraphExec_t ready = nullptr;
  const gpuError_t error = gpuGraphInstantiate(&ready, graph);
  (void)gpuGraphDestroy(graph);
  check(error, "recording a graph");
  return ready;
}

void GpuProgram::forget_graphs() {
  for (const Recorded& recorded : recorded_) {
    if (recorded.graph) (void)gpuGraphExecDestroy(recorded.graph);
  }
  recorded_.clear();
}

void GpuProgram::wait(Ticket ticket) {
  CHECK(ticket <= last_);
  done_.wait("running a batch");
}

const uint8_t* GpuProgram::small_result(Value value) const {
  for (const SmallResult& small : small_) {
    if (small.value.id == value.id) return results_.data() + small.at;
  }
  return nullptr;
}

void GpuProgram::copy_out(int index, int64_t row, void* to, int64_t size, Dtype type) {
  CHECK(last_ > 0 && index >= 0 && index < static_cast<int>(plan_.outputs().size()));
  const Value value = plan_.outputs()[static_cast<size_t>(index)].value;
  const ValueInfo& info = plan_.info(value);
  CHECK(info.type == type && row >= 0 && size % info.width == 0 && row + size / info.width <= rows_now(info));
  if (size == 0) return;
  stream_->use_device();
  const int64_t at = row * info.width * 4;
  if (const uint8_t* host = small_result(value)) {
    std::memcpy(to, host + at, static_cast<size_t>(size) * 4);
    return;
  }
  check(gpuMemcpyAsync(to, binder_.data(value) + at, static_cast<size_t>(size) * 4, gpuMemcpyDeviceToHost,
                       stream_->get()),
        "reading results");
  stream_->wait("reading results");
}

void GpuProgram::read(int index, int64_t row, std::span<float> to) {
  copy_out(index, row, to.data(), static_cast<int64_t>(to.size()), Dtype::f32);
}
void GpuProgram::read(int index, int64_t row, std::span<int32_t> to) {
  copy_out(index, row, to.data(), static_cast<int64_t>(to.size()), Dtype::i32);
}

void GpuProgram::write(int index, std::span<const float> rows) {
  const Value value = plan_.entries().at(static_cast<size_t>(index));
  const ValueInfo& info = plan_.info(value);
  CHECK(info.type == Dtype::f32 && static_cast<int64_t>(rows.size()) <= max_rows(info, limits_) * info.width);
  if (rows.empty()) return;
  stream_->use_device();
  check(gpuMemcpyAsync(binder_.data(value), rows.data(), rows.size_bytes(), gpuMemcpyHostToDevice, stream_->get()),
        "bringing a value");
  stream_->wait("bringing a value");  // the rows may go
}

bool GpuProgram::take(int index, Program& from, int output) {
  auto* other = dynamic_cast<GpuProgram*>(&from);
  if (!other) return false;
  const Value to = plan_.entries().at(static_cast<size_t>(index));
  const Value made = other->plan_.outputs().at(static_cast<size_t>(output)).value;
  const ValueInfo& info = other->plan_.info(made);
  CHECK(info.type == Dtype::f32 && other->last_ > 0 && other->rows_now(info) <= max_rows(plan_.info(to), limits_));
  const auto bytes = static_cast<size_t>(other->rows_now(info) * info.width * 4);
  if (bytes == 0) return true;
  stream_->use_device();
  if (reached_ != other) reach(*stream_, *other->stream_);
  reached_ = other;
  other->done_.hold(stream_->get());
  check(gpuMemcpyPeerAsync(binder_.data(to), stream_->ordinal(), other->binder_.data(made), other->stream_->ordinal(),
                           bytes, stream_->get()),
        "copying between devices");
  taken_.record(stream_->get());
  taken_.hold(other->stream_->get());  // its next run overwrites the value
  return true;
}

}  // namespace onebit::gpu
