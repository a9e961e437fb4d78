"""The expert weights that are measured: those of the file, and the arithmetic that of the model."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest
from gguf import GGUFReader

from ggml_moecache import embedded_model
from ggml_moecache.gguf_file import read_model
from pyanalysis.calibrate.event import EventGraph
from pyanalysis.calibrate.experts import Store, read_geometry
from pyanalysis.calibrate.ggml import CpuBackend, Ggml, GgmlError
from tests.bindings.gguf_files import write_moe
from tests.models.generate import model_path


@pytest.fixture(scope="module")
def ggml(build):
    return Ggml(build.llama_bin)


def on_cpu(ggml, layers):
    return Store.load(ggml, layers, ggml.ggml_backend_dev_buffer_type(ggml.cpu))


def test_geometry_of_the_embedded_model(ggml):
    """8 layers of 128 experts, three Q4_0 matrices of 256 x 32: 18 bytes for 32 weights, 13,824 an expert."""
    geometry = read_geometry(ggml, embedded_model())
    assert (geometry.architecture, geometry.top_k, len(geometry.layers)) == ("qwen35moe", 8, 8)
    assert geometry.mean_expert_bytes == 3 * 256 * 32 // 32 * 18
    assert {layer.n_experts for layer in geometry.layers} == {128}
    assert {m.type_name for layer in geometry.layers for m in layer.matrices.values()} == {"q4_0"}


def test_layers_that_a_token_does_not_go_through_are_left_out(ggml):
    """The MTP head is a third layer with experts in the file; the model has two."""
    path = model_path("qwen35moe-mtp", "F32")
    assert {t.name.split(".")[1] for t in read_model(path).expert_tensors} == {"0", "1", "2"}
    assert [layer.index for layer in read_geometry(ggml, path).layers] == [0, 1]


def test_a_second_family_is_seen(ggml):
    assert read_geometry(ggml, model_path("grovemoe", "F32")).second_family
    assert not read_geometry(ggml, embedded_model()).second_family


def test_the_header_is_read_as_the_other_reader_does(ggml):
    tensors = {t.name: t for t in read_model(embedded_model()).expert_tensors}
    for layer in read_geometry(ggml, embedded_model()).layers:
        for role, matrix in layer.matrices.items():
            tensor = tensors[f"blk.{layer.index}.ffn_{role}_exps.weight"]
            assert (matrix.ne, matrix.size_bytes, matrix.offset_bytes) == (
                tensor.shape,
                tensor.size_bytes,
                tensor.offset_bytes,
            )


@pytest.mark.parametrize("family", ["qwen3moe", "qwen35moe-fused"])
def test_an_event_is_the_models_arithmetic(ggml, family):
    """down(silu(gate x) * up x) in float64 of the file's own F32 weights; the fused one has gate and up in one tensor.

    GGML sums the products in float32 in another order: 256 terms differ by far less than 1e-4 of the largest result.
    """
    path = model_path(family, "F32")
    geometry = read_geometry(ggml, path)
    layers = list(geometry.layers[:2])
    weights = {t.name: t.data.astype(np.float64) for t in GGUFReader(path).tensors if "_exps.weight" in t.name}
    cpu = CpuBackend(ggml, 2)
    with contextlib.closing(cpu), contextlib.closing(on_cpu(ggml, layers)) as store:
        graph = EventGraph(ggml, cpu.address, store, [0, 1], 3)
        chosen = graph.choose(random.Random(5))  # noqa: S311 - repeatable
        assert ggml.ggml_backend_graph_compute(cpu.address, graph.graph) == 0
        n_embd = layers[0].matrices["down"].ne[1]
        x = np.empty(n_embd, np.float32)
        ggml.ggml_backend_tensor_get(graph.input, x.ctypes.data, 0, x.nbytes)
        assert np.ptp(x) > 1
        for layer, experts, output in zip(layers, chosen, graph.outputs, strict=True):
            found = np.empty((3, n_embd), np.float32)
            ggml.ggml_backend_tensor_get(output, found.ctypes.data, 0, found.nbytes)
            for row, expert in zip(found, experts, strict=True):
                w = {role: weights[f"blk.{layer.index}.ffn_{role}_exps.weight"][expert] for role in layer.matrices}
                if "gate_up" in w:
                    w["gate"], w["up"] = np.split(w["gate_up"], 2)
                gate = w["gate"] @ x
                expected = w["down"] @ (gate / (1 + np.exp(-gate)) * (w["up"] @ x))
                np.testing.assert_allclose(row, expected, atol=1e-4 * np.abs(expected).max())
        graph.close()


def test_experts_of_an_event_differ(ggml):
    geometry = read_geometry(ggml, embedded_model())
    cpu = CpuBackend(ggml, 1)
    layers = list(geometry.layers[:1])
    with contextlib.closing(cpu), contextlib.closing(on_cpu(ggml, layers)) as store:
        graph = EventGraph(ggml, cpu.address, store, [0], 8)
        generator = random.Random(1)  # noqa: S311 - repeatable
        drawn = [graph.choose(generator)[0] for _ in range(20)]
        graph.close()
    assert all(len(set(experts)) == 8 for experts in drawn)
    assert len({tuple(experts) for experts in drawn}) == 20


def test_files_that_cannot_be_used(ggml, tmp_path):
    with pytest.raises(GgmlError, match=r"nowhere\.gguf: is no GGUF file that can be read"):
        read_geometry(ggml, tmp_path / "nowhere.gguf")
    with pytest.raises(GgmlError, match=r"dense\.gguf: has no experts; there is nothing to calibrate"):
        read_geometry(ggml, write_moe(tmp_path / "dense.gguf", dense=True))
    second = write_moe(tmp_path / "model-00002-of-00002.gguf", part=1, n_parts=2)
    with pytest.raises(GgmlError, match=r"is one of 2 parts; name the first one, which ends in -00001-of-00002\.gguf"):
        read_geometry(ggml, second)
    first = write_moe(tmp_path / "model-00001-of-00002.gguf", part=0, n_parts=2)
    second.unlink()
    with pytest.raises(GgmlError, match=r"model-00002-of-00002\.gguf: is no GGUF file that can be read"):
        read_geometry(ggml, first)


def test_the_parts_of_a_split_model_are_joined(ggml, tmp_path):
    """Each part holds one layer: 3 matrices of 32 x 64 float32 an expert."""
    parts = [write_moe(tmp_path / f"model-0000{i + 1}-of-00002.gguf", part=i, n_parts=2) for i in range(2)]
    geometry = read_geometry(ggml, parts[0])
    assert [(layer.index, layer.matrices["up"].path) for layer in geometry.layers] == list(enumerate(parts))
    assert geometry.mean_expert_bytes == 3 * 32 * 64 * 4


def test_a_truncated_file(ggml, tmp_path):
    """llama.cpp's reader looks at the header only."""
    last = max(
        (m for layer in read_geometry(ggml, embedded_model()).layers for m in layer.matrices.values()),
        key=lambda matrix: matrix.offset_bytes,
    )
    path = tmp_path / "short.gguf"
    path.write_bytes(embedded_model().read_bytes()[: last.offset_bytes + 1000])
    layers = list(read_geometry(ggml, path).layers)
    with pytest.raises(GgmlError, match=r"short\.gguf: is truncated: it ends within the experts"):
        on_cpu(ggml, layers)


def test_libraries_that_are_not_there(tmp_path):
    with pytest.raises(GgmlError, match=r"cannot be loaded"):
        Ggml(tmp_path)
