// The closed list of operations a plan may use: what each computes, on which shapes, with which parameters, and how far
// a backend may stray from the definition. backend/ref/ is the executable form of these formulas.
//
// Shapes are row-major, outermost first. R is the row count of the operand (tokens, outputs or tokens x experts).
// Positions, phases and sequence boundaries of rows come from the Batch (plan/batch.h), never from the plan.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

namespace onebit {

enum class Op : uint8_t {
  embed,        // y[R,W] = table[token(row)]; table [n_vocab, W] of any block type, never rotated
  rms_norm,     // y = x * w / sqrt(mean(x^2) + eps) over groups of `group` columns; w [group]
  add,          // y = a + b
  sigmoid_mul,  // y = x * sigmoid(g); g has x's width, or width 1 (one gate per row)
  swiglu,       // y = silu(gate) * up
  softcap,      // y = x * scale, then cap * tanh(y / cap) when cap > 0
  slice_heads,  // y[R, n_group*length]: from each of n_group column groups of `stride`, columns offset..offset+length-1
  quantize,     // f32 -> act: blocks of 32 columns, rotated first when `rotate`; int8 grid, or int4 for prompt rows
  matmul,       // y[R,N] = x[R,K] W^T; W [N,K]; x is act for quantised W (integer dot per block), else f32
  route,        // ids, weights [R, n_used]: the n_used largest of softmax (or sigmoid) of the router's logits
  matmul_experts,   // y[R*n_used,N]: row (t,j) = x row (t, or (t,j)) times W[ids(t,j)]^T; W [n_expert, N, K]
  combine_experts,  // y[R,W] = sum_j weights(t,j) * x[(t,j)]
  gather_rows,      // y[outputs,W] = x[rows that get logits]
  rope,             // rotary embedding of the first n_rot columns of each head at the row's position
  kv_store,         // writes k, v [R, n_head_kv*d_head] into the cache at the row's position
  attention,        // softmax(scale q k^T) v over cached positions p <= pos(row), and pos - p < window when window > 0
  block_attention,  // as attention over cached p < pos(first row), plus the sequence's own rows k, v (causal or not)
  delta_net,        // short convolution, SiLU, L2 norm, gates and the gated delta rule; see DeltaNetParams
  gated_norm,       // y = rms_norm(x over d columns) * w * silu(z)
  block_conv,       // DFlash2 grouped dynamic causal convolution inside each sequence's rows; see BlockConvParams
  store_rows,       // rows buffer [tap_rows, offset..offset+W-1] = x, for rows that the batch gives a place
  load_rows,        // y[R,W] = rows buffer [source_rows]; NaN -> 0, clamped to +-65504
  argmax,           // ids[R,1]: column of the largest value, lowest column on ties; NaN counts as -infinity
  top_k,            // ids, values [R,k]: the k largest, descending, lowest column first on ties
  select_walk,      // DFlash2 candidate selector: ids, confidence [R,1] and scores [R,k]; see SelectParams
  sum_devices,      // y = sum of the devices' x where several work on one plan (plan/shard.h); else x
};
inline constexpr int kOpCount = static_cast<int>(Op::sum_devices) + 1;

/// How closely a fast backend must follow the definition (tests/support/compare.h turns classes into bounds).
enum class Tolerance : uint8_t {
  exact,      // copies, ids: equal bits
  integer,    // integer dot products are equal; the f32 sum over blocks may be reordered
  rounding,   // elementwise f32: a few units in the last place of the result's scale
  reduction,  // f32 sums over many terms: sqrt(terms) units
};

struct NormParams {
  float eps = 1e-6f;
  int64_t group = 0;  // columns normalised together
};
struct SoftcapParams {
  float scale = 1;
  float cap = 0;  // 0: none
};
struct SliceParams {
  int64_t n_group = 1, stride = 0, offset = 0, length = 0;
};
/// One activation block is 32 int8 codes, one f32 scale and the sum of the codes; a row of K columns has K/32 blocks.
///   int8 grid: d = amax/127, code = round_half_away(x * (127/amax))
///   int4 grid (rows in prompt phase when `prompt_int4`): -8..7, by one of the rules below
/// A block with amax < 2^-100 is all zeros, d = 0. NaN counts as 0; with an infinite amax all codes are 0 and d is
/// +inf. `rotate` applies the 32-point normalised Walsh-Hadamard transform to each block first (gguf/hadamard.h).
///
/// Int4 rules, with m the block's element of largest magnitude (the first one on ties) and u = x * (-1/m):
///   amax:    d = amax/7, code = round_half_away(x * (7/amax))
///   extreme: d = m/-8, code = round_half_even(u * 8): the extreme becomes -8
///   search:  for c in 7, 7.5, 8, 8.7 (in this order): q = clamp(round_half_even(u * c), -8, 7), uq = sum u q,
///            qq = sum q^2, gain = (uq * uq) / qq; the first largest gain wins: codes q, d = -(m * (uq / qq)), which is
///            the least-squares scale. The sums run over the block's elements in order, without fused operations.
enum class Int4Rule : uint8_t { amax, extreme, search };
struct QuantizeParams {
  bool rotate = false;
  bool prompt_int4 = false;
  Int4Rule rule = Int4Rule::search;
  bool operator==(const QuantizeParams&) const = default;
};
/// Chosen by logit, largest first, lowest column first on ties.
enum class RouterGate : uint8_t { softmax, sigmoid };
struct RouteParams {
  int32_t n_used = 0;
  RouterGate gate = RouterGate::softmax;
  bool normalise = true;  // weights are divided by their sum (at least 2^-14)
  float scale = 1;
};
enum class RopeStyle : uint8_t {
  neox,    // pairs (i, i + n_rot/2)
  normal,  // pairs (2i, 2i + 1)
};
/// angle(pos, i) = pos * theta^(-2i/n_rot) / factor_i; factors come from the optional weight [n_rot/2].
/// Angles need f64 (or as good): cosine and sine are those of the exact angle, rounded once.
/// YaRN when yarn_factor > 1: angle = interpolated*(1-ramp) + extrapolated*ramp, cos and sin times attn_factor.
struct RopeParams {
  int64_t n_head = 0, d_head = 0, n_rot = 0;
  float theta = 10000;
  RopeStyle style = RopeStyle::neox;
  float linear_factor = 1;  // positions are divided by this (linear scaling)
  float yarn_factor = 0;    // 0: no YaRN
  float yarn_attn_factor = 1, yarn_beta_fast = 32, yarn_beta_slow = 1;
  int64_t n_ctx_orig = 0;
};
struct AttentionParams {
  int64_t n_head = 0, n_head_kv = 0, d_head = 0;
  float scale = 0;
  int64_t window = 0;  // 0: unlimited
  bool causal = true;  // block_attention only: among the sequence's own rows
};
/// Most taps of a delta net's convolution.
inline constexpr int64_t kMaxConvTaps = 16;
/// Which key head serves value head h: tiled h mod n_k_head (qwen35), grouped h / (n_v_head/n_k_head) (qwen3next).
enum class HeadMap : uint8_t { tiled, grouped };
/// Inputs u [R,C] (C = 2*n_k_head*d_k + n_v_head*d_v, raw), beta, alpha [R,n_v_head] (raw); weights conv [C, n_tap],
/// a [n_v_head] (= -exp(A_log)), dt [n_v_head]. Per row t of a sequence, in order:
///   c = silu(sum_m conv[:,m] * u_{t-n_tap+1+m}), rows before the sequence are 0;  c = [q | k | v]
///   q, k per head: x / sqrt(sum x^2 + eps);  q *= 1/sqrt(d_k);  b = sigmoid(beta);  g = a * softplus(alpha + dt)
///   per value head: S <- exp(g) S;  delta = b (v - S^T k);  S <- S + k delta^T;  o = S^T q
/// State per sequence slot: the last n_tap-1 rows of u, S [n_v_head, d_v, d_k] (f32), and a tape of (u, beta, alpha).
/// Phase verify: rows are computed from the committed state and only written to the tape (starting at tape row 0); any
/// other phase writes the state. Before the rows of a batch, the first `n_commit` rows of the tape are applied; after
/// them the tape holds what this batch wrote to it and no more. A slot occurs at most once in a batch.
struct DeltaNetParams {
  int64_t n_k_head = 0, n_v_head = 0, d_k = 0, d_v = 0, n_tap = 4;
  HeadMap map = HeadMap::tiled;
  float eps = 1e-6f;
};
/// x [R,H], base [2, n_tap, H], delta [R, 2*n_tap*(H/group)] (by side, tap, group); i = row in its sequence:
///   y_i[c] = sum_{t < n_tap, t <= i} (base[side,t,c] + delta_i[side,t,c/group]) * x_{i-t}[c]
struct BlockConvParams {
  int32_t side = 0, n_tap = 2, group = 16;
};
struct RowsParams {
  int64_t offset = 0;  // first column
};
struct TopKParams {
  int32_t k = 1;
};
/// Candidates C, unary U [R,k] of each output row, gamma [R,rank]; codebooks A (predecessor), B (successor), both
/// [n_vocab, rank]. Per sequence, u = token of its first row; for each output row:
///   s_j = U_j + sum_r A[u,r] gamma[r] B[C_j,r] + T gumbel(seed, draw, C_j);  id = C_argmax(s), confidence =
///   softmax(s)[argmax], u = id.
/// T, seed and the draw of the sequence's first output row are the batch's (Sequence::temperature ...); the next row
/// takes the next draw.
struct SelectParams {
  int32_t rank = 0;
};

using OpParams =
    std::variant<std::monostate, NormParams, SoftcapParams, SliceParams, QuantizeParams, RouteParams, RopeParams,
                 AttentionParams, DeltaNetParams, BlockConvParams, RowsParams, TopKParams, SelectParams>;

struct OpInfo {
  std::string_view name;
  Tolerance tolerance;
  bool in_place;  // the output may share storage with input 0
};
const OpInfo& op_info(Op op);

}  // namespace onebit
