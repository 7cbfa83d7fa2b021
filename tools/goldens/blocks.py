#!/usr/bin/env python3
"""Makes tests/golden/blocks/blocks.gguf: blocks of every type with their values, by another implementation.

Usage: pip install gguf numpy; tools/goldens/blocks.py tests/golden/blocks/blocks.gguf

Per type T the file holds two tensors: `T` (random bytes as blocks of that type, so every code and scale pattern occurs)
and `T.f32` (the values the `gguf` package decodes from them). `source` (f32) is what the package encoded into `T.encoded`,
for the types that it can encode. All tensors are rows of 256 elements.
"""
import sys
from importlib.metadata import version

import gguf
import numpy as np

Q = gguf.GGMLQuantizationType
DECODED = [Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_NL, Q.IQ4_XS,
           Q.MXFP4]
ENCODED = [Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q8_0]
ROWS, COLS = 6, 256


def main(path):
    rng = np.random.default_rng(20)
    writer = gguf.GGUFWriter(path, "golden")
    writer.add_string("golden.generator", "gguf " + version("gguf"))
    for kind in DECODED:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = rng.integers(0, 256, (ROWS, COLS // block * size), dtype=np.uint8)
        values = gguf.quants.dequantize(raw, kind).astype(np.float32)
        name = kind.name.lower()
        writer.add_tensor(name, raw, raw_dtype=kind)
        writer.add_tensor(name + ".f32", values)
    # Rows of ordinary weights, one with a zero block, one of one sign, one of bf16 values (where rounding ties occur).
    source = (rng.standard_normal((ROWS, COLS)) * rng.uniform(0.01, 2, (ROWS, 1))).astype(np.float32)
    source[1, 32:64] = 0
    source[2] = np.abs(source[2])
    source[3] = (source[3].view(np.uint32) & 0xFFFF0000).view(np.float32)
    for kind in ENCODED:
        name = kind.name.lower()
        writer.add_tensor(name + ".encoded", gguf.quants.quantize(source, kind).view(np.uint8), raw_dtype=kind)
    writer.add_tensor("source", source)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
