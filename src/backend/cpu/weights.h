// Weights as this backend holds them, each exactly once. In: views of a file's bytes. Out: strips for matrices
// (layout.h), plain f32 for small vectors, or the file's own bytes for tables whose rows are only looked up.
#pragma once

#include <map>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/pages.h"
#include "backend/cpu/repack.h"
#include "base/thread_pool.h"
#include "plan/weight.h"

namespace onebit::cpu {

struct LoadedWeight {
  enum class Form : uint8_t {
    plain,       // f32, row-major
    transposed,  // f32, [n_in, n_out]
    strips,      // quantised strips of 16 rows
    floats,      // f32, f16 or bf16 strips of up to 64 rows
    file,        // in place
  };
  Form form = Form::plain;
  BlockType type = BlockType::f32;
  Strip strip = Strip::q4_0;  // form strips
  int64_t n_expert = 1, n_out = 1, n_in = 1;
  int64_t strip_bytes = 0;   // of a strip of 16 rows (also within a wider float strip)
  int64_t expert_bytes = 0;  // from one expert's matrix to the next
  const uint8_t* data = nullptr;
  Pages memory;  // of large ones; small ones share the store's, and some are in place

  int64_t n_strip() const { return (n_out + kLanes - 1) / kLanes; }
};

/// Row `row` of all experts' rows as f32 [n_in]; equals decode_row of the file's row.
void gather_row(const Kernels& kernels, const LoadedWeight& weight, int64_t row, float* y);

class WeightStore {
 public:
  WeightStore(const Kernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool), small_(pool) {}

  void load(const Weight& weight);
  /// The weight must have been loaded.
  const LoadedWeight& get(const Weight& weight) const;
  /// The same as f32 [n_expert, n_out, n_in], or [n_in, n_out] when `transposed`. A float matrix takes this form for
  /// good when it is first asked for: taps of convolutions are small and read element by element, never multiplied.
  const float* plain(const Weight& weight, bool transposed = false);

 private:
  void pack_all(const Weight& weight, const LoadedWeight& loaded, uint8_t* memory);

  const Kernels& kernels_;
  ThreadPool& pool_;
  SmallBlocks small_;
  std::map<const Weight*, LoadedWeight> loaded_;
};

/// Bytes that load() will allocate for the weight.
int64_t loaded_bytes(const Weight& weight);
/// True when the weight is used in place.
bool stays_in_file(const Weight& weight);

}  // namespace onebit::cpu
