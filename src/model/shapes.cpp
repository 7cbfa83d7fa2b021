// The table of shapes, their metadata and tensors, and random weights that keep activations in the range of a real
// model's: matrices of standard deviation 1/32, norms of 1, decays between -8 and -1/2.
#include "model/shapes.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "gguf/blocks.h"
#include "gguf/keys.h"
#include "gguf/writer.h"

namespace onebit {
namespace {

constexpr std::string_view kPrefix = "shape:";
constexpr int64_t kPattern = 1 << 19;  // elements of a type that are made once and repeated
constexpr int64_t kMaxLayers = 1024, kMaxVocab = 1 << 20;

/// Sizes of a shape; 0 where the architecture has no such thing.
struct Shape {
  const char *name, *architecture;
  int64_t n_layer, n_embd, n_ff, n_head, n_head_kv, d_head, n_vocab;
  bool tied = false;
  int64_t n_expert = 0, n_expert_used = 0, n_ff_expert = 0, n_ff_shared = 0;
  int64_t n_k_head = 0, n_v_head = 0;  // of the delta net, 128 columns each
  int64_t n_tap = 0;                   // drafters: tapped blocks of the target
};

constexpr Shape kShapes[] = {
    {"qwen3-0.6b", "qwen3", 28, 1024, 3072, 16, 8, 128, 151936, true},
    {"qwen3-4b", "qwen3", 36, 2560, 9728, 32, 8, 128, 151936, true},
    {"qwen3-8b", "qwen3", 36, 4096, 12288, 32, 8, 128, 151936},
    {"qwen3-30b-a3b", "qwen3moe", 48, 2048, 0, 32, 4, 128, 151936, false, 128, 8, 768},
    {"qwen35-0.8b", "qwen35", 24, 1024, 3584, 8, 2, 256, 248320, true, 0, 0, 0, 0, 16, 16},
    {"qwen35-4b", "qwen35", 32, 2560, 9216, 16, 4, 256, 248320, true, 0, 0, 0, 0, 16, 32},
    {"qwen3.8-27b", "qwen35", 64, 5120, 17408, 24, 4, 256, 248320, false, 0, 0, 0, 0, 16, 48},
    {"qwen3.6-35b-a3b", "qwen35moe", 40, 2048, 0, 16, 2, 256, 248320, false, 256, 8, 512, 512, 16, 32},
    {"draft-0.8b", "dflash", 3, 1024, 3584, 8, 2, 128, 248320, true, 0, 0, 0, 0, 0, 0, 5},
    {"draft-27b", "dflash", 5, 5120, 17408, 32, 8, 128, 248320, true, 0, 0, 0, 0, 0, 0, 5},
};
constexpr int64_t kHeadSize = 128, kConvTaps = 4;  // of the delta net
constexpr int64_t kDraftTaps = 2, kDraftGroup = 16, kDraftRank = 256, kDraftTopK = 16, kDraftBlock = 8;

/// What "shape:..." asks for.
struct Wish {
  Shape shape;
  BlockType type = BlockType::q4_0, head = BlockType::q6_k;
  bool mixed = false;  // q4_k_m: some matrices in q6_k
};

[[noreturn]] void unknown_shape(std::string_view text) {
  std::string known;
  for (const Shape& shape : kShapes) known += fmt::format("{}{}", known.empty() ? "" : ", ", shape.name);
  fail(ErrorKind::usage,
       "{}: expected shape:NAME[@LAYERS][,type=TYPE][,head=TYPE][,vocab=N] with TYPE q4_0, q8_0, q4_k_m, bf16 ... and "
       "NAME one of {}",
       printable(text), known);
}

int64_t number_in(std::string_view text, int64_t most, std::string_view whole) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most) unknown_shape(whole);
  return value;
}

BlockType type_in(std::string_view text, std::string_view whole) {
  const std::optional<BlockType> type = parse_type(text);
  if (!type || !type_info(*type).encodable) unknown_shape(whole);
  return *type;
}

void apply_option(std::string_view option, std::string_view whole, Wish& wish) {
  if (option.starts_with("vocab=")) {
    wish.shape.n_vocab = number_in(option.substr(6), kMaxVocab, whole);
  } else if (option.starts_with("head=")) {
    wish.head = type_in(option.substr(5), whole);
  } else if (option == "type=q4_k_m") {
    wish.type = BlockType::q4_k;
    wish.mixed = true;
  } else if (option.starts_with("type=")) {
    wish.type = type_in(option.substr(5), whole);
    if (wish.type != BlockType::q4_0) wish.head = wish.type;
  } else {
    unknown_shape(whole);
  }
}

