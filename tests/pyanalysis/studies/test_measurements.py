"""The studies of routing itself on traces whose answers are known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from ggml_moecache.errors import ConfigError
from pyanalysis.simulation import EventStream, simulate
from pyanalysis.studies import (
    contamination,
    frequency,
    permutation,
    regime,
    registry,
    reuse,
    semantics,
    token_signal,
    transitions,
)
from pyanalysis.studies.findings import Findings
from pyanalysis.studies.replays import decode_hits
from pyanalysis.studies.routing import Routing
from pyanalysis.studies.splits import all_splits, splits_of, workload_splits
from tests.pyanalysis.simulation.small import small_trace, traces
from tests.pyanalysis.studies.processes import layer_chain, routing_of


def random_ids(n_tokens, n_layers=2, n_experts=6, k=2, seed=0):
    generator = np.random.default_rng(seed)
    return np.array([[generator.permutation(n_experts)[:k] for _ in range(n_layers)] for _ in range(n_tokens)])


def request_of(trace, **fields) -> registry.Request:
    return registry.Request((("made", trace),), **fields)


def table(findings, name) -> list[dict]:
    """The rows of the table whose name begins so, by header."""
    found = next(b.table for b in findings.blocks if hasattr(b, "table") and b.table.name.startswith(name))
    return [dict(zip(found.header, row, strict=True)) for row in found.rows]


# --- routing and splits ---------------------------------------------------------------------------------------------


def test_requests_stand_together_and_prompts_are_left_out():
    ids = random_ids(6)
    trace = small_trace(ids, 6, request=[7, 7, 3, 7, 3, 3], phase=[0, 1, 0, 1, 1, 1], batch=[0, 1, 2, 3, 3, 4])
    routing = Routing.of(trace, "made")
    assert routing.request.tolist() == [0, 0, 1, 1]
    assert (routing.ids == ids[[1, 3, 4, 5]]).all()
    assert routing.begins.tolist() == [True, False, True, False]
    assert routing.place.tolist() == [0, 1, 0, 1]
    assert routing.n_prompt_tokens == 2
    assert (trace.ids[routing.row] == routing.ids).all()


def test_a_trace_without_decoded_tokens_is_refused():
    with pytest.raises(ConfigError, match="no token was decoded"):
        Routing.of(small_trace(random_ids(3), 6, phase=[0, 0, 0]), "made")


def test_lost_ranks_are_noticed():
    assert routing_of(np.sort(random_ids(30), axis=2), 6).rank_is_lost
    assert not routing_of(random_ids(30), 6).rank_is_lost
    assert not routing_of(random_ids(30, k=1), 6).rank_is_lost


def test_held_out_parts():
    routing = routing_of(random_ids(9), 6, request=[0, 0, 0, 0, 1, 1, 1, 2, 2])
    tokens, requests = splits_of(routing)
    assert tokens.fit.tolist() == [0, 1, 4, 7]
    assert tokens.test.tolist() == [2, 3, 5, 6, 8]
    assert requests.fit.tolist() == [0, 1, 2, 3]
    assert requests.test.tolist() == [4, 5, 6, 7, 8]


def test_a_workload_is_held_out_only_where_the_model_is_the_same():
    one, other = routing_of(random_ids(4), 6), routing_of(random_ids(5, seed=1), 6)
    third = routing_of(random_ids(4, n_layers=3), 6)
    assert [(s.fit_on is other, s.test_on is one) for s in workload_splits([one, other, third])] == [
        (True, True),
        (False, False),
    ]
    notes = all_splits([one, third])[1]
    assert sum("no held-out workload" in note for note in notes) == 2
    assert sum("no held-out requests" in note for note in notes) == 2
    with pytest.raises(ConfigError, match="nothing to hold out"):
        splits_of(routing_of(random_ids(1), 6))


# --- hits of a replay -----------------------------------------------------------------------------------------------


@given(traces())
@settings(max_examples=25, deadline=None)
def test_hits_by_token_add_up(trace):
    stream, routing = EventStream.of(trace), Routing.of(trace, "made")
    result = simulate(stream, "lru", "50%", per_layer=True, events=True)
    hits, asked = decode_hits(stream, trace, routing, result)
    assert hits.sum() == result.decode_hits
    assert (asked == (routing.ids >= 0).sum(axis=(1, 2))).all()


# --- frequency, reuse, transitions ----------------------------------------------------------------------------------


def test_concentration_of_a_skewed_layer():
    # of 8 tokens with one expert each: 4 of expert 0, 2 of 1, 1 of 2 and 3
    ids = np.array([0, 0, 0, 0, 1, 1, 2, 3])[:, None, None]
    findings = frequency.run(request_of(small_trace(ids, 4)))
    row = table(findings, "concentration")[0]
    assert row["entropy"] == pytest.approx(1.75)
    assert row["uniform"] == 2
    # counts 1, 1, 2, 4: (1 * -3 + 1 * -1 + 2 * 1 + 4 * 3) / (4 * 8)
    assert row["Gini"] == pytest.approx(10 / 32)
    assert [row[f"cover {p}%"] for p in (50, 80, 90, 95)] == [0.25, 0.75, 1, 1]


def test_drift_is_above_its_control_only_where_there_is_drift():
    generator = np.random.default_rng(0)
    request = np.repeat(np.arange(8), 60)
    same = generator.integers(0, 8, 480)[:, None, None]
    drifting = (generator.integers(0, 4, 480) + 4 * (request % 2))[:, None, None]
    rows = [
        table(frequency.run(request_of(small_trace(ids, 8, request=request))), "drift")[0] for ids in (same, drifting)
    ]
    assert rows[0]["between requests"] == pytest.approx(rows[0]["control"], abs=0.03)
    assert rows[1]["between requests"] > rows[1]["control"] + 0.2
    assert rows[1]["early against late"] == pytest.approx(rows[1]["control of it"], abs=0.05)


def test_convergence_by_hand():
    static = np.full(5, 0.5)
    # means to the end of the differences: below -0.01 up to block 1, then not
    assert frequency.converged_at(np.array([0.1, 0.3, 0.5, 0.5, 0.5]), static) == 2 * frequency.BLOCK
    assert frequency.converged_at(np.array([0.5, 0.5, 0.5, 0.5, 0.4]), static) is None
    assert frequency.converged_at(static, static) == 0


def test_reuse_distances_of_a_cycle():
    """Five experts in turn: each comes back when the four others were used."""
    ids = (np.arange(100) % 5)[:, None, None]
    findings = reuse.run(request_of(small_trace(ids, 5)))
    distance = findings.arrays["reuse_distance/made"]
    assert distance.tolist() == [0, 0, 0, 0, 95, 5]  # five first uses are beyond any
    assert table(findings, "runs")[0]["mean run"] == 1
    assert table(findings, "runs")[0]["gap 50 %"] == 5


def test_a_weight_that_announces_reuse():
    """Expert 0 is used in every token; its weight says whether it comes with expert 1 next time."""
    generator = np.random.default_rng(1)
    comes = generator.random(301) < 0.5
    ids = np.array([[[1 if now else 2, 0]] for now in comes[:-1]])
    weights = np.array([[0.9 if later else 0.1, 0.5] for later in comes[1:]], dtype=np.float32)
    # of the first place: experts 1 and 2; used again at once exactly if the next token has the same
    trace = replace(small_trace(ids, 3), weights=weights)
    row = table(reuse.run(request_of(trace)), "weights")[1]
    # within expert 1 a high weight means reuse, within expert 2 the opposite, within 0 the weight is constant
    assert row["correlation"] == "given use"
    assert row["n=1"] == pytest.approx(0, abs=1e-9)


def test_information_between_layers_of_a_known_process():
    # 8 experts, kept with 0.5 or uniform: the likeliest has 0.5 + 0.5 / 8, the others 0.5 / 8 each
    findings = transitions.run(request_of(small_trace(layer_chain(20_000, 2, 8, 0.5), 8)))
    p, q = 0.5 + 0.5 / 8, 0.5 / 8
    expected = 3 + p * np.log2(p) + 7 * q * np.log2(q)
    row = next(r for r in table(findings, "information") if r["context"] == "layer -1")
    assert row["Miller-Madow"] == pytest.approx(expected, abs=0.02)
    assert row["shuffled"] < 0.01
    held_out = table(findings, "log_loss")[0]
    # the first layer, which has nothing before it, halves the mean; tokens are independent
    assert held_out["layer -1"] == pytest.approx(expected / 2, abs=0.03)
    assert held_out["token -1"] == pytest.approx(0, abs=0.01)
    assert held_out["popularity (bits)"] == pytest.approx(3, abs=0.01)


# --- token signal ---------------------------------------------------------------------------------------------------


def test_what_the_token_adds():
    """The second layer's expert is the token's number modulo 4; the first layer's expert is a coin of its own."""
    generator = np.random.default_rng(2)
    n = 4000
    token = generator.integers(0, 32, n)
    ids = np.stack([generator.integers(0, 4, n), token % 4], axis=1)[..., None]
    trace = replace(small_trace(ids, 4), top1=np.stack([token, np.full(n, -1)], axis=1).ravel())
    findings = token_signal.run(request_of(trace))
    row = table(findings, "information")[0]
    assert row["I(token)"] == pytest.approx(2, abs=0.01)
    assert row["I(expert)"] < 0.01
    assert row["I(token | expert)"] == pytest.approx(2, abs=0.01)
    held_out = table(findings, "log_loss")[0]
    assert held_out["token adds"] == pytest.approx(2, abs=0.3)  # 32 tokens by 4 experts have to be learnt from 2,000


