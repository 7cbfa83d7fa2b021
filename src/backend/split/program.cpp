#include "backend/split/program.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace onebit::split {

SplitProgram::SplitProgram(DividedPlan divided, std::vector<std::unique_ptr<Program>> programs,
                           const PlanLimits& limits)
    : divided_(std::move(divided)), programs_(std::move(programs)), tickets_(programs_.size()) {
  int64_t most = 0;
  for (const PlanPart& part : divided_.parts) {
    for (Value v : part.plan.entries())
      most = std::max(most, max_rows(part.plan.info(v), limits) * part.plan.info(v).width);
  }
  host_.resize(static_cast<size_t>(most));
}

Ticket SplitProgram::submit(const Batch& batch) {
  for (size_t d = 0; d < programs_.size(); ++d) {
    if (!programs_[d]) continue;
    hand_over(d, batch);
    tickets_[d] = programs_[d]->submit(batch);
  }
  return ++last_;
}

/// Gives a device what it reads of the ones before.
void SplitProgram::hand_over(size_t device, const Batch& batch) {
  const PlanPart& part = divided_.parts[device];
  for (size_t e = 0; e < part.sources.size(); ++e) {
    const PartOutput& source = part.sources[e];
    const auto entry = static_cast<int>(e);
    if (programs_[device]->take(entry, program(source.device), source.output)) continue;
    const ValueInfo& info = part.plan.info(part.plan.entries()[e]);
    const int64_t n_row = (info.rows == Rows::tokens ? batch.n_tok() : batch.n_out()) * info.multiple;
    const std::span<float> rows = std::span(host_).first(static_cast<size_t>(n_row * info.width));
    program(source.device).wait(tickets_[static_cast<size_t>(source.device)]);
    program(source.device).read(source.output, 0, rows);
    programs_[device]->write(entry, rows);
  }
}

void SplitProgram::wait(Ticket ticket) {
  CHECK(ticket <= last_);
  for (size_t d = 0; d < programs_.size(); ++d) {
    if (programs_[d]) programs_[d]->wait(tickets_[d]);
  }
}

void SplitProgram::read(int index, int64_t row, std::span<float> to) {
  const PartOutput& from = divided_.outputs.at(static_cast<size_t>(index));
  program(from.device).read(from.output, row, to);
}
void SplitProgram::read(int index, int64_t row, std::span<int32_t> to) {
  const PartOutput& from = divided_.outputs.at(static_cast<size_t>(index));
  program(from.device).read(from.output, row, to);
}

void SplitProgram::write(int, std::span<const float>) { CHECK(!"a plan that is divided has no entries"); }

void SplitProgram::measure_steps() {
  for (const auto& program : programs_) {
    if (program) program->measure_steps();
  }
}

std::vector<StepTime> SplitProgram::step_times() const {
  std::map<std::string, StepTime> by_name;
  for (const auto& program : programs_) {
    if (!program) continue;
    for (const StepTime& time : program->step_times()) {
      StepTime& sum = by_name[time.name];
      sum.name = time.name;
      sum.n_run += time.n_run;
      sum.seconds += time.seconds;
    }
  }
  std::vector<StepTime> list;
  for (auto& [name, time] : by_name) list.push_back(std::move(time));
  return list;
}

}  // namespace onebit::split
