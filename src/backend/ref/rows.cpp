// Moving rows: table lookup, rows that get results, and the buffers that carry rows from one program to another.
#include <algorithm>
#include <cmath>

#include "backend/ref/call.h"
#include "gguf/blocks.h"

namespace onebit::ref {
namespace {

constexpr float kLargestHalf = 65504;

/// NaN becomes 0, everything else is clamped to the range of f16.
float sanitised(float x) { return std::isnan(x) ? 0 : std::clamp(x, -kLargestHalf, kLargestHalf); }

}  // namespace

void embed(const OpCall& call) {
  const Weight& table = call.weight(0);
  const int64_t width = table.n_in(), bytes = row_bytes(table.type, width);
  for (int64_t r = 0; r < call.batch.n_tok(); ++r) {
    const int32_t token = call.batch.tokens[static_cast<size_t>(r)];
    CHECK(token >= 0 && token < table.n_out());
    decode_row(table.type, table.data.data() + token * bytes, call.out() + r * width, width);
  }
}

void gather_rows(const OpCall& call) {
  const int64_t width = call.out_info(0).width;
  for (int64_t r = 0; r < call.batch.n_out(); ++r) {
    std::copy_n(call.in(0) + call.batch.outputs[static_cast<size_t>(r)] * width, width, call.out() + r * width);
  }
}

void store_rows(const OpCall& call) {
  if (call.batch.tap_rows.empty()) return;
  auto& rows = call.memory_of<RowsMemory>();
  const int64_t width = call.in_info(0).width, n_row = call.n_row(call.step.in[0]);
  for (int64_t r = 0; r < n_row; ++r) {
    const int32_t to = call.batch.tap_rows[static_cast<size_t>(r)];
    CHECK(to < rows.n_rows);
    if (to < 0) continue;
    std::copy_n(call.in(0) + r * width, width, rows.data.data() + to * rows.width + call.params<RowsParams>().offset);
  }
}

void load_rows(const OpCall& call) {
  const auto& rows = call.memory_of<RowsMemory>();
  for (int64_t r = 0; r < call.batch.n_tok(); ++r) {
    const int32_t source = call.batch.source_rows[static_cast<size_t>(r)];
    CHECK(source >= 0 && source < rows.n_rows);
    for (int64_t c = 0; c < rows.width; ++c) {
      call.out()[r * rows.width + c] = sanitised(rows.data[static_cast<size_t>(source * rows.width + c)]);
    }
  }
}

}  // namespace onebit::ref
