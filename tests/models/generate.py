"""Tiny random MoE models that stock llama.cpp loads, one GGUF per family and type.

    python -m tests.models.generate --family qwen3moe --type Q4_0        prints the path, writing the file if needed
    python -m tests.models.generate --list                               prints families and types

Files are kept in $MOECACHE_TEST_MODELS (default ~/.cache/ggml-moecache/test-models) under a name that holds a hash of
the generator's sources, the tokenizer's file and the parameters: a change of any of them makes new files.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from gguf import GGMLQuantizationType

from tests.models.builder import ModelBuilder
from tests.models.families.table import FAMILIES, Family
from tests.models.quantize import QUANTIZE_ARGUMENTS, quantize
from tests.models.routing import PlantedRouting
from tests.models.tokenizer import embedded_model

WRITTEN_TYPES = {
    "F32": GGMLQuantizationType.F32,
    "F16": GGMLQuantizationType.F16,
    "Q8_0": GGMLQuantizationType.Q8_0,
    "Q4_0": GGMLQuantizationType.Q4_0,
}
TYPES = (*WRITTEN_TYPES, *QUANTIZE_ARGUMENTS)

Entry = TypeVar("Entry")


def model_path(family_name: str, type_name: str, llama_bin: Path | None = None, seed: int = 1) -> Path:
    """Path of the model, written first if it is not there.

    `llama_bin` (folder of llama-quantize) is needed for the types of `QUANTIZE_ARGUMENTS` only.
    Raises ValueError for an unknown family or type.
    """
    family = _lookup(FAMILIES, family_name, "family")
    if type_name in WRITTEN_TYPES:

        def write(path: Path) -> None:
            _write_model(path, family, WRITTEN_TYPES[type_name], seed)

        return cached_file(f"{family_name}-{type_name}-{seed}", write)
    _lookup(QUANTIZE_ARGUMENTS, type_name, "type")
    if llama_bin is None:
        raise ValueError(f"type {type_name} is written by llama-quantize: name the folder of the llama.cpp programs")
    source = model_path(family_name, "F32", seed=seed)
    return cached_file(f"{family_name}-{type_name}-{seed}", lambda path: quantize(llama_bin, source, path, type_name))


def planted_routing(family_name: str, seed: int = 1) -> PlantedRouting:
    """Which experts each token of the model is sent to."""
    return PlantedRouting(_lookup(FAMILIES, family_name, "family").geometry, seed)


def cached_file(name: str, write: Callable[[Path], None]) -> Path:
    """Path of a generated file in the cache; `write` makes it at a temporary name, which is renamed when complete."""
    folder = Path(os.environ.get("MOECACHE_TEST_MODELS", "~/.cache/ggml-moecache/test-models")).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{_sources_hash()}.gguf"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            unfinished = Path(scratch) / path.name
            write(unfinished)
            unfinished.replace(path)
    return path


def _write_model(path: Path, family: Family, weight_type: GGMLQuantizationType, seed: int) -> None:
    builder = ModelBuilder(path, family.arch, family.geometry, weight_type, seed)
    family.write(builder)
    builder.close()


@functools.cache
def _sources_hash() -> str:
    digest = hashlib.sha256(embedded_model().read_bytes())
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def _lookup(table: Mapping[str, Entry], name: str, what: str) -> Entry:
    if name not in table:
        raise ValueError(f"unknown {what} '{name}', known are: {', '.join(table)}")
    return table[name]


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", help="family of the model")
    parser.add_argument("--type", default="F32", help="type of its matrices (default: F32)")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and routing (default: 1)")
    parser.add_argument("--llama-bin", type=Path, help="folder of llama-quantize, for the types it writes")
    parser.add_argument("--list", action="store_true", help="print families and types")
    options = parser.parse_args(arguments)
    if options.list or not options.family:
        print("families:", " ".join(FAMILIES))
        print("types:", " ".join(TYPES))
        return 0
    try:
        print(model_path(options.family, options.type, options.llama_bin, options.seed))
    except (ValueError, RuntimeError, FileNotFoundError) as error:
        print(f"generate: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