Wish read_wish(std::string_view text) {
  std::string_view rest = text.substr(kPrefix.size());
  const auto cut = [&rest](char at) {
    const size_t end = std::min(rest.find(at), rest.size());
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return part;
  };
  std::string_view name = cut(',');
  std::string_view layers;
  if (const size_t at = name.find('@'); at != std::string_view::npos) {
    layers = name.substr(at + 1);
    name = name.substr(0, at);
  }
  Wish wish{};
  const auto found =
      std::find_if(std::begin(kShapes), std::end(kShapes), [&](const Shape& s) { return s.name == name; });
  if (found == std::end(kShapes)) unknown_shape(text);
  wish.shape = *found;
  wish.type = BlockType::q4_0;
  wish.head = BlockType::q6_k;
  if (!layers.empty()) wish.shape.n_layer = number_in(layers, kMaxLayers, text);
  while (!rest.empty()) apply_option(cut(','), text, wish);
  return wish;
}

// --- metadata -------------------------------------------------------------------------------------------------------

void add_metadata(const Shape& s, GgufHead& head) {
  const std::string arch = s.architecture;
  const auto count = [&](const std::string& key, int64_t value) { head.add(key, static_cast<uint32_t>(value)); };
  head.add(keys::kArchitecture, arch);
  head.add(keys::kName, s.name);
  head.add(keys::kTokenizerModel, "none");
  count(keys::vocab_size(arch), s.n_vocab);
  count(keys::block_count(arch), s.n_layer);
  count(keys::context_length(arch), 262144);
  count(keys::embedding_length(arch), s.n_embd);
  if (s.n_ff > 0) count(keys::feed_forward_length(arch), s.n_ff);
  count(keys::head_count(arch), s.n_head);
  count(keys::head_count_kv(arch), s.n_head_kv);
  count(keys::key_length(arch), s.d_head);
  count(keys::value_length(arch), s.d_head);
  head.add(keys::rms_epsilon(arch), 1e-6f);
  head.add(keys::rope_freq_base(arch), 1e6f);
  if (s.n_expert > 0) {
    count(keys::expert_count(arch), s.n_expert);
    count(keys::expert_used_count(arch), s.n_expert_used);
    count(keys::expert_feed_forward_length(arch), s.n_ff_expert);
  }
  if (s.n_ff_shared > 0) count(keys::expert_shared_feed_forward_length(arch), s.n_ff_shared);
  if (s.n_v_head > 0) {
    count(keys::rope_dimension_count(arch), 64);
    head.add(keys::rope_dimension_sections(arch), std::vector<int32_t>{11, 11, 10, 0});
    count(keys::full_attention_interval(arch), 4);
    count(keys::ssm_conv_kernel(arch), kConvTaps);
    count(keys::ssm_state_size(arch), kHeadSize);
    count(keys::ssm_group_count(arch), s.n_k_head);
    count(keys::ssm_time_step_rank(arch), s.n_v_head);
    count(keys::ssm_inner_size(arch), s.n_v_head * kHeadSize);
  }
}

/// The first blocks of the target are tapped, so that a shortened target has them too.
void add_draft_metadata(const Shape& s, GgufHead& head) {
  std::vector<int32_t> taps;
  for (int32_t i = 1; i <= s.n_tap; ++i) taps.push_back(i);
  head.add(keys::kDflashTargetLayers, taps);
  head.add(keys::kDflashBlockSize, static_cast<uint32_t>(kDraftBlock));
  head.add(keys::kDflashConvKernelSize, static_cast<uint32_t>(kDraftTaps));
  head.add(keys::kDflashConvGroupSize, static_cast<uint32_t>(kDraftGroup));
  head.add(keys::kDflashSelectorRank, static_cast<uint32_t>(kDraftRank));
  head.add(keys::kDflashSelectorTopK, static_cast<uint32_t>(kDraftTopK));
  head.add(keys::kDflashMaskTokenId, static_cast<uint32_t>(s.n_vocab - 1));
}

// --- tensors --------------------------------------------------------------------------------------------------------

/// Declares the tensors of one shape.
struct Tensors {
  const Wish& wish;
  GgufHead& head;
  const Shape& s = wish.shape;

  void add(const std::string& name, BlockType type, std::initializer_list<int64_t> shape) {
    head.declare(name, type, std::vector<int64_t>(shape));
  }
  void floats(int64_t i, const char* role, std::initializer_list<int64_t> shape) {
    add(keys::block(i, role), BlockType::f32, shape);
  }
  void matrix(int64_t i, const char* role, std::initializer_list<int64_t> shape) {
    add(keys::block(i, role), wish.type, shape);
  }
  /// A matrix that q4_k_m files keep at 6 bits in the first and last eighth of the blocks and in every third between.
  void careful_matrix(int64_t i, const char* role, std::initializer_list<int64_t> shape) {
    const bool more = i < s.n_layer / 8 || i >= 7 * s.n_layer / 8 || (i - s.n_layer / 8) % 3 == 2;
    add(keys::block(i, role), wish.mixed && more ? BlockType::q6_k : wish.type, shape);
  }

