// Every metadata key and tensor name that the engine reads or writes: one line each, with type and default.
// "required" keys are refused when missing. Keys of an architecture take its name (general.architecture) as argument.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace onebit::keys {

// --- the file -------------------------------------------------------------------------------------------------------
inline constexpr const char* kArchitecture = "general.architecture";                 // string, required
inline constexpr const char* kType = "general.type";                                 // string, "model"
inline constexpr const char* kName = "general.name";                                 // string, none
inline constexpr const char* kSizeLabel = "general.size_label";                      // string, none
inline constexpr const char* kFileType = "general.file_type";                        // u32, informative only
inline constexpr const char* kQuantizationVersion = "general.quantization_version";  // u32, 2 in files we write
inline constexpr const char* kAlignment = "general.alignment";                       // u32, 32
inline constexpr const char* kSplitNo = "split.no";                                  // u16, 0
inline constexpr const char* kSplitCount = "split.count";                            // u16, 1
inline constexpr const char* kSplitTensorsCount = "split.tensors.count";  // i32, tensors of all parts together
inline constexpr const char* kHadamard = "onebit.hadamard_q4_0";          // i32 or u32: 32, absent = not rotated
inline constexpr const char* kW4a4Tensors = "onebit.w4a4_tensors";        // string array, absent = all rotated
inline constexpr const char* kW4a4Measured = "onebit.w4a4_measured";      // string array, tensors of the next
inline constexpr const char* kW4a4Divergence = "onebit.w4a4_divergence";  // f32 array, nats: of each one's 4-bit inputs

// --- architecture: sizes --------------------------------------------------------------------------------------------
inline std::string of(std::string_view arch, std::string_view suffix) { return fmt::format("{}.{}", arch, suffix); }
/// u32, required: blocks, those of MTP heads included.
inline std::string block_count(std::string_view arch) { return of(arch, "block_count"); }
/// u32, required: trained context.
inline std::string context_length(std::string_view arch) { return of(arch, "context_length"); }
/// u32, required: n_embd.
inline std::string embedding_length(std::string_view arch) { return of(arch, "embedding_length"); }
/// u32 or per layer; required in dense models, absent or unused in mixture models.
inline std::string feed_forward_length(std::string_view arch) { return of(arch, "feed_forward_length"); }
/// u32, the rows of token_embd when absent.
inline std::string vocab_size(std::string_view arch) { return of(arch, "vocab_size"); }
/// u32, 0: MTP blocks after the trunk.
inline std::string nextn_predict_layers(std::string_view arch) { return of(arch, "nextn_predict_layers"); }

// --- architecture: attention ----------------------------------------------------------------------------------------
/// u32 or per layer, required: n_head.
inline std::string head_count(std::string_view arch) { return of(arch, "attention.head_count"); }
/// u32 or per layer, n_head: n_head_kv.
inline std::string head_count_kv(std::string_view arch) { return of(arch, "attention.head_count_kv"); }
/// u32, n_embd / n_head: d_head of queries and keys.
inline std::string key_length(std::string_view arch) { return of(arch, "attention.key_length"); }
/// u32, n_embd / n_head: d_head of values.
inline std::string value_length(std::string_view arch) { return of(arch, "attention.value_length"); }
/// f32, required.
inline std::string rms_epsilon(std::string_view arch) { return of(arch, "attention.layer_norm_rms_epsilon"); }
/// u32, none = no window.
inline std::string sliding_window(std::string_view arch) { return of(arch, "attention.sliding_window"); }
/// bool per layer, all true when a window is given: which layers slide.
inline std::string sliding_window_pattern(std::string_view arch) {
  return of(arch, "attention.sliding_window_pattern");
}
/// bool, false for drafters: whether rows of a block see only earlier ones.
inline std::string attention_causal(std::string_view arch) { return of(arch, "attention.causal"); }
/// bool per layer, none: which layers are recurrent; wins over full_attention_interval.
inline std::string recurrent_layers(std::string_view arch) { return of(arch, "attention.recurrent_layers"); }
/// u32, 4: layer i has full attention iff (i + 1) % interval == 0.
inline std::string full_attention_interval(std::string_view arch) { return of(arch, "full_attention_interval"); }

