"""What a GGUF file holds, read from its header only, and whether the file is complete.

llama.cpp checks a model too, but late and in many lines; this gives one message before anything is loaded.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

from ggml_moecache.errors import ModelFileError

# Value types of GGUF metadata: struct formats of the fixed-size ones.
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING = 8
_ARRAY = 9
_DEFAULT_ALIGNMENT_BYTES = 32
# llama.cpp's names of stacked expert weights: gate, up and down, or gate_up fused; "chexps" is a layer's second family.
_EXPERT_NAME = re.compile(r"^blk\.(\d+)\.ffn_(gate|up|down|gate_up)_(ch)?exps\.weight$")

Value = bool | int | float | str | None  # None: an array, whose elements are skipped


@dataclass(frozen=True)
class Tensor:
    """One tensor of the file: `shape` in GGML's order (ne[0] first), `size_bytes` without padding.

    Its data lie in `path` (a part of a split model) from `offset_bytes` on.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    size_bytes: int
    path: Path
    offset_bytes: int


@dataclass(frozen=True)
class ModelFile:
    """Metadata and tensors of a GGUF model; a split model's parts are joined. `size_bytes` is the sum of the files."""

    path: Path
    metadata: dict[str, Value]
    tensors: list[Tensor] = field(repr=False)
    size_bytes: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def quantization(self) -> str | None:
        """The file type, such as "Q4_K_M" or "F16"; None: the file does not say, or not in a way that is known."""
        value = self.metadata.get("general.file_type")
        if not isinstance(value, int) or value & LlamaFileType.GUESSED:
            return None
        try:
            name: str = LlamaFileType(value).name
        except ValueError:
            return None
        return name.removeprefix("MOSTLY_").removeprefix("ALL_")

    def _arch_int(self, key: str) -> int:
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int) else 0

    @property
    def n_layers(self) -> int:
        return self._arch_int("block_count")

    @property
    def n_experts(self) -> int:
        return self._arch_int("expert_count")

    @property
    def n_experts_used(self) -> int:
        """Experts that the router chooses per token and layer (top-k)."""
        return self._arch_int("expert_used_count")

    @property
    def expert_tensors(self) -> list[Tensor]:
        """The stacked expert weights: the third and last dimension counts the experts."""
        return [t for t in self.tensors if _EXPERT_NAME.match(t.name) and t.shape[2:] not in ((), (1,))]

    def expert_sizes_bytes(self) -> dict[int, int]:
        """Bytes of one expert (all its matrices together) per layer; layers without experts are absent."""
        sizes: dict[int, int] = {}
        for tensor in self.expert_tensors:
            layer = int(tensor.name.split(".")[1])
            sizes[layer] = sizes.get(layer, 0) + tensor.size_bytes // tensor.shape[2]
        return sizes


class _Reader:
    """Sequential reads from the mapped file; running past its end means that the file is truncated."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.offset = 0

    def scalar(self, layout: str) -> bool | int | float:
        try:
            (value,) = struct.unpack_from(layout, self.data, self.offset)
        except struct.error:
            raise self.truncated(self.offset + struct.calcsize(layout)) from None
        self.offset += struct.calcsize(layout)
        return value  # type: ignore[no-any-return]

    def count(self, layout: str = "<Q") -> int:
        return int(self.scalar(layout))

    def skip(self, n_bytes: int) -> None:
        if self.offset + n_bytes > len(self.data):
            raise self.truncated(self.offset + n_bytes)
        self.offset += n_bytes

    def string(self) -> str:
        n_bytes = self.count()
        start = self.offset
        self.skip(n_bytes)
        return self.data[start : self.offset].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Value:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, n_items = self.count("<I"), self.count()
            if item in _SCALARS:
                self.skip(n_items * struct.calcsize(_SCALARS[item]))
            elif item == _STRING:
                for _ in range(n_items):
                    self.skip(self.count())
            else:
                raise self.malformed(f"array of value type {item}")
            return None
        if kind not in _SCALARS:
            raise self.malformed(f"value type {kind}")
        return self.scalar(_SCALARS[kind])

    def truncated(self, needed_bytes: int) -> ModelFileError:
        return ModelFileError(
            f"{self.path} is truncated: it has {len(self.data)} bytes, its header asks for at least {needed_bytes}. "
            "Download or copy it again."
        )

    def malformed(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path} is not a GGUF file that can be read: unknown {what} at byte {self.offset}.")


def _read_tensor(reader: _Reader) -> Tensor:
    """The next tensor of the header; its offset is still relative to the begin of the data."""
    name = reader.string()
    shape = tuple(reader.count() for _ in range(reader.count("<I")))
    kind = reader.count("<I")
    offset = reader.count()
    try:
        quantization = GGMLQuantizationType(kind)
    except ValueError:
        raise reader.malformed(f"type {kind} of tensor {name}") from None
    block_elements, block_bytes = GGML_QUANT_SIZES[quantization]
    elements = 1
    for extent in shape:
        elements *= extent
    return Tensor(name, shape, quantization.name, elements // block_elements * block_bytes, reader.path, offset)


def _read_part(path: Path) -> ModelFile:
    if not path.exists():
        raise ModelFileError(f"{path} does not exist. Name a GGUF file.")
    if not path.is_file():
        raise ModelFileError(f"{path} is not a file. Name a GGUF file.")
    try:
        return _read_file(path)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}.") from error


def _read_file(path: Path) -> ModelFile:
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelFileError(f"{path} is not a GGUF file: its first four bytes are not 'GGUF'.")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            reader = _Reader(path, data)
            reader.skip(4)
            version = reader.count("<I")
            if version not in (2, 3):
                raise ModelFileError(
                    f"{path} has GGUF version {version}; versions 2 and 3 (little endian) can be read."
                )
            n_tensors, n_values = reader.count(), reader.count()
            metadata: dict[str, Value] = {}
            for _ in range(n_values):
                key = reader.string()
                metadata[key] = reader.value(reader.count("<I"))
            tensors = [_read_tensor(reader) for _ in range(n_tensors)]
            alignment = metadata.get("general.alignment")
            unit = alignment if isinstance(alignment, int) and alignment > 0 else _DEFAULT_ALIGNMENT_BYTES
            data_bytes = (reader.offset + unit - 1) // unit * unit
            tensors = [replace(t, offset_bytes=data_bytes + t.offset_bytes) for t in tensors]
            needed = max((t.offset_bytes + t.size_bytes for t in tensors), default=0)
            if size < needed:
                raise reader.truncated(needed)
    return ModelFile(path, metadata, tensors, size)


def read_model(path: str | Path) -> ModelFile:
    """Read the header of `path`, and of the other parts when it is the first of a split model.

    Raises ModelFileError if a file is missing, is no GGUF, or is shorter than its header says.
    """
    path = Path(path).expanduser()
    first = _read_part(path)
    n_parts = first.metadata.get("split.count")
    if not isinstance(n_parts, int) or n_parts <= 1:
        return first
    name = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", path.name)
    if name is None:
        raise ModelFileError(
            f"{path} is one of {n_parts} parts. Name the first one, which ends in -00001-of-{n_parts:05}.gguf."
        )
    parts = [_read_part(path.with_name(f"{name[1]}-{i:05}-of-{name[2]}.gguf")) for i in range(2, n_parts + 1)]
    tensors = [t for part in (first, *parts) for t in part.tensors]
    return ModelFile(path, first.metadata, tensors, sum(part.size_bytes for part in (first, *parts)))
