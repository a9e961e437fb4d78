"""The tokenizer of the embedded tiny model, which every generated model carries."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import gguf

REPOSITORY = Path(__file__).resolve().parents[2]
EMBEDDED_MODEL = REPOSITORY / "bindings" / "ggml_moecache" / "models" / "tiny-qwen35moe-Q4_0.gguf"
SHARED_MODEL = REPOSITORY.parent / "shared" / "models" / "tiny-qwen35moe-Q4_0.gguf"


@dataclass(frozen=True)
class Tokenizer:
    """Metadata values of a byte-pair tokenizer as GGUF stores them."""

    model: str
    pre: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    end_of_text: int


def embedded_model() -> Path:
    """The tiny trained model: the copy in the Python package, else the one beside the checkout.

    Raises FileNotFoundError if neither exists.
    """
    for path in (EMBEDDED_MODEL, SHARED_MODEL):
        if path.is_file():
            return path
    raise FileNotFoundError(f"the embedded model {EMBEDDED_MODEL} is missing: run scripts/setup or restore the file")


@functools.cache
def load_tokenizer() -> Tokenizer:
    """Read the tokenizer of the embedded model."""
    fields = gguf.GGUFReader(embedded_model()).fields

    def value(key: str) -> object:
        return fields[f"tokenizer.ggml.{key}"].contents()

    return Tokenizer(
        model=str(value("model")),
        pre=str(value("pre")),
        tokens=tuple(value("tokens")),  # type: ignore[arg-type]
        types=tuple(value("token_type")),  # type: ignore[arg-type]
        merges=tuple(value("merges")),  # type: ignore[arg-type]
        end_of_text=int(value("eos_token_id")),  # type: ignore[call-overload]
    )
