"""The summary of the base log, worked out by hand in the comments; Gini against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyanalysis import traces
from pyanalysis.traces import summary
from tests.pyanalysis.traces import logs
from tests.pyanalysis.traces.logs import end, event, overflow


@pytest.fixture
def base(tmp_path):
    return summary.summarize(traces.read_trace(logs.write(tmp_path, logs.base_log())))


def test_sizes(base):
    assert (base.n_tokens, base.n_prefill_tokens, base.n_decode_tokens) == (5, 3, 2)
    assert (base.n_events, base.n_requests, base.n_batches, base.n_lost_events) == (10, 1, 3, 0)
    assert base.complete
    assert [(layer.layer, layer.family, layer.n_events, layer.top_k) for layer in base.layers] == [
        (0, "exps", 5, 2),
        (1, "exps", 5, 2),
    ]


def test_top_experts(base):
    # Layer 0: expert 0 in tokens 0 1 2 3, expert 1 in 0 2 3, expert 2 in 1 4, expert 3 in 4; of 10 rows.
    assert base.layers[0].top_experts == [(0, 0.4), (1, 0.3), (2, 0.2), (3, 0.1)]
    # Layer 1: expert 2 in 0 1 2 4, expert 3 in 0 1 2, expert 0 in 3 4, expert 1 in 3.
    assert base.layers[1].top_experts == [(2, 0.4), (3, 0.3), (0, 0.2), (1, 0.1)]
    assert [layer.n_experts_used for layer in base.layers] == [4, 4]
    assert [layer.n_experts for layer in base.layers] == [5, 5]


def test_gini(base):
    # Counts in rising order 0 1 2 3 4: (-4*0 - 2*1 + 0*2 + 2*3 + 4*4) / (5 * 10).
    assert base.layers[0].gini == pytest.approx(0.4)
    assert base.layers[1].gini == pytest.approx(0.4)
    assert base.gini == pytest.approx(0.4)


def test_overlap(base):
    # Layer 0, tokens 1 to 4: {0,2} in {0,1} 1/2, {0,1} in {0,2} 1/2, {1,0} in {0,1} 1, {3,2} in {1,0} 0.
    assert base.layers[0].overlap == pytest.approx((0.5 + 0.5 + 1 + 0) / 4)
    # Layer 1: 1, 1, {0,1} in {3,2} 0, {0,2} in {0,1} 1/2.
    assert base.layers[1].overlap == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert base.overlap == pytest.approx(4.5 / 8)


def test_first_token_of_a_request_has_no_token_before(tmp_path):
    """Two requests in turn: each is compared with its own past only."""
    events = [
        event(batch_id=0, request_id=0, token_index=0, phase="prefill", expert_ids=[0, 1]),
        event(batch_id=0, request_id=1, token_index=0, phase="prefill", expert_ids=[2, 3]),
        event(batch_id=1, request_id=0, token_index=1, expert_ids=[2, 3]),  # nothing of {0, 1}
        event(batch_id=1, request_id=1, token_index=1, expert_ids=[3, 2]),  # all of {2, 3}
    ]
    trace = traces.read_trace(logs.write(tmp_path, [*events, end(4)], logs.run_json(moe_layers=[0])))
    overlap = summary.overlaps(trace)
    assert np.isnan(overlap[:2]).all()
    assert overlap[2:].tolist() == [0, 1]
    assert summary.summarize(trace).n_requests == 2


def test_token_before_is_the_one_computed_before(tmp_path):
    """Position 3 is computed, rejected, and computed again: its second computation comes after the first."""
    events = [
        event(batch_id=0, expert_ids=[0, 1]),
        event(batch_id=1, expert_ids=[0, 2]),  # 1/2 of the first
        event(batch_id=2, token_index=4, expert_ids=[0, 2]),  # all of the second
    ]
    trace = traces.read_trace(logs.write(tmp_path, [*events, end(3)], logs.run_json(moe_layers=[0])))
    assert summary.overlaps(trace)[1:].tolist() == [0.5, 1]


def test_tie_of_popularity_goes_to_the_lower_id(tmp_path):
    trace = traces.read_trace(logs.write(tmp_path, [event(expert_ids=[3, 1]), end(1)]))
    assert summary.summarize(trace).layers[0].top_experts == [(1, 0.5), (3, 0.5)]


def test_unknown_number_of_experts_is_said(tmp_path):
    log = logs.write(tmp_path, logs.base_log())
    (tmp_path / "run.json").unlink()
    found = summary.summarize(traces.read_trace(log))
    assert not found.layers[0].n_experts_known
    assert found.layers[0].n_experts == 4  # the largest id is 3
    assert "4 of ?" in summary.as_text(found)
    assert "note      no run.json beside it: model and settings are not known" in summary.as_text(found)


def test_text(base):
    lines = summary.as_text(base).splitlines()
    assert lines[1] == "model     unknown model; capacity 0, no cache policy"
    assert lines[2] == "tokens    5 (3 prefill, 2 decode) in 1 request, 3 ubatches"
    assert lines[3] == "events    10 of 2 layers, no event lost, complete"
    assert lines[4] == "locality  56.2% of a token's experts were used by the token before; Gini 0.40 on average"
    assert lines[6:] == [
        "layer  events  experts used  Gini  overlap  top experts (share of rows)",
        "    0       5        4 of 5  0.40    50.0%  0 (40.0%)  1 (30.0%)  2 (20.0%)  3 (10.0%)",
        "    1       5        4 of 5  0.40    62.5%  2 (40.0%)  3 (30.0%)  0 (20.0%)  1 (10.0%)",
    ]


def test_text_shows_losses_and_families(tmp_path):
    both = [event(), event(family="chexps", expert_ids=[2, 2])]
    trace = traces.read_trace(logs.write(tmp_path, [*both, overflow(2, 1234)]))
    lines = summary.as_text(summary.summarize(trace)).splitlines()
    assert (
        lines[3]
        == "events    2 of 2 layers, 1,234 events LOST up to the last line, NOT complete: losses after it are unknown"
    )
    assert lines[5] == "note      1,234 events (99.8%) were lost: what follows from this trace is not its run's"
    assert lines[6] == "note      no end record: the process was killed or still runs, or the disk was full"
    assert lines[8].split()[:3] == ["layer", "family", "events"]
    assert lines[10].split()[:3] == ["0", "chexps", "1"]


def test_a_log_that_lost_events_is_not_called_complete(tmp_path):
    records = [event(), overflow(2, 1864), end(1, 1864)]
    found = summary.summarize(traces.read_trace(logs.write(tmp_path, records)))
    assert summary.as_text(found).splitlines()[3] == "events    1 of 1 layer, closed properly, 1,864 events LOST"


def test_log_without_events(tmp_path):
    found = summary.summarize(traces.read_trace(logs.write(tmp_path, [end(0)])))
    assert (found.n_tokens, found.gini, found.overlap, found.layers) == (0, None, None, [])
    assert "no events" in summary.as_text(found)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40).filter(any))
def test_gini_is_half_the_relative_mean_absolute_difference(counts):
    x = np.array(counts)
    by_definition = np.abs(x[:, None] - x[None, :]).sum() / (2 * len(x) ** 2 * x.mean())
    assert summary.gini(x) == pytest.approx(by_definition, abs=1e-12)


def test_a_verified_draft_is_decode(tmp_path):
    """Positions 3 and 4 of the base log as one ubatch: a token and its draft."""
    log = [{**e, "batch_id": min(e["batch_id"], 1)} for e in logs.base_events()]
    log.sort(key=lambda e: (e["batch_id"], e["layer_id"], e["token_index"]))
    found = summary.summarize(traces.read_trace(logs.write(tmp_path, [*log, logs.end()])))
    assert (found.n_prefill_tokens, found.n_decode_tokens, found.n_batches) == (3, 2, 2)
