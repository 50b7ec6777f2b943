#!/usr/bin/env python3
"""Quantized blocks of random bytes, and what the Python package gguf makes of them.

    pip install gguf numpy
    make_blocks.py            writes TYPE.blocks and TYPE.f32 for every type beside itself

Scales are random too, but finite: among them the smallest and the largest that float16 has. Those of MXFP4 are
bytes s for 2^(s - 127), up to the largest with which all values are finite. The files are little endian; made with
gguf 0.19.0.
"""
from pathlib import Path

import gguf
import numpy as np

# Type, number of blocks, where the float16 scales and offsets of a block are.
TYPES = [("Q8_0", 32, [0]), ("Q4_0", 32, [0]), ("Q4_1", 32, [0, 2]), ("Q5_0", 32, [0]), ("Q5_1", 32, [0, 2]),
         ("Q4_K", 6, [0, 2]), ("Q5_K", 6, [0, 2]), ("Q6_K", 6, [208]), ("MXFP4", 32, [])]
EXTREME = np.array([2.0**-24, -(2.0**-14), 65504.0, -65504.0], dtype=np.float16)


def main():
    random = np.random.default_rng(4)
    for name, count, scales in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        size = gguf.GGML_QUANT_SIZES[kind][1]
        blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
        for at in scales:
            values = random.normal(0, 0.1, count).astype(np.float16)
            values[:4] = random.permutation(EXTREME)
            blocks[:, at:at + 2] = values.view(np.uint8).reshape(count, 2)
        if name == "MXFP4":
            blocks[:, 0] = random.integers(100, 140, count)
            blocks[:4, 0] = [0, 1, 2, 252]
        values = gguf.dequantize(blocks, kind).astype("<f4")
        assert np.isfinite(values).all()
        folder = Path(__file__).parent
        (folder / f"{name}.blocks").write_bytes(blocks.tobytes())
        (folder / f"{name}.f32").write_bytes(values.tobytes())


if __name__ == "__main__":
    main()
