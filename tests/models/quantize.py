"""Types that the gguf package cannot write: made from the F32 model by stock llama-quantize."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# Arguments of llama-quantize per type: options, then the base type. Embeddings stay F16 because the planted routing
# levels must survive; --pure keeps every matrix of the right length in the one type.
QUANTIZE_ARGUMENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "Q4_K": (("--pure",), "Q4_K_S"),
    # Gate and up in Q4_K, down in Q6_K in every second layer: experts of one model with different strides.
    "Q4_K+Q6_K": (
        (
            *("--tensor-type", r"ffn_(gate|up|gate_up)_c?h?exps=q4_K"),
            *("--tensor-type", r"\.[02468]\.ffn_down_c?h?exps=q4_K"),
            *("--tensor-type", r"\.[13579]\.ffn_down_c?h?exps=q6_K"),
        ),
        "Q4_K_S",
    ),
    "MXFP4": (("--tensor-type", r"ffn_.*_c?h?exps=mxfp4"), "Q8_0"),
}


def quantize(llama_bin: Path, source: Path, target: Path, type_name: str) -> None:
    """Write `target` from the F32 model `source` with llama-quantize of `llama_bin`.

    Raises RuntimeError with the program's last lines if it fails.
    """
    options, base_type = QUANTIZE_ARGUMENTS[type_name]
    _run(llama_bin, ["--token-embedding-type", "f16", *options, str(source), str(target), base_type, "2"])


def as_f16(llama_bin: Path, source: Path, target: Path) -> None:
    """Write a quantized model with every matrix in F16 (40 MB for the embedded one). Raises RuntimeError likewise."""
    _run(llama_bin, ["--allow-requantize", str(source), str(target), "F16", "2"])


def _run(llama_bin: Path, arguments: list[str]) -> None:
    command = [str(llama_bin / "llama-quantize"), *arguments]
    # The plugin has no business in the quantizer: a fault of it must not change the test models.
    environment = {key: value for key, value in os.environ.items() if key != "GGML_BACKEND_PATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}{done.stdout[-2000:]}")
