"""Tiny random LoRA adapters for the generated models: attention output and all expert matrices of every layer."""

from __future__ import annotations

import zlib
from pathlib import Path

import gguf
import numpy as np

from tests.models.families.table import FAMILIES, Family
from tests.models.generate import cached_file
from tests.models.routing import FloatArray, PlantedRouting

RANK = 4
ALPHA = 8.0


def adapter_path(family_name: str, seed: int = 1) -> Path:
    """Path of the adapter (F32, rank 4, alpha 8) for a family with unfused experts, written first if needed."""
    return cached_file(f"lora-{family_name}-{seed}", lambda path: _write(path, FAMILIES[family_name], seed))


def _write(path: Path, family: Family, seed: int) -> None:
    geometry = family.geometry
    channels = PlantedRouting(geometry, seed).channels
    writer = gguf.GGUFWriter(path, family.arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    n_embd, n_ff, n_expert = geometry.n_embd, geometry.n_ff_expert, geometry.n_expert
    for layer in range(geometry.n_layer):
        block = f"blk.{layer}."
        shapes = {
            "attn_output": ((), n_embd, geometry.n_head * geometry.head_dim),
            "ffn_gate_exps": ((n_expert,), n_ff, n_embd),
            "ffn_up_exps": ((n_expert,), n_ff, n_embd),
            "ffn_down_exps": ((n_expert,), n_embd, n_ff),
        }
        for name, (lead, n_out, n_in) in shapes.items():
            base = f"{block}{name}.weight"
            down = _normal(f"{base}.lora_a", (*lead, RANK, n_in), seed) / np.float32(np.sqrt(n_in))
            up = _normal(f"{base}.lora_b", (*lead, n_out, RANK), seed) * np.float32(0.25)
            if name in ("attn_output", "ffn_down_exps"):
                up[..., channels, :] = 0  # the planted routing stays as it is
            writer.add_tensor(f"{base}.lora_a", down)
            writer.add_tensor(f"{base}.lora_b", up)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _normal(name: str, shape: tuple[int, ...], seed: int) -> FloatArray:
    return np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape, dtype=np.float32)