// --- architecture: positions ----------------------------------------------------------------------------------------
/// f32, 10000.
inline std::string rope_freq_base(std::string_view arch) { return of(arch, "rope.freq_base"); }
/// u32, key_length: n_rot.
inline std::string rope_dimension_count(std::string_view arch) { return of(arch, "rope.dimension_count"); }
/// i32[4], none: only text positions are used, so the sections never change a result. Written for qwen35, qwen35moe.
inline std::string rope_dimension_sections(std::string_view arch) { return of(arch, "rope.dimension_sections"); }
/// string, "none": none, linear, yarn.
inline std::string rope_scaling_type(std::string_view arch) { return of(arch, "rope.scaling.type"); }
/// f32, 1.
inline std::string rope_scaling_factor(std::string_view arch) { return of(arch, "rope.scaling.factor"); }
/// u32, context_length.
inline std::string rope_original_context(std::string_view arch) {
  return of(arch, "rope.scaling.original_context_length");
}
/// f32, 1.
inline std::string rope_attn_factor(std::string_view arch) { return of(arch, "rope.scaling.attn_factor"); }
/// f32, 1.
inline std::string yarn_ext_factor(std::string_view arch) { return of(arch, "rope.scaling.yarn_ext_factor"); }
/// f32, 1.
inline std::string yarn_attn_factor(std::string_view arch) { return of(arch, "rope.scaling.yarn_attn_factor"); }
/// f32, 32.
inline std::string yarn_beta_fast(std::string_view arch) { return of(arch, "rope.scaling.yarn_beta_fast"); }
/// f32, 1.
inline std::string yarn_beta_slow(std::string_view arch) { return of(arch, "rope.scaling.yarn_beta_slow"); }

// --- architecture: experts ------------------------------------------------------------------------------------------
/// u32, 0 = dense: n_expert.
inline std::string expert_count(std::string_view arch) { return of(arch, "expert_count"); }
/// u32, required in mixture models: n_expert_used.
inline std::string expert_used_count(std::string_view arch) { return of(arch, "expert_used_count"); }
/// u32, required in mixture models: width of a routed expert.
inline std::string expert_feed_forward_length(std::string_view arch) { return of(arch, "expert_feed_forward_length"); }
/// u32, 0 = no shared expert: its width.
inline std::string expert_shared_feed_forward_length(std::string_view arch) {
  return of(arch, "expert_shared_feed_forward_length");
}

// --- architecture: gated delta net ----------------------------------------------------------------------------------
/// u32, required in hybrids: taps of the convolution.
inline std::string ssm_conv_kernel(std::string_view arch) { return of(arch, "ssm.conv_kernel"); }
/// u32, required in hybrids: size of a key head and of a value head.
inline std::string ssm_state_size(std::string_view arch) { return of(arch, "ssm.state_size"); }
/// u32, required in hybrids: key heads.
inline std::string ssm_group_count(std::string_view arch) { return of(arch, "ssm.group_count"); }
/// u32, required in hybrids: value heads.
inline std::string ssm_time_step_rank(std::string_view arch) { return of(arch, "ssm.time_step_rank"); }
/// u32, required in hybrids: value heads times their size.
inline std::string ssm_inner_size(std::string_view arch) { return of(arch, "ssm.inner_size"); }

// --- drafters (architecture "dflash") -------------------------------------------------------------------------------
/// i32 array, required: the target's blocks whose outputs are tapped, counted from 1.
inline constexpr const char* kDflashTargetLayers = "dflash.target_layers";
/// u32, 16: rows of a block, the anchor included (a block of 8 drafts 7 tokens).
inline constexpr const char* kDflashBlockSize = "dflash.block_size";
/// u32, absent in version 1, required in version 2.
inline constexpr const char* kDflashConvKernelSize = "dflash.conv_kernel_size";
/// u32, absent in version 1, required in version 2.
inline constexpr const char* kDflashConvGroupSize = "dflash.conv_group_size";
/// u32, absent in version 1, required in version 2.
inline constexpr const char* kDflashSelectorRank = "dflash.selector_rank";
/// u32, absent in version 1, required in version 2.
inline constexpr const char* kDflashSelectorTopK = "dflash.selector_top_k";
/// f32, 1: factor on the logits.
inline constexpr const char* kDflashLogitScale = "dflash.logit_scale";
/// f32, 0 = none: cap of the logits.
inline constexpr const char* kDflashFinalLogitSoftcapping = "dflash.final_logit_softcapping";
/// f32, 1: factor on the input embeddings.
inline constexpr const char* kDflashEmbeddingScale = "dflash.embedding_scale";
/// u32, embedding_length: n_embd of the target.
inline constexpr const char* kDflashTargetHiddenSize = "dflash.target_hidden_size";
/// u32, when tokenizer.ggml.mask_token_id is absent.
inline constexpr const char* kDflashMaskTokenId = "dflash.mask_token_id";

