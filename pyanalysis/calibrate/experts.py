"""The expert weights of a GGUF: their geometry, and some layers of them in host or device memory.

Needs nothing but the standard library (the header is read by GGML itself).
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyanalysis.calibrate.ggml import GgmlError, GgufParams

if TYPE_CHECKING:
    from pathlib import Path

    from pyanalysis.calibrate.ggml import Ggml

_EXPERT_NAME = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down|gate_up)_exps\.weight")
_SECOND_FAMILY_NAME = re.compile(r"blk\.\d+\.ffn_\w+_chexps\.weight")
_SPLIT_NAME = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")
_GGUF_U32, _GGUF_U16 = 4, 2
_PADDING_BYTES = 4096  # behind the last matrix: MMQ kernels read past it


@dataclass(frozen=True)
class Matrix:
    """One stacked expert tensor: `ne` in GGML's order, the last one counts the experts. Its bytes lie in `path`."""

    role: str
    type: int
    type_name: str
    ne: tuple[int, int, int]
    size_bytes: int
    path: Path
    offset_bytes: int

    @property
    def expert_bytes(self) -> int:
        return self.size_bytes // self.ne[2]


@dataclass(frozen=True)
class Layer:
    """The expert matrices of one layer by role: gate and up, or gate_up, and down; or up and down alone."""

    index: int
    matrices: dict[str, Matrix]

    @property
    def n_experts(self) -> int:
        return self.matrices["down"].ne[2]

    @property
    def size_bytes(self) -> int:
        return sum(m.size_bytes for m in self.matrices.values())

    @property
    def expert_bytes(self) -> int:
        return sum(m.expert_bytes for m in self.matrices.values())

    @property
    def kind(self) -> tuple[tuple[str, str, tuple[int, int, int]], ...]:
        """What must be equal for two layers to cost the same."""
        return tuple((m.role, m.type_name, m.ne) for _, m in sorted(self.matrices.items()))


@dataclass(frozen=True)
class Geometry:
    """The MoE layers that a decoded token goes through (those of an MTP head are none); `top_k` experts per event.

    `second_family`: layers have experts of a second family (chexps) beside these.
    """

    path: Path
    architecture: str
    top_k: int
    layers: tuple[Layer, ...]
    second_family: bool = False

    @property
    def mean_expert_bytes(self) -> int:
        return round(sum(layer.expert_bytes for layer in self.layers) / len(self.layers))

    def sample(self, most_bytes: int) -> list[Layer]:
        """Layers of together at most `most_bytes` (at least one), each kind in its share of the model."""
        mean = sum(layer.size_bytes for layer in self.layers) / len(self.layers)
        n = max(1, min(len(self.layers), int(most_bytes / mean)))
        by_kind: dict[object, list[Layer]] = {}
        for layer in self.layers:
            by_kind.setdefault(layer.kind, []).append(layer)
        # The layer at place i of m of its kind stands at (i + 1/2) / m: in that order every prefix has fair shares.
        ranked = [((i + 0.5) / len(group), layer) for group in by_kind.values() for i, layer in enumerate(group)]
        return [layer for _, layer in sorted(ranked, key=lambda pair: (pair[0], pair[1].index))[:n]]


def read_geometry(ggml: Ggml, path: Path) -> Geometry:
    """Raises GgmlError if the file is no GGUF of a model with experts of a form that is known."""
    layers: dict[int, dict[str, Matrix]] = {}
    architecture, top_k, end, second_family = "", 0, 0, False
    for part in _parts(ggml, path):
        with _Gguf(ggml, part) as gguf:
            if part == path:
                architecture = gguf.text("general.architecture") or "unknown"
                top_k = gguf.number(f"{architecture}.expert_used_count") or 0
                end = gguf.number(f"{architecture}.block_count") or 0
                end -= gguf.number(f"{architecture}.nextn_predict_layers") or 0
            second_family |= gguf.has_second_family()
            for layer, matrix in gguf.matrices():
                if layer < end:
                    layers.setdefault(layer, {})[matrix.role] = matrix
    if not layers or not top_k:
        raise GgmlError(f"{path}: has no experts; there is nothing to calibrate")
    for index, matrices in layers.items():
        if not ("down" in matrices and ("gate_up" in matrices or "up" in matrices)):
            raise GgmlError(f"{path}: layer {index} has expert matrices of an unknown form: {', '.join(matrices)}")
    return Geometry(path, architecture, top_k, tuple(Layer(i, m) for i, m in sorted(layers.items())), second_family)


def _parts(ggml: Ggml, path: Path) -> list[Path]:
    """The files of a model: itself, or all parts of a split one of which it is the first."""
    with _Gguf(ggml, path) as gguf:
        n = gguf.number("split.count") or 1
    if n == 1:
        return [path]
    name = _SPLIT_NAME.fullmatch(path.name)
    if name is None:
        raise GgmlError(f"{path}: is one of {n} parts; name the first one, which ends in -00001-of-{n:05}.gguf")
    return [path, *(path.with_name(f"{name[1]}-{i:05}-of-{name[2]}.gguf") for i in range(2, n + 1))]


