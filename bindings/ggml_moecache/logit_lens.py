"""The token that a model's final norm and LM head give from a layer's hidden state ("logit lens"), in numpy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from ggml_moecache.errors import ConfigError

if TYPE_CHECKING:
    from ggml_moecache.gguf_file import ModelFile, Tensor

Floats = npt.NDArray[np.float32]

# Architectures whose graphs in llama.cpp end alike (read in the pinned sources): after the last layer's "l_out" comes
# an RMS norm with output_norm.weight and no bias, then the product with output.weight, and nothing behind it. Others
# normalise differently (dbrx, phimoe), scale or cap the logits (granite, grok, gemma4), or have no single residual
# stream (deepseek4, kimi-k3).
ARCHITECTURES = frozenset(
    {
        *("afmoe", "arctic", "bailingmoe", "bailingmoe2", "deepseek", "deepseek2", "dots1", "ernie4_5-moe"),
        *("exaone-moe", "glm4moe", "gpt-oss", "grovemoe", "hunyuan-moe", "llama", "llama4", "minimax-m2", "olmoe"),
        *("qwen2moe", "qwen35moe", "qwen3moe", "qwen3next", "smallthinker"),
    }
)
# Bounds of what is held beside the LM head: logits of a vocabulary of 250,000 tokens are 64 MB, and a part of the
# weights while they are dequantised.
_ROWS_AT_ONCE = 64
_WEIGHT_ROWS_AT_ONCE = 4096
_UNEXPECTED = ("output_norm.bias", "output.bias", "output.scale")


class LogitLens:
    """Final norm and LM head of one model, dequantised to float32: 4 * n_vocab * n_embd bytes.

    Differs from llama.cpp's own logits by rounding only: llama.cpp also quantises the hidden state for the product with
    a quantised LM head.

    Raises ConfigError, which says why, for a model whose logits are not made in this way.
    """

    def __init__(self, file: ModelFile) -> None:
        if file.architecture not in ARCHITECTURES:
            raise _refused(
                f"it is not known how the architecture {file.architecture} makes logits of a hidden state. Known are: "
                f"{', '.join(sorted(ARCHITECTURES))}"
            )
        tensors = {tensor.name: tensor for tensor in file.tensors}
        if found := [name for name in _UNEXPECTED if name in tensors]:
            raise _refused(f"{file.path} has {found[0]}, and logits with a bias or scale are not computed here")
        epsilon = file.metadata.get(f"{file.architecture}.attention.layer_norm_rms_epsilon")
        norm = tensors.get("output_norm.weight")
        head = tensors.get("output.weight") or tensors.get("token_embd.weight")  # tied
        if not isinstance(epsilon, float) or norm is None or head is None:
            raise _refused(f"{file.path} lacks the epsilon or weight of its final norm, or its LM head")
        self._epsilon = np.float32(epsilon)
        self._norm = _values(norm)
        self._head = _values(head)

    @property
    def n_embd(self) -> int:
        """Length of a hidden state."""
        return int(self._head.shape[1])

    def logits(self, hidden: Floats) -> Floats:
        """(n, n_vocab) from hidden states (n, n_embd): RMS norm with the model's epsilon and weight, then LM head."""
        scale = 1 / np.sqrt(np.mean(hidden * hidden, axis=1, keepdims=True) + self._epsilon)
        logits: Floats = (hidden * scale * self._norm) @ self._head.T
        return logits

    def top1(self, hidden: Floats) -> npt.NDArray[np.int64]:
        """The best token of each hidden state: (n,), of equal ones the lowest id. Shape of `hidden`: (n, n_embd)."""
        parts = [hidden[begin : begin + _ROWS_AT_ONCE] for begin in range(0, len(hidden), _ROWS_AT_ONCE)]
        return np.concatenate([np.empty(0, np.int64), *(self.logits(part).argmax(axis=1) for part in parts)])


def _refused(why: str) -> ConfigError:
    return ConfigError(f"The 'log_top1_every' parameter of load_model cannot be used with this model: {why}.")


def _values(tensor: Tensor) -> Floats:
    """All values of a tensor: (rows, ne[0]), a vector as one row."""
    n_columns = tensor.shape[0]
    n_rows = math.prod(tensor.shape[1:])
    kind = GGMLQuantizationType[tensor.type_name]
    raw = np.memmap(tensor.path, np.uint8, "r", tensor.offset_bytes, (n_rows, tensor.size_bytes // n_rows))
    values = np.empty((n_rows, n_columns), np.float32)
    for begin in range(0, n_rows, _WEIGHT_ROWS_AT_ONCE):
        rows: npt.NDArray[Any] = np.array(raw[begin : begin + _WEIGHT_ROWS_AT_ONCE])
        try:
            values[begin : begin + len(rows)] = dequantize(rows, kind)
        except NotImplementedError:
            raise _refused(f"the gguf package cannot dequantise {tensor.name}, which is {tensor.type_name}") from None
    return values