// --- tokenizer ------------------------------------------------------------------------------------------------------
inline constexpr const char* kTokenizerModel = "tokenizer.ggml.model";                   // string, required: "gpt2"
inline constexpr const char* kTokenizerPre = "tokenizer.ggml.pre";                       // string, required
inline constexpr const char* kTokenizerTokens = "tokenizer.ggml.tokens";                 // string array, required
inline constexpr const char* kTokenizerTokenType = "tokenizer.ggml.token_type";          // i32 array, all normal
inline constexpr const char* kTokenizerMerges = "tokenizer.ggml.merges";                 // string array, required
inline constexpr const char* kTokenizerBos = "tokenizer.ggml.bos_token_id";              // u32, none
inline constexpr const char* kTokenizerEos = "tokenizer.ggml.eos_token_id";              // u32, none
inline constexpr const char* kTokenizerEot = "tokenizer.ggml.eot_token_id";              // u32, none
inline constexpr const char* kTokenizerEom = "tokenizer.ggml.eom_token_id";              // u32, none
inline constexpr const char* kTokenizerUnknown = "tokenizer.ggml.unknown_token_id";      // u32, none
inline constexpr const char* kTokenizerSeparator = "tokenizer.ggml.seperator_token_id";  // u32, none; spelt like this
inline constexpr const char* kTokenizerPadding = "tokenizer.ggml.padding_token_id";      // u32, none
inline constexpr const char* kTokenizerMask = "tokenizer.ggml.mask_token_id";            // u32, none; drafters need it
inline constexpr const char* kTokenizerFimPre = "tokenizer.ggml.fim_pre_token_id";       // u32, none
inline constexpr const char* kTokenizerFimSuf = "tokenizer.ggml.fim_suf_token_id";       // u32, none
inline constexpr const char* kTokenizerFimMid = "tokenizer.ggml.fim_mid_token_id";       // u32, none
inline constexpr const char* kTokenizerFimPad = "tokenizer.ggml.fim_pad_token_id";       // u32, none
inline constexpr const char* kTokenizerFimRep = "tokenizer.ggml.fim_rep_token_id";       // u32, none
inline constexpr const char* kTokenizerFimSep = "tokenizer.ggml.fim_sep_token_id";       // u32, none
inline constexpr const char* kTokenizerAddBos = "tokenizer.ggml.add_bos_token";  // bool, depends on the pre-tokenizer
inline constexpr const char* kTokenizerAddEos = "tokenizer.ggml.add_eos_token";  // bool, false
inline constexpr const char* kTokenizerAddSpacePrefix = "tokenizer.ggml.add_space_prefix";  // bool, false
inline constexpr const char* kChatTemplate = "tokenizer.chat_template";                     // string, none
inline constexpr const char* kChatTemplates = "tokenizer.chat_templates";  // string array, none: names of variants

// --- sampling that a model's makers recommend ------------------------------------------------------------------------
inline constexpr const char* kSamplingTemperature = "general.sampling.temp";              // f32, 0.8
inline constexpr const char* kSamplingTopK = "general.sampling.top_k";                    // i32, 40
inline constexpr const char* kSamplingTopP = "general.sampling.top_p";                    // f32, 0.95
inline constexpr const char* kSamplingMinP = "general.sampling.min_p";                    // f32, 0.05
inline constexpr const char* kSamplingRepeatPenalty = "general.sampling.penalty_repeat";  // f32, 1
inline constexpr const char* kSamplingRepeatLastN = "general.sampling.penalty_last_n";    // i32, 64

// --- tensors of a whole model ---------------------------------------------------------------------------------------
inline constexpr const char* kTokenEmbd = "token_embd.weight";           // [n_vocab, n_embd]
inline constexpr const char* kOutputNorm = "output_norm.weight";         // [n_embd]
inline constexpr const char* kOutput = "output.weight";                  // [n_vocab, n_embd], token_embd when absent
inline constexpr const char* kRopeFreqs = "rope_freqs.weight";           // [n_rot / 2], ones when absent
inline constexpr const char* kFc = "fc.weight";                          // drafter: [n_embd, n_taps * n_embd_target]
inline constexpr const char* kEncOutputNorm = "enc.output_norm.weight";  // drafter: [n_embd]
inline constexpr const char* kSelectorPredecessor = "selector_predecessor.weight";  // drafter: [n_vocab, rank]
inline constexpr const char* kSelectorSuccessor = "selector_successor.weight";      // drafter: [n_vocab, rank]
inline constexpr const char* kSelectorHidden = "selector_hidden.weight";            // drafter: [rank, n_embd]
inline constexpr const char* kDraftToTarget = "d2t";  // drafter: i64 [n_vocab_draft], same ids if absent

