// A plan compiled for several devices: a program on each, run in order, each given what it reads of the ones before.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "plan/layout.h"

namespace onebit::split {

class SplitProgram : public Program {
 public:
  /// programs: one for each part of the plan, null for parts without steps.
  SplitProgram(DividedPlan divided, std::vector<std::unique_ptr<Program>> programs, const PlanLimits& limits);

  Ticket submit(const Batch& batch) override;
  void wait(Ticket ticket) override;
  void read(int index, int64_t row, std::span<float> to) override;
  void read(int index, int64_t row, std::span<int32_t> to) override;
  void write(int index, std::span<const float> rows) override;
  void measure_steps() override;
  std::vector<StepTime> step_times() const override;

 private:
  void hand_over(size_t device, const Batch& batch);
  Program& program(int device) { return *programs_[static_cast<size_t>(device)]; }

  DividedPlan divided_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::vector<Ticket> tickets_;  // of the last submission
  std::vector<float> host_;      // on the way from one device to another
  Ticket last_ = 0;
};

}  // namespace onebit::split
