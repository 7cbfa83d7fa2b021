// A plan on the reference backend: checked once when compiled, run at once when submitted.
#pragma once

#include <functional>
#include <vector>

#include "backend/backend.h"
#include "backend/ref/call.h"
#include "plan/batch_check.h"

namespace onebit::ref {

class RefProgram : public Program {
 public:
  /// `loaded` says whether a weight has been taken over by the backend.
  RefProgram(const Plan& plan, std::span<StatePool* const> pools, const PlanLimits& limits,
             const std::function<bool(const Weight*)>& loaded, Membership membership = {});

  Ticket submit(const Batch& batch) override;
  void wait(Ticket ticket) override;
  void read(int index, int64_t row, std::span<float> to) override;
  void read(int index, int64_t row, std::span<int32_t> to) override;
  void write(int index, std::span<const float> rows) override;

 private:
  struct Bound {
    Memory* state = nullptr;
    std::vector<std::vector<float>> operands;  // see OpCall
  };

  void bind_state(const Step& step, std::span<StatePool* const> pools, Bound& bound);
  template <class T>
  void copy_out(int index, int64_t row, std::span<T> to, Dtype type) const;

  Plan plan_;
  PlanLimits limits_;
  Arena arena_;
  Membership membership_;
  std::vector<Bound> bound_;      // by step
  std::vector<uint64_t> memory_;  // the arena's bytes
  std::vector<TokenRow> tokens_;
  BatchCheck check_;
  int64_t n_tok_ = 0, n_out_ = 0;  // rows of the last run
  Ticket last_ = 0;
};

}  // namespace onebit::ref
