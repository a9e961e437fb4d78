"""The GGUF header reader: what it finds in good files, and the one message for each way in which a file can be bad."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from ggml_moecache import embedded_model
from ggml_moecache.errors import ModelFileError
from ggml_moecache.gguf_file import read_model
from tests.bindings.gguf_files import write_moe


def test_moe_model_by_hand(tmp_path):
    """2 layers x 4 experts x 3 matrices of 32 x 64 F32: 24,576 bytes per expert, 196,608 in all."""
    model = read_model(write_moe(tmp_path / "moe.gguf"))
    assert (model.architecture, model.n_layers, model.n_experts, model.n_experts_used) == ("qwen3moe", 2, 4, 2)
    assert model.expert_sizes_bytes() == {0: 24_576, 1: 24_576}
    assert sum(t.size_bytes for t in model.expert_tensors) == 196_608
    assert model.expert_tensors[0].shape == (32, 64, 4)
    assert model.size_bytes == (tmp_path / "moe.gguf").stat().st_size


def test_embedded_model():
    """128 experts, Q4_0: 3 matrices of 256 x 32 at 18 bytes per 32 weights are 13,824 bytes per expert."""
    model = read_model(embedded_model())
    assert (model.architecture, model.n_layers, model.n_experts, model.n_experts_used) == ("qwen35moe", 8, 128, 8)
    assert model.expert_sizes_bytes() == dict.fromkeys(range(8), 13_824)
    assert {t.type_name for t in model.expert_tensors} == {"Q4_0"}


def test_dense_model_has_no_experts(tmp_path):
    model = read_model(write_moe(tmp_path / "dense.gguf", dense=True))
    assert model.expert_tensors == []
    assert model.expert_sizes_bytes() == {}


def test_split_model_is_joined(tmp_path):
    first = write_moe(tmp_path / "m-00001-of-00002.gguf", part=0, n_parts=2)
    second = write_moe(tmp_path / "m-00002-of-00002.gguf", part=1, n_parts=2)
    model = read_model(first)
    assert sorted(model.expert_sizes_bytes()) == [0, 1]
    assert model.size_bytes == first.stat().st_size + second.stat().st_size


def test_split_model_with_a_missing_part(tmp_path):
    first = write_moe(tmp_path / "m-00001-of-00002.gguf", part=0, n_parts=2)
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf does not exist"):
        read_model(first)


def test_a_later_part_is_refused(tmp_path):
    second = write_moe(tmp_path / "m-00002-of-00002.gguf", part=1, n_parts=2)
    with pytest.raises(ModelFileError, match=r"one of 2 parts.*-00001-of-00002\.gguf"):
        read_model(second)


# Where the copy ends, in bytes: inside magic and version, the counts, the metadata, the tensor table, the data.
@pytest.mark.parametrize("n_bytes", [6, 20, 60, 200, 600, -1])
def test_truncated_anywhere(tmp_path, n_bytes):
    whole = write_moe(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:n_bytes])
    with pytest.raises(ModelFileError, match=r"cut\.gguf is truncated: it has \d+ bytes.*again"):
        read_model(path)


def test_truncated_by_one_byte_names_the_whole_size(tmp_path):
    whole = write_moe(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:-1])
    # The last tensor is a multiple of the alignment long: the file ends with its data.
    with pytest.raises(
        ModelFileError, match=f"it has {len(whole) - 1} bytes, its header asks for at least {len(whole)}"
    ):
        read_model(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a GGUF file"),
        (b"GG", "is not a GGUF file"),
        (b"ggml" + bytes(100), "is not a GGUF file"),
        (b"GGUF", "is truncated"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(32), "GGUF version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(32), "GGUF version 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 99), "unknown value type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 9, 1), "array of value type 9"),
        (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 32, 4096, 0), "type 4096 of tensor t"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62), "is truncated"),
    ],
    ids=["empty", "two-bytes", "old-magic", "magic-only", "version-1", "big-endian", "value-type", "array-type",
         "tensor-type", "huge-string"],
)  # fmt: skip
def test_malformed(tmp_path, content, message):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message) as caught:
        read_model(path)
    assert str(path) in str(caught.value)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(ModelFileError, match=r"none\.gguf does not exist\. Name a GGUF file\."):
        read_model(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="is not a file"):
        read_model(tmp_path)


def test_home_is_expanded(tmp_path, monkeypatch):
    write_moe(tmp_path / "moe.gguf")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_model(Path("~/moe.gguf")).path == tmp_path / "moe.gguf"


@pytest.mark.parametrize(
    ("file_type", "name"),
    [(0, "F32"), (1, "F16"), (15, "Q4_K_M"), (1024, None), (1024 + 15, None), (9999, None), (None, None)],
)
def test_quantization(tmp_path, file_type, name):
    """llama.h: LLAMA_FTYPE_ALL_F32 is 0, MOSTLY_F16 1, MOSTLY_Q4_K_M 15; the bit 1024 marks a guess."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    if file_type is not None:
        writer.add_file_type(file_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert read_model(tmp_path / "m.gguf").quantization == name


def test_where_the_data_of_a_tensor_lie(tmp_path):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("a", np.zeros(5, np.float32))
    writer.add_tensor("b", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = read_model(tmp_path / "m.gguf").tensors[1]
    assert (tensor.path, tensor.shape) == (tmp_path / "m.gguf", (3, 2))
    read = np.fromfile(tensor.path, np.float32, 6, offset=tensor.offset_bytes)
    np.testing.assert_array_equal(read, values.ravel())