// --- tensors of a block: "blk.N." + role ----------------------------------------------------------------------------
inline std::string block(int64_t index, std::string_view role) { return fmt::format("blk.{}.{}", index, role); }
inline constexpr const char* kAttnNorm = "attn_norm.weight";      // [n_embd]
inline constexpr const char* kAttnQ = "attn_q.weight";            // [n_head * d_head (twice with a gate), n_embd]
inline constexpr const char* kAttnK = "attn_k.weight";            // [n_head_kv * d_head, n_embd]
inline constexpr const char* kAttnV = "attn_v.weight";            // [n_head_kv * d_head, n_embd]
inline constexpr const char* kAttnOutput = "attn_output.weight";  // [n_embd, n_head * d_head]
inline constexpr const char* kAttnQNorm = "attn_q_norm.weight";   // [d_head]
inline constexpr const char* kAttnKNorm = "attn_k_norm.weight";   // [d_head]
inline constexpr const char* kAttnSinks = "attn_sinks.weight";    // drafter: [n_head], none
inline constexpr const char* kPostAttentionNorm = "post_attention_norm.weight";  // hybrids: [n_embd]
inline constexpr const char* kFfnNorm = "ffn_norm.weight";                       // [n_embd]
inline constexpr const char* kFfnGate = "ffn_gate.weight";                       // [n_ff, n_embd]
inline constexpr const char* kFfnUp = "ffn_up.weight";                           // [n_ff, n_embd]
inline constexpr const char* kFfnDown = "ffn_down.weight";                       // [n_embd, n_ff]
inline constexpr const char* kFfnGateInp = "ffn_gate_inp.weight";                // router: [n_expert, n_embd]
inline constexpr const char* kFfnGateExps = "ffn_gate_exps.weight";              // [n_expert, n_ff_expert, n_embd]
inline constexpr const char* kFfnUpExps = "ffn_up_exps.weight";                  // [n_expert, n_ff_expert, n_embd]
inline constexpr const char* kFfnGateUpExps = "ffn_gate_up_exps.weight";  // fused: [n_expert, 2 * n_ff_expert, n_embd]
inline constexpr const char* kFfnDownExps = "ffn_down_exps.weight";       // [n_expert, n_embd, n_ff_expert]
inline constexpr const char* kFfnGateInpShexp = "ffn_gate_inp_shexp.weight";  // gate of the shared expert: [n_embd]
inline constexpr const char* kFfnGateShexp = "ffn_gate_shexp.weight";         // [n_ff_shared, n_embd]
inline constexpr const char* kFfnUpShexp = "ffn_up_shexp.weight";             // [n_ff_shared, n_embd]
inline constexpr const char* kFfnDownShexp = "ffn_down_shexp.weight";         // [n_embd, n_ff_shared]

// --- gated delta net blocks -----------------------------------------------------------------------------------------
inline constexpr const char* kAttnQkv = "attn_qkv.weight";      // [q + k + v channels, n_embd]
inline constexpr const char* kAttnGate = "attn_gate.weight";    // z: [n_value_heads * d, n_embd]
inline constexpr const char* kSsmAlpha = "ssm_alpha.weight";    // [n_value_heads, n_embd]
inline constexpr const char* kSsmBeta = "ssm_beta.weight";      // [n_value_heads, n_embd]
inline constexpr const char* kSsmBa = "ssm_ba.weight";          // qwen3next: [2 * n_value_heads, n_embd]
inline constexpr const char* kSsmConv1d = "ssm_conv1d.weight";  // [channels, taps], the last tap is the present
inline constexpr const char* kSsmA = "ssm_a";                   // [n_value_heads], holds -exp(A_log)
inline constexpr const char* kSsmDtBias = "ssm_dt.bias";        // [n_value_heads]
inline constexpr const char* kSsmNorm = "ssm_norm.weight";      // [d]
inline constexpr const char* kSsmOut = "ssm_out.weight";        // [n_embd, n_value_heads * d]

// --- MTP blocks -----------------------------------------------------------------------------------------------------
inline constexpr const char* kNextnEhProj = "nextn.eh_proj.weight";  // [n_embd, 2 * n_embd]: embedding, hidden
inline constexpr const char* kNextnEnorm = "nextn.enorm.weight";     // [n_embd]
inline constexpr const char* kNextnHnorm = "nextn.hnorm.weight";     // [n_embd]
inline constexpr const char* kNextnSharedHeadNorm = "nextn.shared_head_norm.weight";  // [n_embd], output_norm if absent
inline constexpr const char* kNextnEmbedTokens = "nextn.embed_tokens.weight";         // token_embd when absent
inline constexpr const char* kNextnSharedHeadHead = "nextn.shared_head_head.weight";  // output when absent

// --- drafter blocks -------------------------------------------------------------------------------------------------
inline constexpr const char* kAttnConvBase = "attn_conv_base";         // [2 sides, taps, n_embd]
inline constexpr const char* kAttnConvProj = "attn_conv_proj.weight";  // [2 * taps * groups, n_embd]
inline constexpr const char* kFfnConvBase = "ffn_conv_base";           // [2 sides, taps, n_embd]
inline constexpr const char* kFfnConvProj = "ffn_conv_proj.weight";    // [2 * taps * groups, n_embd]

}  // namespace onebit::keys
