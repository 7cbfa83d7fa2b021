#include "measure/int4_budget.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/thread_pool.h"
#include "gguf/keys.h"
#include "measure/evaluation.h"

namespace onebit {
namespace {

/// Codes of the model's own predictions [rows, n_vocab].
struct Reference {
  std::vector<uint16_t> codes;
  int64_t n_vocab = 0;

  std::span<uint16_t> row(int64_t r) {
    return std::span(codes).subspan(static_cast<size_t>(r * n_vocab), static_cast<size_t>(n_vocab));
  }
};

/// Calls f(row, logits of the row) for all scored rows, rows of a run on all threads.
template <class F>
void each_row(LoadedModel& model, const TextChunks& chunks, ThreadPool& pool, F f) {
  const int64_t n_vocab = model.model().config().n_vocab, first = first_scored(chunks.n_ctx);
  for (int64_t c = 0; c < chunks.n_chunk(); ++c) {
    model.run(chunks.evaluated(c), first, [&](int64_t pos, std::span<const float> logits) {
      const auto n = static_cast<int64_t>(logits.size()) / n_vocab;
      std::atomic<int64_t> next{0};
      pool.run([&](int) {
        for (int64_t i = next++; i < n; i = next++) {
          f(c * (chunks.n_ctx - first) + pos - first + i,
            logits.subspan(static_cast<size_t>(i * n_vocab), static_cast<size_t>(n_vocab)));
        }
      });
    });
  }
}

double divergence_from(Reference& reference, const CodeTable& table, LoadedModel& model, const TextChunks& chunks,
                       ThreadPool& pool) {
  std::vector<double> rows(static_cast<size_t>(chunks.n_chunk() * (chunks.n_ctx - first_scored(chunks.n_ctx))));
  each_row(model, chunks, pool, [&](int64_t row, std::span<const float> logits) {
    bool same_top = false;
    rows[static_cast<size_t>(row)] = row_divergence(table, reference.row(row), logits, same_top);
  });
  double sum = 0;
  for (const double value : rows) sum += value;
  return sum / static_cast<double>(rows.size());
}

}  // namespace

int64_t cost_of(const Weight& weight, const ModelConfig& config) {
  const int64_t used = weight.n_expert() > 1 ? std::min(weight.n_expert(), config.n_expert_used) : 1;
  return weight.n_in() * weight.n_out() * used;
}

std::vector<Int4Unit> int4_units(const Model& model) {
  double total = 0;
  std::vector<Int4Unit> units;
  for (const Weight& weight : model.weights().all()) {
    if (weight.shape.size() < 2 || !weight.name.starts_with("blk.") || !type_info(weight.type).quantised) continue;
    const auto cost = static_cast<double>(cost_of(weight, model.config()));
    total += cost;
    if (may_take_int4(weight) && weight.rotated) units.push_back({weight.name, cost, 0, false});
  }
  for (Int4Unit& unit : units) unit.share /= total;
  return units;
}

std::vector<Int4Unit> measure_int4(LoadedModel& model, const TextChunks& chunks,
                                   const std::function<void(double)>& progress) {
  Weights& weights = model.model().mutable_weights();
  std::vector<Int4Unit> units = int4_units(model.model());
  ThreadPool pool(0);
  const CodeTable table;
  Reference reference;
  reference.n_vocab = model.model().config().n_vocab;
  reference.codes.resize(static_cast<size_t>(chunks.n_chunk() * (chunks.n_ctx - first_scored(chunks.n_ctx))) *
                         static_cast<size_t>(reference.n_vocab));
  const auto use = [&](const std::set<std::string>& int4) {
    weights.set_int4(int4);
    model.recompile();
  };
  use({});
  each_row(model, chunks, pool,
           [&](int64_t row, std::span<const float> logits) { encode_logits(logits, reference.row(row)); });
  for (size_t i = 0; i < units.size(); ++i) {
    use({units[i].tensor});
    units[i].divergence = divergence_from(reference, table, model, chunks, pool);
    progress(static_cast<double>(i + 1) / static_cast<double>(units.size()));
  }
  use({});
  return units;
}

std::vector<Int4Unit> measured_int4(const Model& model) {
  const GgufFile& file = model.file();
  if (!file.has(keys::kW4a4Measured)) {
    refuse("{}: expected divergences measured earlier ({}), found none: give a text with -f", file.path(),
           keys::kW4a4Measured);
  }
  const auto names = file.require<std::vector<std::string>>(keys::kW4a4Measured);
  const auto values = file.require<std::vector<float>>(keys::kW4a4Divergence);
  std::map<std::string, float> divergence;
  for (size_t i = 0; i < std::min(names.size(), values.size()); ++i) divergence[names[i]] = values[i];
  std::vector<Int4Unit> units = int4_units(model);
  for (Int4Unit& unit : units) {
    const auto known = divergence.find(unit.tensor);
    if (known == divergence.end() || !std::isfinite(known->second)) {
      refuse("{}: expected a divergence of {} in {}, found none: give a text with -f", file.path(),
             printable(unit.tensor), keys::kW4a4Divergence);
    }
    unit.divergence = known->second;
  }
  return units;
}

// The best divergence per cost first; what no longer fits is passed over.
void keep_exact(std::vector<Int4Unit>& units, double budget) {
  std::vector<Int4Unit*> order;
  for (Int4Unit& unit : units) order.push_back(&unit);
  std::sort(order.begin(), order.end(),
            [](const Int4Unit* a, const Int4Unit* b) { return a->divergence * b->share > b->divergence * a->share; });
  for (Int4Unit* unit : order) {
    if (unit->share > budget || !(unit->divergence > 0)) continue;
    unit->exact = true;
    budget -= unit->share;
  }
}

}  // namespace onebit
