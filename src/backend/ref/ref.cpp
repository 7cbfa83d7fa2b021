// The backend itself: which weights it has been given, and how programs and pools are made.
#include "backend/ref/ref.h"

#include <set>

#include "backend/host_team.h"
#include "backend/ref/program.h"
#include "backend/ref/states.h"

namespace onebit {
namespace {

class RefBackend : public Backend {
 public:
  const DeviceInfo& info() const override { return info_; }
  int64_t weight_bytes(const Weight& weight) const override { return static_cast<int64_t>(weight.data.size()); }
  bool keeps_file_bytes(const Weight&) const override { return true; }

  void load(const Weight& weight) override {
    CHECK(!weight.shape.empty() && type_info(weight.type).decodable);
    int64_t n_row = 1;
    for (size_t i = 0; i + 1 < weight.shape.size(); ++i) n_row *= weight.shape[i];
    CHECK(static_cast<int64_t>(weight.data.size()) == n_row * row_bytes(weight.type, weight.n_in()));
    loaded_.insert(&weight);
  }

  bool keeps_cache(CacheType) const override { return true; }
  std::unique_ptr<StatePool> make_states(const std::vector<const State*>& states, const StateSizes& sizes) override {
    return std::make_unique<ref::States>(states, sizes);
  }

  std::unique_ptr<Program> compile(const Plan& plan, std::span<StatePool* const> pools,
                                   const PlanLimits& limits) override {
    return std::make_unique<ref::RefProgram>(
        plan, pools, limits, [this](const Weight* weight) { return loaded_.contains(weight); }, membership_);
  }

  std::shared_ptr<Team> make_team(std::span<const int> ordinals) override {
    return std::make_shared<HostTeam>(ordinals.size());
  }
  void join(Membership membership) override { membership_ = std::move(membership); }

 private:
  DeviceInfo info_{"ref", "reference, 1 thread, scalar", 0};
  std::set<const Weight*> loaded_;
  Membership membership_;
};

}  // namespace

std::unique_ptr<Backend> make_ref_backend() { return std::make_unique<RefBackend>(); }

}  // namespace onebit
