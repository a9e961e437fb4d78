"""How the next token is chosen: llama.cpp's own samplers, one chain with its own seed per request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ggml_moecache.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_SEED = 2**32 - 2  # 2**32 - 1 means a random seed to llama.cpp


@dataclass(frozen=True)
class Sampling:
    """Parameters as llama.cpp has them; top_k 0, top_p 1 and min_p 0 are off; temperature 0 takes the likeliest token.

    End-of-text tokens are never chosen (llama.cpp's --ignore-eos), so every request has the same length. Raises
    ConfigError for a value out of range.
    """

    temperature: float = 0.9
    repeat_penalty: float = 1.1
    repeat_last_n: int = 256
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name, valid, words in (
            ("temperature", self.temperature >= 0, "at least 0"),
            ("repeat_penalty", self.repeat_penalty > 0, "above 0 (1: off)"),
            ("repeat_last_n", self.repeat_last_n >= 0, "at least 0 tokens (0: off)"),
            ("top_k", self.top_k >= 0, "at least 0 (0: off)"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1 (1: off)"),
            ("min_p", 0 <= self.min_p < 1, "at least 0 and below 1 (0: off)"),
        ):
            value = getattr(self, name)
            if not valid or not math.isfinite(value):
                raise ConfigError(f"--{name.replace('_', '-')} must be {words}. Got {value} instead.")


class SamplerChain:
    """One request's samplers. The prompt counts in the repetition penalty, as in llama-completion. `close` it."""

    def __init__(self, low_level: Any, vocab: Any, sampling: Sampling, seed: int, prompt: Sequence[int]) -> None:  # noqa: ANN401
        self._llama = low_level
        self._chain = low_level.llama_sampler_chain_init(low_level.llama_sampler_chain_default_params())
        n_vocab = low_level.llama_vocab_n_tokens(vocab)
        ends = [token for token in range(n_vocab) if low_level.llama_vocab_is_eog(vocab, token)]
        biases = (low_level.llama_logit_bias * len(ends))(*((token, -math.inf) for token in ends))
        self._add(low_level.llama_sampler_init_logit_bias(n_vocab, len(ends), biases))
        if sampling.repeat_last_n:
            arguments = (n_vocab, sampling.repeat_last_n, sampling.repeat_penalty, 0.0, 0.0)
            self._add(low_level.llama_sampler_init_penalties(*arguments))
        if sampling.temperature == 0:
            self._add(low_level.llama_sampler_init_greedy())
        else:
            if sampling.top_k:
                self._add(low_level.llama_sampler_init_top_k(sampling.top_k))
            if sampling.top_p < 1:
                self._add(low_level.llama_sampler_init_top_p(sampling.top_p, 1))
            if sampling.min_p:
                self._add(low_level.llama_sampler_init_min_p(sampling.min_p, 1))
            self._add(low_level.llama_sampler_init_temp(sampling.temperature))
            self._add(low_level.llama_sampler_init_dist(seed))
        for token in prompt[-sampling.repeat_last_n :] if sampling.repeat_last_n else ():
            low_level.llama_sampler_accept(self._chain, token)

    def _add(self, sampler: Any) -> None:  # noqa: ANN401 - a pointer of llama.cpp
        self._llama.llama_sampler_chain_add(self._chain, sampler)

    def sample(self, context: Any, row: int) -> int:  # noqa: ANN401 - the same
        """The next token by the logits of `row` of the last batch."""
        return int(self._llama.llama_sampler_sample(self._chain, context, row))

    def close(self) -> None:
        self._llama.llama_sampler_free(self._chain)
