"""Generation of one or several sequences at once through llama.cpp's batches, the same way every time.

Requests start in their order. A request's prompt is computed alone; then every running request gets its next token in
one common batch. A request that ends gives its place to the next one, before the next common batch.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ggml_moecache.errors import BackendError
from pyanalysis.record.sampling import MAX_SEED, SamplerChain, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_cpp import Llama


@dataclass
class _Running:
    request: int
    sampler: SamplerChain
    n_computed: int  # tokens of the request in the KV cache
    generated: list[int] = field(default_factory=list)


def chunks(tokens: Sequence[int], most: int) -> list[Sequence[int]]:
    """`tokens` in as few parts of at most `most` as possible, of nearly equal length.

    A last part of one token would look like a generated one in the routing log; there is none unless `tokens` has one
    token, or `most` is 1.
    """
    n_parts = -(-len(tokens) // most)
    return [tokens[len(tokens) * i // n_parts : len(tokens) * (i + 1) // n_parts] for i in range(n_parts)]


class Generator:
    """Runs requests on a model of load_model, whose n_seq_max and n_ubatch `n_parallel` and `n_ubatch_tokens` are.

    One batch is one ubatch. REQUIRES: n_ubatch_tokens >= n_parallel.
    """

    def __init__(self, llm: Llama, low_level: Any, n_parallel: int, n_ubatch_tokens: int) -> None:  # noqa: ANN401
        self._llama = low_level
        self._context = llm._ctx.ctx  # noqa: SLF001 - llama-cpp-python's own low-level functions take it
        self._vocab = low_level.llama_model_get_vocab(llm._model.model)  # noqa: SLF001 - the same
        self._memory = low_level.llama_get_memory(self._context)
        self._n_parallel = n_parallel
        self._n_ubatch_tokens = n_ubatch_tokens
        self._batch = low_level.llama_batch_init(n_ubatch_tokens, 0, 1)

    def close(self) -> None:
        self._llama.llama_batch_free(self._batch)

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        n_predict: int,
        sampling: Sampling,
        seed: int,
        on_tokens: Callable[[int], None],
        done: dict[int, list[int]],
    ) -> None:
        """Generate `n_predict` tokens behind each prompt; request i is sampled with seed + i.

        `done` gets the generated tokens of each request when it ends, so that it is right also after an interruption.
        `on_tokens` is called with the number of tokens computed since its last call. Raises BackendError.
        """
        waiting = deque(enumerate(prompts))
        running: dict[int, _Running] = {}
        try:
            while waiting or running:
                for sequence in range(self._n_parallel):
                    if sequence not in running and waiting:
                        request, prompt = waiting.popleft()
                        running[sequence] = self._start(sequence, request, prompt, sampling, seed)
                        on_tokens(len(prompt))
                self._finish(running, n_predict, done)
                if running:
                    self._step(running)
                    on_tokens(len(running))
                    self._finish(running, n_predict, done)
        finally:
            for one in running.values():
                one.sampler.close()

    def _start(self, sequence: int, request: int, prompt: Sequence[int], sampling: Sampling, seed: int) -> _Running:
        position = 0
        for part in chunks(prompt, self._n_ubatch_tokens):
            last = position + len(part) == len(prompt)
            rows = [(token, position + i, sequence, False) for i, token in enumerate(part)]
            rows[-1] = (*rows[-1][:3], last)
            self._decode(rows)
            position += len(part)
        sampler = SamplerChain(self._llama, self._vocab, sampling, (seed + request) % (MAX_SEED + 1), prompt)
        one = _Running(request, sampler, len(prompt))
        one.generated.append(sampler.sample(self._context, -1))
        return one

    def _step(self, running: dict[int, _Running]) -> None:
        order = sorted(running.items())
        self._decode([(one.generated[-1], one.n_computed, sequence, True) for sequence, one in order])
        for row, (_, one) in enumerate(order):
            one.n_computed += 1
            one.generated.append(one.sampler.sample(self._context, row))

    def _finish(self, running: dict[int, _Running], n_predict: int, done: dict[int, list[int]]) -> None:
        for sequence in [s for s, one in running.items() if len(one.generated) >= n_predict]:
            one = running.pop(sequence)
            one.sampler.close()
            done[one.request] = one.generated
            self._llama.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        """Compute (token, position, sequence, whether its logits are wanted) rows as one ubatch."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        status = self._llama.llama_decode(self._context, batch)
        if status != 0:
            raise BackendError(f"llama.cpp could not compute a batch of {len(rows)} tokens (llama_decode: {status})")