def token_trace(n_tokens):
    """Two layers; the token behind the first gives the second one's expert."""
    ids = np.random.default_rng(1).integers(0, 4, (n_tokens, 2, 1))
    trace = small_trace(ids, 4, request=np.arange(n_tokens) * 4 // n_tokens)
    layer = trace.layer
    top1 = np.where(layer == 0, np.repeat(ids[:, 1, 0], 2)[np.argsort(np.argsort(trace.token * 2 + layer))], -1)
    return replace(trace, top1=top1.astype(np.int32))


@pytest.mark.parametrize(("n_tokens", "marks"), [(400, ("small", "small")), (1200, ("", "small")), (2000, ("", ""))])
def test_small_samples_are_marked(n_tokens, marks):
    """Half of the tokens are fitted on, half are judged by: 200, 600 and 1,000 of a layer."""
    findings = token_signal.run(request_of(token_trace(n_tokens)))
    information, held_out = table(findings, "information")[0], table(findings, "log_loss")[0]
    assert (information["samples"], information["sample"]) == (n_tokens, marks[0])
    assert (held_out["fitted, a layer"], held_out["samples"]) == (n_tokens // 2, n_tokens // 2)
    assert held_out["sample"] == marks[1]
    text = findings.as_markdown()
    assert (f"1 of 1 layers have a small sample, the smallest {n_tokens:,} tokens." in text) == bool(marks[0])
    assert (f"has {n_tokens // 2:,} samples to fit on and {n_tokens // 2:,} to judge by." in text) == bool(marks[1])
    # 0.98 / sqrt(1000) = 0.0310
    assert ("a share of it is known to 3.1 points at best" in text) == ("small" in marks)


def test_a_trace_without_tokens_is_refused():
    with pytest.raises(ConfigError, match="--top1-every"):
        token_signal.run(request_of(small_trace(random_ids(4), 6)))


# --- method checks --------------------------------------------------------------------------------------------------


def test_requests_that_begin_alike_are_found():
    ids = random_ids(80, n_layers=3, seed=3)
    ids[40:52] = ids[0:12]  # request 2 begins with 12 tokens of request 0
    ids[60:63] = ids[20:23]  # request 3 with three of request 1: fewer than count
    ids[45, 0] = ids[45, 0][::-1]  # the order of the top-k does not matter
    trace = small_trace(ids, 6, request=np.arange(80) // 20)
    tokens, number = contamination.sequences(trace)
    assert [len(one) for one in tokens] == [20, 20, 20, 20]
    assert (np.bincount(number) == 60).all()
    longest, group = contamination.beginnings(tokens, 2)
    assert longest[:3].tolist() == [12, 3, 12]
    assert group.tolist() == [0, 1, 0, 3]
    row = table(contamination.run(request_of(trace)), "beginnings")[0]
    assert row["requests sharing"] == 2
    assert row["groups"] == 1
    assert row["share of tokens"] == pytest.approx(24 / 80)
    assert row["across halves"] == 1


def test_a_few_other_experts_do_not_hide_a_shared_beginning():
    ids = random_ids(40, n_layers=6, seed=4)
    ids[20:40] = ids[:20]
    ids[25, 0, 0] = next(e for e in range(6) if e not in ids[25, 0])  # 1 of 12 experts: 0.917 in common
    longest, _ = contamination.beginnings(
        contamination.sequences(small_trace(ids, 6, request=np.arange(40) // 20))[0], 2
    )
    assert longest.tolist() == [20, 20]
    ids[25, 1, 0] = next(e for e in range(6) if e not in ids[25, 1])  # 2 of 12
    longest, _ = contamination.beginnings(
        contamination.sequences(small_trace(ids, 6, request=np.arange(40) // 20))[0], 2
    )
    assert longest.tolist() == [5, 5]


def test_unions_of_a_step():
    # two requests decode together: ubatch 0 asks for {0, 1, 2} and {3, 4, 5, 0}, ubatch 1 for {0, 1} twice
    ids = np.array([[[0, 1], [3, 4]], [[1, 2], [5, 0]], [[0, 1], [0, 1]]])
    trace = small_trace(ids, 6, request=[0, 1, 0], batch=[0, 0, 1])
    row = table(regime.run(request_of(trace, percents=(50.0,))), "regime")[0]
    assert row["slots of all layers"] == 6
    assert row["union over slots, a layer"] == pytest.approx((3 + 4 + 2 + 2) / 4 / 3)
    assert row["steps above 1"] == 0.25
    assert row["above 1"] == 0.5
    # 7 / 6 and 4 / 6 of all slots; of a layer's 3: 1, 4/3, 2/3, 2/3
    findings = Findings("made")
    records = regime.add(findings, request_of(trace), (50.0,), per_layer=False)
    assert (
        findings.blocks[-1]
        .texts[0]
        .endswith("a ubatch uses over the slots of all layers, at 50 %: 0.92 (above 1 in 50.0%)")
    )
    assert records == [
        {
            "trace": "made",
            "step": "ubatch",
            "budget": "all layers",
            "capacity_percent": 50.0,
            "step_experts_over_slots": pytest.approx(11 / 12),
            "steps_above_slots": 0.5,
        }
    ]
    regime.add(findings, request_of(trace), (50.0, 100.0), per_layer=True)
    assert (
        findings.blocks[-1]
        .texts[0]
        .endswith("over the slots of a layer, at 50 %: 0.92 (above 1 in 25.0%), 100 %: 0.46")
    )


@pytest.mark.parametrize("order", ["within requests", "whole trace"])
def test_a_permutation_moves_whole_tokens(order):
    trace = small_trace(random_ids(60), 6, request=np.arange(60) // 20, phase=(np.arange(60) % 20 >= 5).astype(int))
    routing = Routing.of(trace, "made")
    moved = permutation.permuted(trace, routing, order, np.random.default_rng(0))
    other = Routing.of(moved, "made")
    assert not (other.ids == routing.ids).all()
    assert sorted(map(str, other.ids.tolist())) == sorted(map(str, routing.ids.tolist()))
    prompt = trace.phase == 0
    assert (moved.ids[prompt] == trace.ids[prompt]).all()
    if order == "within requests":
        for one in range(3):
            own = routing.request == one
            assert sorted(map(str, other.ids[own].tolist())) == sorted(map(str, routing.ids[own].tolist()))


def test_gaps_by_hand():
    assert permutation.gaps(0.5, 0.8) == (pytest.approx(0.6), pytest.approx(0.375))
    assert permutation.gaps(1.0, 1.0) == (None, 0)


def test_per_access_replay_inflates_what_repeats_within_an_event():
    """Four tokens of one expert as one batch: one event, one miss; per access one miss and three hits."""
    ids = np.repeat(np.arange(8) % 4, 4)[:, None, None]
    trace = small_trace(ids, 4)
    findings = semantics.run(request_of(trace, percents=(25.0,), per_layer=True))
    rows = [r for r in table(findings, "semantics") if r["policy"] == "lru"]
    decoding = next(r for r in rows if r["tokens"] == "decoding")
    assert decoding["event-atomic"] == decoding["per access"] == 0.75
    batches = next(r for r in rows if r["tokens"] == "batches of 8")
    assert batches["event-atomic"] == 0
    assert batches["per access"] == 0.75
    assert batches["change"] is None
