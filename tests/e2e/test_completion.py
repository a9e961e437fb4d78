"""llama-completion at temperature 0 writes the text that stock writes, whatever options it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.programs import SAME_KERNELS, Finished, run_moecache, run_stock
from tests.harness.environment import Build, reference_device
from tests.models.generate import model_path
from tests.models.lora import adapter_path
from tests.models.tokenizer import embedded_model

PROGRAM = "llama-completion"
CAPACITIES = ("0", "25%", "all")
PROMPTS = ("SQLite is a library that", "def quicksort(items):\n", "The integral of a function is")
# Without a begin-of-text token, which this tokenizer does not add.
N_PROMPT_TOKEN = dict(zip(PROMPTS, (6, 9, 7), strict=True))
GREEDY = ("--temp", "0", "-no-cnv", "--no-display-prompt", *SAME_KERNELS)


def _arguments(model: Path, *options: str, prompt: str = PROMPTS[0], n_predict: int = 48) -> list[str]:
    return ["-m", str(model), "-p", prompt, "-n", str(n_predict), *GREEDY, *options]


def _same_text(
    build: Build, capacity: str, arguments: list[str], environment: dict[str, str] | None = None
) -> Finished:
    """Run on both sides; the texts must be equal and not empty."""
    stock = run_stock(build, PROGRAM, *arguments)
    assert stock.returncode == 0, stock.stderr
    ours = run_moecache(build, PROGRAM, *arguments, capacity=capacity, environment=environment)
    assert ours.returncode == 0, ours.stderr
    assert stock.stdout.strip()
    assert ours.stdout == stock.stdout
    return ours


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_text_of_the_embedded_model(build: Build, capacity: str, prompt: str) -> None:
    """128 tokens; 1,024 experts in 8 layers, 8 of them per token and layer.

    llama.cpp's warm-up in these programs is an ordinary batch of two tokens (the all-experts graph is made by
    llama_set_warmup only, which they do not call), so its two tokens are among the computed ones.
    """
    ours = _same_text(build, capacity, _arguments(embedded_model(), prompt=prompt, n_predict=128))
    context = ours.active_context()
    assert context["n_experts"] == 1024
    assert context["n_resident"] == {"0": 0, "25%": 256, "all": 1024}[capacity]
    n_token = 2 + N_PROMPT_TOKEN[prompt] + 127
    assert context["n_events"] == 8 * n_token
    assert context["n_hits"] + context["n_misses"] == 64 * n_token
    assert (context["n_misses"] > 0, context["n_hits"] > 0) == (capacity != "all", capacity != "0")
    assert "moecache: active: " in ours.stderr
    assert context["closed"] is True


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_no_warmup(build: Build, capacity: str) -> None:
    ours = _same_text(build, capacity, _arguments(embedded_model(), "--no-warmup"))
    assert ours.active_context()["n_events"] == 8 * (N_PROMPT_TOKEN[PROMPTS[0]] + 47)


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize(
    "options",
    [
        ("-lm", "none"),
        ("-lm", "mmap"),
        ("-fa", "off"),
        ("-fa", "on"),
        ("-ub", "4", "-b", "8"),
        ("-ctk", "q8_0"),
        ("-nkvo",),
        ("--no-op-offload",),
        ("-t", "1"),
        ("-ot", "attn=CPU"),
        ("-ot", "token_embd=MoECache0"),
    ],
    ids=" ".join,
)
def test_options(build: Build, capacity: str, options: tuple[str, ...]) -> None:
    """Options that leave all experts in the store."""
    arguments = _arguments(embedded_model(), *options)
    if options[-1] == "token_embd=MoECache0":  # a buffer type that only our side has
        stock = run_stock(build, PROGRAM, *_arguments(embedded_model()))
        ours = run_moecache(build, PROGRAM, *arguments, capacity=capacity)
        assert ours.stdout == stock.stdout
    else:
        ours = _same_text(build, capacity, arguments)
    assert ours.active_context()["n_experts"] == 1024


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize(
    ("options", "n_layer"),
    [
        (("-ncmoe", "3"), 5),
        (("-ngl", "4"), 3),
        (("-ot", r"blk\.[0-5]\.ffn_.*_exps=CPU"), 2),
        (("-cmoe",), 0),
        (("-ngl", "0"), 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_experts_the_user_places(build: Build, capacity: str, options: tuple[str, ...], n_layer: int) -> None:
    """Layers placed on the CPU stay there; -ngl N counts the output layer too."""
    environment = {} if n_layer else {"MOECACHE_REQUIRE": ""}
    ours = _same_text(build, capacity, _arguments(embedded_model(), *options), environment)
    if n_layer:
        assert ours.active_context()["n_layers"] == n_layer
    else:
        assert "moecache: active" not in ours.stderr


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_context_shift(build: Build, capacity: str) -> None:
    """A context of 128 tokens that overflows twice: the K cache is shifted on the device."""
    options = ("-c", "128", "--context-shift", "--ignore-eos", "--keep", "4")
    _same_text(build, capacity, _arguments(model_path("qwen3moe", "Q4_0"), *options, n_predict=300))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_prompt_cache(build: Build, capacity: str, tmp_path: Path) -> None:
    """A state saved by stock is read on the device, and one saved there by stock."""
    model = embedded_model()
    plain = run_stock(build, PROGRAM, *_arguments(model))
    saved_by_stock, saved_by_us = str(tmp_path / "stock.bin"), str(tmp_path / "ours.bin")
    run_stock(build, PROGRAM, *_arguments(model, "--prompt-cache", saved_by_stock))
    run_moecache(build, PROGRAM, *_arguments(model, "--prompt-cache", saved_by_us), capacity=capacity)
    assert Path(saved_by_us).read_bytes() == Path(saved_by_stock).read_bytes()
    restored = run_moecache(
        build, PROGRAM, *_arguments(model, "--prompt-cache", saved_by_stock, "--prompt-cache-ro"), capacity=capacity
    )
    by_stock = run_stock(build, PROGRAM, *_arguments(model, "--prompt-cache", saved_by_us))
    assert restored.stdout == by_stock.stdout
    if reference_device() is None:  # a GPU computes the last token alone by other kernels than in the prompt's batch
        assert restored.stdout == plain.stdout


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_lora(build: Build, capacity: str) -> None:
    """An adapter with expert tensors, named on the command line."""
    model = model_path("qwen3moe", "Q4_0")
    environment = {"MOECACHE_REQUIRE": ""} if capacity == "25%" else {}  # its blocks are the CPU's as a whole
    adapted = _same_text(build, capacity, _arguments(model, "--lora", str(adapter_path("qwen3moe"))), environment)
    assert adapted.stdout != run_stock(build, PROGRAM, *_arguments(model)).stdout


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_dense_model(build: Build, capacity: str) -> None:
    ours = _same_text(build, capacity, _arguments(model_path("dense", "Q4_0")))
    assert "moecache: inactive: no_expert_tensors: " in ours.stderr
    assert ours.active_context()["reason"] == "no_expert_tensors"


def test_split_mode_row_is_refused_as_stock_says(build: Build) -> None:
    """No GPU backend but CUDA's offers split buffers, and a proxy of one device cannot."""
    ours = run_moecache(build, PROGRAM, *_arguments(embedded_model(), "-sm", "row"))
    assert ours.returncode != 0
    assert "device MoECache0 does not support split buffers" in ours.stderr


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_split_mode_tensor_is_inactive(build: Build, capacity: str) -> None:
    """llama.cpp's meta device spreads each tensor over devices: the text is stock's, the cache says why it is off."""
    arguments = _arguments(embedded_model(), "-sm", "tensor")
    ours = run_moecache(build, PROGRAM, *arguments, capacity=capacity, environment={"MOECACHE_REQUIRE": ""})
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == run_stock(build, PROGRAM, *_arguments(embedded_model())).stdout
    assert "moecache: inactive: " in ours.stderr


def test_device_is_listed(build: Build) -> None:
    ours = run_moecache(build, PROGRAM, "--list-devices")
    assert "MoECache0: " in ours.stdout
