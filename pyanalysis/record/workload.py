"""What is run: the workloads that ship or a prompt file, and how long prompts and answers are for a given model."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ggml_moecache import embedded_model
from ggml_moecache.errors import ConfigError
from pyanalysis import workloads
from pyanalysis.record.prompts import PromptSet, read_prompts

if TYPE_CHECKING:
    from ggml_moecache.gguf_file import ModelFile

# The embedded model was trained on windows of 1,024 tokens and is usable to some 4,000 (perplexity 8.1 at 1,024, 9.8 at
# 4,096); its GGUF says 8,192. A prompt inside the window, and an answer that leaves it.
_EMBEDDED_LONG = (900, 2048)
# Real models: as many tokens as a long answer has, behind the whole prompt.
_LONG_PREDICT_TOKENS = 4096
_PREDICT_TOKENS = 128


@dataclass(frozen=True)
class Limits:
    """Tokens. `prompt`: longer ones are cut there; None: never. `predict`: generated each. `context`: trained."""

    prompt: int | None
    predict: int
    context: int


@dataclass(frozen=True)
class Workload:
    name: str
    prompts: PromptSet
    limits: Limits
    shuffled: bool  # the prompts are in random order, given by the seed


def load_workload(
    name: str,
    model: ModelFile,
    *,
    seed: int,
    prompt_tokens: int | None = None,
    predict_tokens: int | None = None,
    n_prompts: int | None = None,
) -> Workload:
    """The workload `long` or `heterogeneous`, or the one in a prompt file, with the limits of `model`.

    `prompt_tokens` and `predict_tokens` replace its limits, `n_prompts` takes the first ones of the (shuffled) order.

    Raises ConfigError for a file that cannot be read, or a model whose trained context is not known.
    """
    shipped = workloads.path_of(name)
    prompts = read_prompts(Path(name) if shipped is None else shipped)
    context = model.metadata.get(f"{model.architecture}.context_length")
    if not isinstance(context, int) or context <= 0:
        raise ConfigError(f"{model.path}: does not say its trained context ({model.architecture}.context_length)")
    prompt, predict = None, _PREDICT_TOKENS
    if shipped is not None and name == "long":
        prompt, predict = _long_limits(model, context)
    if predict_tokens is not None:
        predict = predict_tokens
        prompt = None if prompt is None else min(prompt, max(context - predict, 1))
    shuffled = name == "heterogeneous" and shipped is not None
    if shuffled:
        order = list(prompts.prompts)
        random.Random(seed).shuffle(order)  # noqa: S311 - repeatable is what it must be
        prompts = replace(prompts, prompts=tuple(order))
    if n_prompts is not None:
        prompts = replace(prompts, prompts=prompts.prompts[:n_prompts])
    workload_name = name if shipped is not None else Path(prompts.file).stem
    return Workload(workload_name, prompts, Limits(prompt_tokens or prompt, predict, context), shuffled)


def _long_limits(model: ModelFile, context: int) -> tuple[int, int]:
    """(prompt, predict): the whole prompt as far as the trained context has room beside the answer."""
    if model.path.resolve() == embedded_model().resolve():
        return _EMBEDDED_LONG
    predict = min(_LONG_PREDICT_TOKENS, max(context // 2, 1))
    return context - predict, predict


def fit(workload: Workload, tokens: list[list[int]]) -> list[list[int]]:
    """Each prompt's token ids, cut at the limit. Raises ConfigError for a request the trained context cannot hold."""
    limits = workload.limits
    cut = [ids if limits.prompt is None else ids[: limits.prompt] for ids in tokens]
    for prompt, ids in zip(workload.prompts.prompts, cut, strict=True):
        if not ids:
            raise ConfigError(f"{prompt.place}: the prompt has no tokens")
        if len(ids) + limits.predict > limits.context:
            raise ConfigError(
                f"{prompt.place}: {len(ids)} tokens of prompt and {limits.predict} to generate are more than the "
                f"{limits.context} of the model's trained context; give --prompt-tokens, which cuts prompts, or a "
                "smaller --predict"
            )
    return cut
