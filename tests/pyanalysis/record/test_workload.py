"""The workloads that ship, and the limits they have for a model."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from pathlib import Path

import pytest

from ggml_moecache import embedded_model
from ggml_moecache.errors import ConfigError
from ggml_moecache.gguf_file import read_model
from pyanalysis import workloads
from pyanalysis.record.workload import Limits, fit, load_workload


def other_model(context: int | None):
    model = read_model(embedded_model())
    return replace(model, path=Path("other.gguf"), metadata={**model.metadata, "qwen35moe.context_length": context})


def test_long_of_the_embedded_model():
    found = load_workload("long", read_model(embedded_model()), seed=1)
    assert found.limits == Limits(prompt=900, predict=2048, context=8192)
    assert len(found.prompts.prompts) == 6
    assert not found.shuffled


def test_long_of_another_model_has_full_length():
    """4,096 tokens of answer, and of the prompt what the trained context leaves; of a short context half of it."""
    assert load_workload("long", other_model(32768), seed=1).limits == Limits(32768 - 4096, 4096, 32768)
    assert load_workload("long", other_model(2000), seed=1).limits == Limits(1000, 1000, 2000)
    assert load_workload("long", other_model(2000), seed=1, predict_tokens=1500).limits == Limits(500, 1500, 2000)


def test_heterogeneous_is_shuffled_by_the_seed():
    model = read_model(embedded_model())
    path = workloads.path_of("heterogeneous")
    assert path is not None
    found = load_workload("heterogeneous", model, seed=7)
    order = list(range(160))
    random.Random(7).shuffle(order)  # noqa: S311 - repeatable
    assert [int(p.place.rpartition(":")[2]) - 1 for p in found.prompts.prompts] == order
    assert found.limits == Limits(None, 128, 8192)
    assert found.prompts.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert load_workload("heterogeneous", model, seed=7, n_prompts=3).prompts.prompts == found.prompts.prompts[:3]


def test_a_file_keeps_its_order(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("a text")
    found = load_workload(str(path), read_model(embedded_model()), seed=1, predict_tokens=5)
    assert (found.name, found.limits, found.shuffled) == ("mine", Limits(None, 5, 8192), False)


def test_prompts_are_cut_only_when_told(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    model = other_model(10)
    free = load_workload(str(tmp_path), model, seed=1, predict_tokens=4)
    assert fit(free, [[1] * 6, [2]]) == [[1] * 6, [2]]
    with pytest.raises(ConfigError) as caught:
        fit(free, [[1], [2] * 7])
    assert str(caught.value) == (
        f"{tmp_path}/b.txt: 7 tokens of prompt and 4 to generate are more than the 10 of the model's trained context; "
        "give --prompt-tokens, which cuts prompts, or a smaller --predict"
    )
    cut = load_workload(str(tmp_path), model, seed=1, predict_tokens=4, prompt_tokens=3)
    assert fit(cut, [[1], [2] * 7]) == [[1], [2] * 3]
    with pytest.raises(ConfigError, match=r"a\.txt: the prompt has no tokens"):
        fit(free, [[], [1]])


def test_a_model_that_does_not_say_its_context():
    with pytest.raises(ConfigError, match=r"does not say its trained context \(qwen35moe\.context_length\)"):
        load_workload("long", other_model(None), seed=1)
