"""Small Hugging Face folders for the tests: a target with a tokenizer, and a DFlash2 drafter of random weights for it."""
import json
import random
import shutil
import struct
from pathlib import Path

TINY = Path(__file__).resolve().parents[1] / "golden" / "tiny"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>"]
N_VOCAB = 512  # rows of the tiny models' embeddings
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
SPLIT = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
         "\\s+(?!\\S)|\\s+")


def byte_alphabet():
    """The character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = [b for b in range(256) if b not in plain]
    return {b: chr(b) if b in plain else chr(256 + shifted.index(b)) for b in range(256)}


def write_tokenizer(folder):
    tokens = [byte_alphabet()[b] for b in range(256)]
    merges = [["t", "h"], ["th", "e"], ["i", "n"], ["a", "n"], ["\u0120", "the"]]
    tokens += [left + right for left, right in merges]
    added = [{"id": len(tokens) + i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for i, text in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    document = {
        "version": "1.0", "added_tokens": added, "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges},
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_target(folder, name):
    """The tiny model `name` of tests/golden with a tokenizer."""
    folder.mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copy(TINY / name / file, folder / file)
    write_tokenizer(folder)
    return folder


def bf16(values):
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def write_safetensors(path, tensors):
    """tensors: name -> (shape, values)."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = bf16(values)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def write_drafter(folder, n_embd=64, n_target_layers=4, taps=(0, 1, 2)):
    """A DFlash2 drafter for a target of this width; block of 8, so it drafts 7 tokens."""
    folder.mkdir()
    n_layer, n_head, n_kv, d_head, n_ff, rank, group, n_tap = 2, 4, 2, 32, 128, 32, 32, 2
    rng = random.Random(1)
    tensors = {}

    def matrix(name, *shape):
        count = 1
        for n in shape:
            count *= n
        tensors[name] = (list(shape), [rng.gauss(0, 0.05) for _ in range(count)])

    def ones(name, n):
        tensors[name] = ([n], [1.0] * n)

    matrix("fc.weight", n_embd, len(taps) * n_embd)
    ones("hidden_norm.weight", n_embd)
    ones("norm.weight", n_embd)
    for i in range(n_layer):
        p = f"layers.{i}."
        for norm, n in (("input_layernorm", n_embd), ("post_attention_layernorm", n_embd), ("self_attn.q_norm", d_head),
                        ("self_attn.k_norm", d_head)):
            ones(f"{p}{norm}.weight", n)
        matrix(f"{p}self_attn.q_proj.weight", n_head * d_head, n_embd)
        matrix(f"{p}self_attn.k_proj.weight", n_kv * d_head, n_embd)
        matrix(f"{p}self_attn.v_proj.weight", n_kv * d_head, n_embd)
        matrix(f"{p}self_attn.o_proj.weight", n_embd, n_head * d_head)
        matrix(f"{p}mlp.gate_proj.weight", n_ff, n_embd)
        matrix(f"{p}mlp.up_proj.weight", n_ff, n_embd)
        matrix(f"{p}mlp.down_proj.weight", n_embd, n_ff)
        for conv in ("attention_conv", "mlp_conv"):
            identity = ([1.0] * n_embd + [0.0] * (n_tap - 1) * n_embd) * 2
            tensors[f"{p}{conv}.base_kernel"] = ([2, n_tap, n_embd], identity)
            matrix(f"{p}{conv}.kernel_projection.weight", 2 * n_tap * n_embd // group, n_embd)
    matrix("candidate_selector.predecessor_codebook", N_VOCAB, rank)
    matrix("candidate_selector.successor_codebook", N_VOCAB, rank)
    matrix("candidate_selector.hidden_projection.weight", rank, n_embd)
    write_safetensors(folder / "model.safetensors", tensors)
    config = {
        "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "vocab_size": N_VOCAB, "hidden_size": n_embd,
        "intermediate_size": n_ff, "num_hidden_layers": n_layer, "num_attention_heads": n_head, "num_key_value_heads": n_kv,
        "head_dim": d_head, "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "attention_bias": False,
        "tie_word_embeddings": False, "is_causal": False, "rope_theta": 10000000.0, "use_sliding_window": False,
        "layer_types": ["full_attention"] * n_layer, "num_target_layers": n_target_layers, "block_size": 8,
        "dflash_config": {"projector_type": "dflash2", "target_layer_ids": list(taps), "mask_token_id": 264, "block_size": 8,
                          "conv_kernel_size": n_tap, "conv_group_size": group, "selector_rank": rank, "selector_top_k": 8},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