  void attention(int64_t i, bool gated) {
    matrix(i, keys::kAttnQ, {s.n_head * s.d_head * (gated ? 2 : 1), s.n_embd});
    matrix(i, keys::kAttnK, {s.n_head_kv * s.d_head, s.n_embd});
    careful_matrix(i, keys::kAttnV, {s.n_head_kv * s.d_head, s.n_embd});
    matrix(i, keys::kAttnOutput, {s.n_embd, s.n_head * s.d_head});
    floats(i, keys::kAttnQNorm, {s.d_head});
    floats(i, keys::kAttnKNorm, {s.d_head});
  }
  void delta_net(int64_t i) {
    const int64_t inner = s.n_v_head * kHeadSize, n_channel = 2 * s.n_k_head * kHeadSize + inner;
    matrix(i, keys::kAttnQkv, {n_channel, s.n_embd});
    matrix(i, keys::kAttnGate, {inner, s.n_embd});
    floats(i, keys::kSsmBeta, {s.n_v_head, s.n_embd});
    floats(i, keys::kSsmAlpha, {s.n_v_head, s.n_embd});
    floats(i, keys::kSsmConv1d, {n_channel, kConvTaps});
    floats(i, keys::kSsmA, {s.n_v_head});
    floats(i, keys::kSsmDtBias, {s.n_v_head});
    floats(i, keys::kSsmNorm, {kHeadSize});
    matrix(i, keys::kSsmOut, {s.n_embd, inner});
  }
  void dense(int64_t i) {
    matrix(i, keys::kFfnGate, {s.n_ff, s.n_embd});
    matrix(i, keys::kFfnUp, {s.n_ff, s.n_embd});
    careful_matrix(i, keys::kFfnDown, {s.n_embd, s.n_ff});
  }
  void experts(int64_t i) {
    floats(i, keys::kFfnGateInp, {s.n_expert, s.n_embd});
    matrix(i, keys::kFfnGateExps, {s.n_expert, s.n_ff_expert, s.n_embd});
    matrix(i, keys::kFfnUpExps, {s.n_expert, s.n_ff_expert, s.n_embd});
    careful_matrix(i, keys::kFfnDownExps, {s.n_expert, s.n_embd, s.n_ff_expert});
    if (s.n_ff_shared == 0) return;
    floats(i, keys::kFfnGateInpShexp, {s.n_embd});
    matrix(i, keys::kFfnGateShexp, {s.n_ff_shared, s.n_embd});
    matrix(i, keys::kFfnUpShexp, {s.n_ff_shared, s.n_embd});
    matrix(i, keys::kFfnDownShexp, {s.n_embd, s.n_ff_shared});
  }
  void target() {
    add(keys::kTokenEmbd, s.tied ? wish.head : wish.type, {s.n_vocab, s.n_embd});
    if (!s.tied) add(keys::kOutput, wish.head, {s.n_vocab, s.n_embd});
    add(keys::kOutputNorm, BlockType::f32, {s.n_embd});
    const bool hybrid = s.n_v_head > 0;
    for (int64_t i = 0; i < s.n_layer; ++i) {
      floats(i, keys::kAttnNorm, {s.n_embd});
      const bool recurrent = hybrid && (i + 1) % 4 != 0;
      recurrent ? delta_net(i) : attention(i, hybrid);
      floats(i, hybrid ? keys::kPostAttentionNorm : keys::kFfnNorm, {s.n_embd});
      s.n_expert > 0 ? experts(i) : dense(i);
    }
  }
  void drafter() {
    add(keys::kFc, wish.type, {s.n_embd, s.n_tap * s.n_embd});
    add(keys::kEncOutputNorm, BlockType::f32, {s.n_embd});
    add(keys::kOutputNorm, BlockType::f32, {s.n_embd});
    add(keys::kSelectorHidden, wish.type, {kDraftRank, s.n_embd});
    add(keys::kSelectorPredecessor, wish.type, {s.n_vocab, kDraftRank});
    add(keys::kSelectorSuccessor, wish.type, {s.n_vocab, kDraftRank});
    for (int64_t i = 0; i < s.n_layer; ++i) {
      floats(i, keys::kAttnNorm, {s.n_embd});
      attention(i, false);
      floats(i, keys::kFfnNorm, {s.n_embd});
      dense(i);
      for (const auto& [base, proj] :
           {std::pair{keys::kAttnConvBase, keys::kAttnConvProj}, std::pair{keys::kFfnConvBase, keys::kFfnConvProj}}) {
        floats(i, base, {2, kDraftTaps, s.n_embd});
        matrix(i, proj, {2 * kDraftTaps * (s.n_embd / kDraftGroup), s.n_embd});
      }
    }
  }
};