class _Gguf:
    """The header of one file, open inside a with block."""

    def __init__(self, ggml: Ggml, path: Path) -> None:
        self._ggml = ggml
        self._path = path

    def __enter__(self) -> _Gguf:  # noqa: PYI034 - typing.Self needs Python 3.11
        handle = None
        if self._path.is_file():
            handle = self._ggml.gguf_init_from_file(str(self._path).encode(), GgufParams(True, None))
        if handle is None:
            raise GgmlError(f"{self._path}: is no GGUF file that can be read")
        self._handle = handle
        return self

    def __exit__(self, *_: object) -> None:
        self._ggml.gguf_free(self._handle)

    def text(self, key: str) -> str | None:
        at = self._ggml.gguf_find_key(self._handle, key.encode())
        return None if at < 0 else self._ggml.gguf_get_val_str(self._handle, at).decode()

    def number(self, key: str) -> int | None:
        at = self._ggml.gguf_find_key(self._handle, key.encode())
        if at < 0:
            return None
        kind = self._ggml.gguf_get_kv_type(self._handle, at)
        readers = {_GGUF_U32: self._ggml.gguf_get_val_u32, _GGUF_U16: self._ggml.gguf_get_val_u16}
        if kind not in readers:
            raise GgmlError(f"{self._path}: {key} is no whole number (GGUF type {kind})")
        return int(readers[kind](self._handle, at))

    def _names(self) -> list[str]:
        n = self._ggml.gguf_get_n_tensors(self._handle)
        return [self._ggml.gguf_get_tensor_name(self._handle, i).decode(errors="replace") for i in range(n)]

    def has_second_family(self) -> bool:
        return any(_SECOND_FAMILY_NAME.fullmatch(name) for name in self._names())

    def matrices(self) -> list[tuple[int, Matrix]]:
        """(layer, matrix) of every expert tensor of this file."""
        ggml, found = self._ggml, []
        data = ggml.gguf_get_data_offset(self._handle)
        for i, text in enumerate(self._names()):
            name = _EXPERT_NAME.fullmatch(text)
            ne = ggml.gguf_get_tensor_ne(self._handle, i)[:3]
            if name is None or ne[2] == 1:
                continue
            kind = ggml.gguf_get_tensor_type(self._handle, i)
            size = ggml.gguf_get_tensor_size(self._handle, i)
            offset = data + ggml.gguf_get_tensor_offset(self._handle, i)
            type_name = ggml.ggml_type_name(kind).decode()
            matrix = Matrix(name[2], kind, type_name, (ne[0], ne[1], ne[2]), size, self._path, offset)
            found.append((int(name[1]), matrix))
        return found


@dataclass
class Store:
    """Layers in memory: tensors by role for each. `close` it. `pinned`: every buffer of it is."""

    ggml: Ggml
    layers: list[Layer]
    tensors: list[dict[str, int]] = field(default_factory=list)
    pinned: bool = True
    _buffers: list[int] = field(default_factory=list)
    _context: int = 0

    @staticmethod
    def load(ggml: Ggml, layers: list[Layer], buffer_type: int) -> Store:
        """Read `layers` from their files into memory of `buffer_type`. Raises GgmlError, having freed everything."""
        store = Store(ggml, layers)
        store._context = ggml.context(sum(len(layer.matrices) for layer in layers))
        try:
            for layer in layers:
                store._load_layer(layer, buffer_type)
        except BaseException:
            store.close()
            raise
        return store

    def _load_layer(self, layer: Layer, buffer_type: int) -> None:
        ggml = self.ggml
        made = {}
        for role, matrix in layer.matrices.items():
            tensor = ggml.ggml_new_tensor_3d(self._context, matrix.type, *matrix.ne)
            size = ggml.ggml_backend_buft_get_alloc_size(buffer_type, tensor) + _PADDING_BYTES
            buffer = ggml.allocate(buffer_type, size)
            self._buffers.append(buffer)
            ggml.mark_as_weights(buffer)
            self.pinned &= ggml.is_pinned(buffer)
            if ggml.ggml_backend_tensor_alloc(buffer, tensor, ggml.ggml_backend_buffer_get_base(buffer)) != 0:
                raise GgmlError(f"GGML refuses a tensor of type {matrix.type_name} in this memory")
            _fill(ggml, tensor, matrix)
            made[role] = tensor
        self.tensors.append(made)

    def close(self) -> None:
        for buffer in self._buffers:
            self.ggml.ggml_backend_buffer_free(buffer)
        self.ggml.ggml_free(self._context)


def _fill(ggml: Ggml, tensor: int, matrix: Matrix) -> None:
    """Read the matrix from its file, expert by expert: no second copy of the whole."""
    piece = ctypes.create_string_buffer(matrix.expert_bytes)
    with matrix.path.open("rb") as file:
        file.seek(matrix.offset_bytes)
        for expert in range(matrix.ne[2]):
            if file.readinto(piece) != matrix.expert_bytes:
                raise GgmlError(f"{matrix.path}: is truncated: it ends within the experts")
            ggml.ggml_backend_tensor_set(tensor, piece, expert * matrix.expert_bytes, matrix.expert_bytes)
