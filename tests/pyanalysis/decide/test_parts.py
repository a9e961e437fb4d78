"""What is selected on, what is held out, and the units, on traces of a few tokens."""

from __future__ import annotations

import numpy as np
import pytest

from ggml_moecache.errors import ConfigError
from pyanalysis.decide.parts import first_tokens, splits_of
from pyanalysis.simulation import EventStream
from tests.pyanalysis.simulation.small import small_trace


def splits(trace):
    return {split.name: split for split in splits_of(trace, EventStream.of(trace))}


def ids(n_tokens, n_layers=2):
    return np.zeros((n_tokens, n_layers, 1), int)


def test_halves_of_requests_and_of_tokens():
    """Requests of 3, 2 and 4 tokens, two layers: two events a token."""
    found = splits(small_trace(ids(9), 2, request=[5, 5, 5, 1, 1, 7, 7, 7, 7]))
    requests, tokens = found["requests"], found["tokens"]
    assert requests.selection.events.tolist() == list(range(6))  # one of three requests
    assert requests.held_out.events.tolist() == list(range(6, 18))
    # One of three, one of two, two of four tokens.
    assert tokens.selection.events.tolist() == [0, 1, 6, 7, 10, 11, 12, 13]
    assert tokens.held_out.events.tolist() == [2, 3, 4, 5, 8, 9, 14, 15, 16, 17]
    assert tokens.held_out.tokens.tolist() == [5]  # fewer than 20 requests: one block
    assert not tokens.held_out.has_intervals


def test_prompts_are_in_no_part():
    found = splits(small_trace(ids(6, 1), 2, phase=[0, 0, 1, 1, 1, 1], batch=[0, 0, 1, 2, 3, 4]))
    assert list(found) == ["tokens"]  # one request
    # Event 0 is the prompt.
    assert found["tokens"].selection.events.tolist() == [1, 2]
    assert found["tokens"].held_out.events.tolist() == [3, 4]


def test_requests_are_units_where_there_are_many():
    trace = small_trace(ids(120, 1), 2, request=np.repeat(np.arange(40), 3))
    held_out = splits(trace)["requests"].held_out
    assert held_out.kind == "requests"
    assert held_out.tokens.tolist() == [3] * 20
    assert held_out.unit.tolist() == np.repeat(np.arange(20), 3).tolist()
    assert splits(trace)["tokens"].held_out.tokens.tolist() == [2] * 40


def test_blocks_of_256_tokens_where_there_are_few():
    """One request of 2,600 tokens: 1,300 held out, five blocks, the rest of 20 in the last one."""
    held_out = splits(small_trace(ids(2600, 1), 2))["tokens"].held_out
    assert held_out.kind == "blocks of 256 tokens"
    assert held_out.tokens.tolist() == [256, 256, 256, 256, 276]
    assert held_out.has_intervals


def test_sequences_in_parallel():
    """Two requests decode in the same ubatches: events go layer by layer, each belongs to its own token."""
    trace = small_trace(ids(4), 2, request=[0, 1, 0, 1], batch=[0, 0, 1, 1])
    stream = EventStream.of(trace)
    (requests, tokens) = splits_of(trace, stream)
    assert trace.request[stream.native.row()].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert requests.held_out.events.tolist() == [1, 3, 5, 7]
    assert tokens.held_out.events.tolist() == [4, 5, 6, 7]


def test_nothing_to_hold_out():
    with pytest.raises(ConfigError, match="no token was decoded"):
        splits(small_trace(ids(3), 2, phase=[0, 0, 0], batch=[0, 0, 0]))
    with pytest.raises(ConfigError, match="no request has two decoded tokens"):
        splits(small_trace(ids(3), 2, request=[0, 1, 2]))


def test_first_tokens():
    trace = small_trace(ids(9), 2, request=[5, 5, 5, 1, 1, 7, 7, 7, 7])
    cut = first_tokens(trace, 4)
    assert cut.request.tolist() == [5, 5, 5, 5, 5, 5, 1, 1]
    assert len(cut.tokens) == 4
    assert first_tokens(trace, 9).request.tolist() == trace.request.tolist()
