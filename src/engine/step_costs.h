// What a pass of the target or of the drafter costs by its number of rows: measured when the engine starts, followed
// while it runs. Choosing a draft's length needs the shape of these curves, not how busy the machine is, so the shared
// speed of all passes is followed apart from the shapes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace onebit {

/// Milliseconds by number of rows: straight lines between measured points, and on beyond the last one.
class CostCurve {
 public:
  /// `points`: rows ascending. Where costs fall with more rows, which only noise does, neighbours share their mean.
  struct Point {
    double rows, ms;
  };
  CostCurve() = default;
  explicit CostCurve(std::vector<Point> points);

  bool known() const { return !points_.empty(); }
  double at(double rows) const;
  /// Moves the curve near `rows` towards at(rows) * ratio.
  void bend(double rows, double ratio);
  const std::vector<Point>& points() const { return points_; }

 private:
  std::vector<Point> points_;
};

/// The shortest time of passes of each width. All widths take turns, so that a busy moment falls on all of them, until
/// `left_ms` are spent. `between` runs before each pass: what the passes of a real step find in the caches is what
/// another program left there. A slow device, where that hardly matters, takes one pass at either end.
CostCurve measure_curve(int64_t least, int64_t most, double left_ms, const std::function<void(int64_t)>& pass,
                        const std::function<void()>& between);

struct StepCosts {
  CostCurve target;  // rows of one batch, each with logits
  CostCurve draft;   // rows of one pass of the drafter
  CostCurve encode;  // rows fed to the drafter's caches
  double speed = 1;  // how much slower than at the start passes are now
  bool fixed = false;

  bool known() const { return target.known(); }
  void observe_target(int64_t rows, double ms) { observe(target, rows, ms); }
  void observe_draft(int64_t rows, double ms) { observe(draft, rows, ms); }

 private:
  void observe(CostCurve& curve, int64_t rows, double ms);
};

}  // namespace onebit
