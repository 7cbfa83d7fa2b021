// The weights of one file by name: shape-checked views with their rotation mark. Owns the Weight records, not the
// bytes.
#pragma once

#include <deque>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gguf/file.h"
#include "model/linear.h"
#include "plan/weight.h"

namespace onebit {

class Weights {
 public:
  /// Checks the file's stamp. `file` must outlive the object.
  Weights(const GgufFile& file, const W4a4Choice& choice);

  /// The tensor of this name; refused when it is missing or of another shape (outermost first; dimensions of 1 may be
  /// left out on the outside) or of a type that can't be computed with. References stay valid for the object's life.
  const Weight& get(const std::string& name, const std::vector<int64_t>& shape);
  /// As get, or nothing when the file has no such tensor.
  const Weight* find(const std::string& name, const std::vector<int64_t>& shape);

  /// From now on exactly these weights use 4-bit activations for prompts. Plans made before keep what they had.
  void set_int4(const std::set<std::string>& names);

  int64_t stamp() const { return stamp_; }
  const GgufFile& file() const { return file_; }
  const std::deque<Weight>& all() const { return weights_; }
  bool owns(const Weight* weight) const;

 private:
  const GgufFile& file_;
  W4a4Policy policy_;
  int64_t stamp_ = 0;
  std::deque<Weight> weights_;
  std::unordered_map<std::string, const Weight*> index_;
};

}  // namespace onebit
