"""Who may read a ring, for how long, and how often: the model has 8 layers, so 5 tokens make 40 events."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys

import numpy as np
import pytest

import ggml_moecache
from ggml_moecache import errors

TOKENS = [100, 200, 300, 400, 500]


@pytest.fixture
def llm():
    model = ggml_moecache.load_model(live_log=True, verbose=False, n_ctx=256)
    yield model
    model.close()


def order_of(view):
    return [(int(layer), int(token)) for layer, token in zip(view["layer_id"], view["token_index"], strict=True)]


ORDER = [(layer, token) for layer in range(8) for token in range(5)]

_FREED_FIRST = """
import gc, sys
import numpy as np
import ggml_moecache
from ggml_moecache import RoutingRing

llm = ggml_moecache.load_model(live_log=True, verbose=False, n_ctx=256, log_ring_events=2**20)
llm.eval([100, 200, 300, 400, 500])
ring = RoutingRing(llm)
view = ring.view()
columns = view["ids"][::2]  # an array that was made of it
before = int(view["ids"].sum())
things = {"view": lambda: None, "ring": ring.close, "model": llm.close}
for name in sys.argv[1].split(","):
    things[name]()
del ring, llm, things
if "view" in sys.argv[1]:
    del view
gc.collect()
fill = [np.full(2**20, 255, np.uint8) for _ in range(200)]
if "view" not in sys.argv[1]:
    assert int(view["ids"].sum()) == before, "the memory is another one's"
    assert [int(t) for t in view["token_index"]] == list(range(5)) * 8
assert columns.shape == (20, 8) and 0 <= int(columns.min()) and int(columns.max()) < 128
print("alive")
"""


@pytest.mark.parametrize("order", ["model", "ring", "model,ring", "ring,model", "view,model,ring", "view,ring,model"])
def test_arrays_keep_their_memory_whatever_goes_first(order):
    """In a process of its own: a fault is a crash. A ring of 2**20 events is memory that is unmapped when freed."""
    result = subprocess.run([sys.executable, "-c", _FREED_FIRST, order], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "alive\n"), result.stderr


def test_views_cannot_be_made_writeable(llm):
    ring = ggml_moecache.RoutingRing(llm)
    llm.eval(TOKENS)
    view = ring.view()
    for array in (view, view["ids"]):
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


@pytest.mark.parametrize("n_before", [0, 1])
def test_a_ring_gets_the_events_of_its_model_after_the_model_was_closed(n_before):
    """Made before the first graph or after it; first read when the model is gone."""
    model = ggml_moecache.load_model(live_log=True, verbose=False, n_ctx=256)
    if n_before:
        model.eval(TOKENS)
    ring = ggml_moecache.RoutingRing(model)
    if not n_before:
        model.eval(TOKENS)
    context_id = model._moecache_context_id
    model.close()
    del model
    gc.collect()
    assert ring.stats() == {"n_slots": 262144, "n_committed": 40, "n_lost": 0}
    assert order_of(ring.view()) == ORDER
    assert [(e.layer_id, e.token_index) for e in ring.events()] == ORDER
    (context,) = [c for c in ggml_moecache.status()["contexts"] if c["context_id"] == context_id]
    assert (context["n_log_events"], context["n_log_lost"]) == (40, 0)


def test_no_event_comes_twice_or_is_left_out(llm):
    ring = ggml_moecache.RoutingRing(llm)
    llm.eval(TOKENS)
    stopped = ring.events()
    taken = [next(stopped)]  # neither exhausted nor closed
    taken += itertools.islice(ring.events(), 10)
    closed = ring.events()
    taken.append(next(closed))
    closed.close()
    taken.append(next(stopped))  # goes on behind what the others took
    ring.release(2)  # two that nobody saw
    for event in ring.events():
        taken.append(event)
        if event.layer_id == 7:
            break
    taken += stopped
    assert [(e.layer_id, e.token_index) for e in taken] == ORDER[:13] + ORDER[15:]
    assert list(ring.events()) == []


def test_events_that_come_while_others_are_taken(llm):
    """40 events, and 8 of a token that is computed when the first has been taken."""
    ring = ggml_moecache.RoutingRing(llm)
    llm.eval(TOKENS)
    events = ring.events()
    first = next(events)
    llm.eval([600])
    assert len([first, *events]) == 48


def test_one_consumer_at_a_time(llm):
    ring = ggml_moecache.RoutingRing(llm)
    llm.eval(TOKENS)
    with pytest.raises(errors.BackendError, match="has a consumer already; close that one first"):
        ggml_moecache.RoutingRing(llm)
    next(ring.events())
    kept = ring.view()
    ring.close()
    with ggml_moecache.RoutingRing(llm) as other:
        assert order_of(other.view()) == ORDER[1:] == order_of(kept)
    del other
    lost = ggml_moecache.RoutingRing(llm)
    del lost  # a consumer that is gone has let go
    gc.collect()
    ggml_moecache.RoutingRing(llm).close()


def test_a_closed_ring_says_so(llm):
    ring = ggml_moecache.RoutingRing(llm)
    llm.eval(TOKENS)
    ring.close()
    ring.close()
    for use in (ring.view, ring.stats, lambda: ring.release(0), lambda: list(ring.events())):
        with pytest.raises(errors.BackendError, match="RoutingRing is closed"):
            use()


@pytest.mark.parametrize("tokens", [TOKENS, []])
def test_a_closed_model_has_no_ring(tokens):
    model = ggml_moecache.load_model(live_log=True, verbose=False, n_ctx=64)
    if tokens:
        model.eval(tokens)
    model.close()
    with pytest.raises(errors.BackendError, match=r"context \d+ is closed|there is no context \d+, or no longer"):
        ggml_moecache.RoutingRing(model)


def test_a_model_that_does_not_log_live_has_no_ring(tmp_path):
    for arguments in ({}, {"log": tmp_path / "log"}):
        model = ggml_moecache.load_model(verbose=False, n_ctx=64, **arguments)
        for _ in range(2):  # before and after its first graph
            with pytest.raises(errors.BackendError, match=r"does not log live: .*live_log"):
                ggml_moecache.RoutingRing(model)
            model.eval(TOKENS)
        model.close()


@pytest.mark.parametrize("bad", ["a", 1.5, None, True, -1, 41, np.float32(1)])
def test_only_events_that_are_there_can_be_released(llm, bad):
    ring = ggml_moecache.RoutingRing(llm)
    llm.eval(TOKENS)
    with pytest.raises(
        errors.ConfigError, match="'n_events' parameter of release must be a whole number between 0 and 40"
    ):
        ring.release(bad)
    assert len(ring.view()) == 40
