"""The scenarios of the exactness tests: token counts, batches, ubatches and sequences in which results must agree."""

from __future__ import annotations

import numpy as np

from tests.harness.plan import Scenario, Step, decode

N_VOCAB = 4096
FIRST_TEXT_TOKEN = 3


def token_stream(n_token: int, seed: int = 7) -> list[int]:
    """Deterministic text tokens without the three control tokens."""
    rng = np.random.default_rng(seed)
    return [int(token) for token in rng.integers(FIRST_TEXT_TOKEN, N_VOCAB, n_token)]


def prefill_and_decode(n_token: int, n_decode: int = 2, *, n_ubatch: int = 512, observe: bool = False) -> Scenario:
    """One batch of `n_token` tokens with logits for all of them, then `n_decode` single tokens."""
    tokens = token_stream(n_token + n_decode, seed=n_token)
    steps = [decode(tokens[:n_token])]
    steps += [decode([tokens[position]], start=position) for position in range(n_token, n_token + n_decode)]
    name = f"tokens-{n_token}" + (f"-ubatch-{n_ubatch}" if n_ubatch != 512 else "")
    return Scenario(name, tuple(steps), n_ubatch=n_ubatch, observe_routing=observe)


def last_output_only(n_token: int = 24) -> Scenario:
    """Prefill with logits for the last token only: some architectures then run the last layer on one row."""
    tokens = token_stream(n_token + 1, seed=1000 + n_token)
    return Scenario(
        f"last-of-{n_token}", (decode(tokens[:n_token], outputs="last"), decode(tokens[n_token:], start=n_token))
    )


def two_sequences() -> Scenario:
    """Two sequences of different length in one batch, then single tokens of both in one batch, then of one alone."""
    first, second = token_stream(12, seed=21), token_stream(9, seed=22)
    prefill = _joint([(0, 0, first[:9]), (1, 0, second[:6])])
    both = [_joint([(0, 9 + k, [first[9 + k]]), (1, 6 + k, [second[6 + k]])]) for k in range(2)]
    alone = decode([first[11]], start=11)
    return Scenario("two-sequences", (prefill, *both, alone), n_seq_max=2)


def small_batches() -> Scenario:
    """Batches of 2, 3, 5, 8, 31, 32 and 33 tokens one after the other: the sizes of speculative verification."""
    sizes = (2, 3, 5, 8, 31, 32, 33)
    tokens = token_stream(sum(sizes), seed=33)
    steps, start = [], 0
    for size in sizes:
        steps.append(decode(tokens[start : start + size], start=start))
        start += size
    return Scenario("small-batches", tuple(steps))


def _joint(parts: list[tuple[int, int, list[int]]]) -> Step:
    """One batch of several (sequence, first position, tokens) parts, all with logits."""
    tokens = [token for _, _, part in parts for token in part]
    positions = [first + offset for _, first, part in parts for offset in range(len(part))]
    sequences = [sequence for sequence, _, part in parts for _ in part]
    return Step("decode", tuple(tokens), tuple(positions), tuple(sequences), (1,) * len(tokens))


# One worker process runs them all on one loaded model, in contexts of their own.
STANDARD = (
    prefill_and_decode(1),
    prefill_and_decode(7),
    prefill_and_decode(512),
    prefill_and_decode(200, n_ubatch=64),
    last_output_only(),
    two_sequences(),
    small_batches(),
)
