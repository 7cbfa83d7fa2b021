#include "engine/step_costs.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace onebit {
namespace {

constexpr double kSpeedRate = 0.1;   // how fast the shared speed follows
constexpr double kShapeShare = 0.1;  // of each of its steps, what a curve's shape takes too: little, since the speed
                                     // finds a new level at times when only some widths are in use
constexpr double kMostSurprise = 2;  // a pass that took longer than that was interrupted
constexpr double kLeastCost = 1e-6;

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Widths to measure: finer where a pass is cheap.
std::vector<int64_t> widths(int64_t least, int64_t most) {
  std::vector<int64_t> all;
  for (int64_t n = least; n < most; n += std::max<int64_t>(1, n / 3)) all.push_back(n);
  all.push_back(most);
  return all;
}

}  // namespace

CostCurve::CostCurve(std::vector<Point> points) : points_(std::move(points)) {
  for (Point& p : points_) p.ms = std::max(p.ms, kLeastCost);
  // Runs of points that share a mean, from the left; a run that lies below the one before it joins that one.
  struct Run {
    double sum;
    size_t n;
    double mean() const { return sum / static_cast<double>(n); }
  };
  std::vector<Run> runs;
  for (const Point& p : points_) {
    runs.push_back({p.ms, 1});
    while (runs.size() > 1 && runs.back().mean() < runs[runs.size() - 2].mean()) {
      const Run last = runs.back();
      runs.pop_back();
      runs.back() = {runs.back().sum + last.sum, runs.back().n + last.n};
    }
  }
  auto point = points_.begin();
  for (const Run& run : runs) {
    for (size_t i = 0; i < run.n; ++i) (point++)->ms = run.mean();
  }
}

double CostCurve::at(double rows) const {
  if (points_.empty() || rows <= 0) return 0;
  if (rows <= points_.front().rows || points_.size() == 1) return points_.front().ms;
  size_t i = 1;
  while (i + 1 < points_.size() && points_[i].rows < rows) ++i;
  const Point &a = points_[i - 1], &b = points_[i];
  return a.ms + (b.ms - a.ms) * (rows - a.rows) / (b.rows - a.rows);
}

void CostCurve::bend(double rows, double ratio) {
  for (size_t i = 0; i < points_.size(); ++i) {
    const double left = i > 0 ? points_[i - 1].rows : points_[i].rows - 1;
    const double right = i + 1 < points_.size() ? points_[i + 1].rows : points_[i].rows + 1;
    const double span = rows < points_[i].rows ? points_[i].rows - left : right - points_[i].rows;
    const double share = std::max(0.0, 1 - std::abs(rows - points_[i].rows) / span);
    points_[i].ms *= 1 + share * (ratio - 1);
  }
}

void StepCosts::observe(CostCurve& curve, int64_t rows, double ms) {
  if (fixed || !curve.known() || rows <= 0) return;
  const double expected = curve.at(static_cast<double>(rows));
  const double ratio = std::clamp(ms / (expected * speed), 1 / kMostSurprise, kMostSurprise);
  const double step = 1 + kSpeedRate * (ratio - 1);
  speed *= step;
  curve.bend(static_cast<double>(rows), std::pow(step, kShapeShare));  // a power: both stand still together
}

CostCurve measure_curve(int64_t least, int64_t most, double left_ms, const std::function<void(int64_t)>& pass,
                        const std::function<void()>& between) {
  const auto timed = [&](int64_t n, bool alone) {
    const auto all = Clock::now();
    if (!alone) between();
    const auto start = Clock::now();
    pass(n);
    const double ms = ms_since(start);
    left_ms -= ms_since(all);
    return ms;
  };
  std::vector<int64_t> some = widths(least, most);
  const bool slow = 2 * static_cast<double>(some.size()) * timed(least, true) > left_ms;
  if (slow) some = {least, most};
  std::vector<CostCurve::Point> points;
  for (const int64_t n : some) points.push_back({static_cast<double>(n), timed(n, slow)});
  while (left_ms > 0) {
    for (CostCurve::Point& point : points) point.ms = std::min(point.ms, timed(static_cast<int64_t>(point.rows), slow));
  }
  return CostCurve(std::move(points));
}

}  // namespace onebit
