"""Small GGUF files for the tests of the header reader, written by the gguf package (not by the code under test)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

N_EXPERTS = 4
N_LAYERS = 2


def write_moe(path: Path, *, part: int | None = None, n_parts: int = 1, dense: bool = False) -> Path:
    """A model of 2 layers with 4 experts of 3 matrices 32 x 64 in F32; with `part`, only the tensors of that layer."""
    writer = GGUFWriter(path, "qwen3moe")
    writer.add_block_count(N_LAYERS)
    writer.add_expert_count(0 if dense else N_EXPERTS)
    writer.add_expert_used_count(0 if dense else 2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", ""])
    writer.add_array("some.floats", [1.0, 2.0])
    if part is not None:
        writer.add_uint16("split.no", part)
        writer.add_uint16("split.count", n_parts)
    for layer in range(N_LAYERS) if part is None else (part,):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(32, dtype=np.float32))
        for matrix in () if dense else ("gate", "up", "down"):
            rows, columns = (32, 64) if matrix == "down" else (64, 32)
            data = np.zeros((N_EXPERTS, rows, columns), dtype=np.float32)
            writer.add_tensor(f"blk.{layer}.ffn_{matrix}_exps.weight", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