void describe(const Wish& wish, GgufHead& head) {
  add_metadata(wish.shape, head);
  if (wish.shape.n_tap > 0) add_draft_metadata(wish.shape, head);
  Tensors tensors{wish, head};
  wish.shape.n_tap > 0 ? tensors.drafter() : tensors.target();
}

// --- weights --------------------------------------------------------------------------------------------------------

/// Random weights by type, made once and repeated.
class Patterns {
 public:
  /// The data of tensor `index`.
  void fill(const GgufHead::Tensor& tensor, size_t index, std::span<uint8_t> to) {
    if (tensor.shape.size() == 1 || tensor.name.ends_with(keys::kAttnConvBase)) return fill_vector(tensor, to);
    const std::vector<uint8_t>& pattern = of(tensor.type);
    // Tensors start at different blocks of it.
    size_t at = index * 977 % (pattern.size() / static_cast<size_t>(type_info(tensor.type).block_bytes)) *
                static_cast<size_t>(type_info(tensor.type).block_bytes);
    for (size_t done = 0; done < to.size();) {
      const size_t n = std::min(pattern.size() - at, to.size() - done);
      std::memcpy(to.data() + done, pattern.data() + at, n);
      done += n;
      at = 0;
    }
  }

 private:
  const std::vector<uint8_t>& of(BlockType type) {
    std::vector<uint8_t>& pattern = patterns_[type];
    if (!pattern.empty()) return pattern;
    std::vector<float> values(kPattern);
    Rng rng(static_cast<uint64_t>(type) + 1);
    for (float& value : values) {  // the sum of four uniform numbers is normal enough
      const uint64_t bits = rng.next();
      int sum = 0;
      for (int i = 0; i < 4; ++i) sum += static_cast<int>(bits >> 16 * i & 0xffff);
      value = (static_cast<float>(sum) / 65536 - 2) * 0.054f;
    }
    pattern.resize(static_cast<size_t>(row_bytes(type, kPattern)));
    encode_row(type, values.data(), pattern.data(), kPattern);
    return pattern;
  }
  static void fill_vector(const GgufHead::Tensor& tensor, std::span<uint8_t> to) {
    const bool decays = tensor.name.ends_with(keys::kSsmA), bias = tensor.name.ends_with(keys::kSsmDtBias);
    const bool small = tensor.shape.size() > 1;
    for (size_t i = 0; i < to.size() / 4; ++i) {
      const float part = static_cast<float>(i % 16) / 16;
      const float value = decays ? -0.5f - 7.5f * part : bias ? part - 0.5f : small ? 0.25f : 1;
      std::memcpy(to.data() + 4 * i, &value, 4);
    }
  }

  std::map<BlockType, std::vector<uint8_t>> patterns_;
};

}  // namespace

bool is_shape(std::string_view path) { return path.starts_with(kPrefix); }

GgufFile open_model_file(const std::string& path, Filling filling) {
  if (!is_shape(path)) return GgufFile::open(path);
  GgufHead head(path);
  describe(read_wish(path), head);
  const std::vector<uint8_t> bytes = head.head_bytes();
  MappedFile file = MappedFile::in_memory(path, bytes.size() + head.data_bytes());
  std::memcpy(file.writable_bytes().data(), bytes.data(), bytes.size());
  Patterns patterns;
  for (size_t i = 0; filling == Filling::weights && i < head.tensors().size(); ++i) {
    const GgufHead::Tensor& tensor = head.tensors()[i];
    patterns.fill(tensor, i, file.writable_bytes().subspan(bytes.size() + tensor.offset, tensor.size));
  }
  return GgufFile::from_mapping(std::move(file));
}

void write_shape(const std::string& shape, const std::string& path) {
  const GgufFile file = open_model_file(shape);
  GgufWriter writer(path);
  for (const MetaEntry& entry : file.metadata()) writer.add(entry.key, entry.value);
  for (const TensorInfo& tensor : file.tensors()) writer.declare(tensor.name, tensor.type, tensor.shape);
  for (const TensorInfo& tensor : file.tensors()) writer.write(tensor.name, tensor.data);
  writer.finish();
}

}  // namespace onebit
