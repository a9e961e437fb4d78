"""simulate() and sweep(): capacities, prefill, times, the log, and what they refuse. Values are worked out by hand."""

from __future__ import annotations

import dataclasses
import json

import jsonschema
import numpy as np
import pyarrow as pa
import pytest

import pyanalysis
from ggml_moecache.errors import ConfigError, MoeCacheError
from pyanalysis import capacity_for, cost, simulate, sweep
from pyanalysis.simulation import EventStream, results_to_arrow
from pyanalysis.simulation.capacity import slots_of
from tests.pyanalysis.simulation.small import log_of, small_trace

# Two layers of 8 experts of 100 bytes.
TRACE = small_trace([[[0], [0]], [[1], [0]], [[0], [1]], [[2], [0]]], 8, expert_bytes=[100, 100])
COST = cost.CostModel(
    name="by hand",
    description="round numbers",
    sources=("none",),
    expert_bytes=None,
    cpu_miss_ns=20,
    cpu_event_ns=1,
    gpu_hit_ns=5,
    other_layer_ns=10,
    other_token_ns=3,
    copy_latency_ns=10,
    copy_bandwidth_bytes_per_s=1e10,  # 100 bytes in 10 ns
)


@pytest.mark.parametrize(
    ("capacity", "per_layer", "slots"),
    [
        (0, True, (0, 0)),
        (3, True, (3, 3)),
        ("3", True, (3, 3)),
        (3, False, (3,)),
        ("all", True, (8, 8)),
        ("all", False, (16,)),
        ("25%", True, (2, 2)),
        ("25%", False, (4,)),
        ("6.25%", True, (1, 1)),  # half an expert: 1 by rounding
        ("1%", True, (1, 1)),  # at least one
        ("31.25%", True, (3, 3)),  # 2.5 rounds up
        ("31%", True, (2, 2)),  # 2.48
        ("100%", False, (16,)),
        ("0%", True, (0, 0)),  # none, as 0 is
        ("0MiB", False, (0,)),
        ("1KiB", False, (10,)),  # 1,024 bytes
        ("1KiB", True, (5, 5)),  # 512 for each
        ("0.5KiB", False, (5,)),
        ("1GiB", True, (8, 8)),
        ([1, 5], True, (1, 5)),
    ],
)
def test_capacities(capacity, per_layer, slots):
    assert slots_of(EventStream.of(TRACE), capacity, per_layer=per_layer) == slots


def test_experts_of_two_sizes_share_a_global_budget_in_proportion():
    """Layers 0 and 2 have experts of 100 bytes, layer 1 of 300: two kinds of slots, 8 and 4 experts."""
    stream = EventStream.of(small_trace([[[0], [0], [3]]], 4, expert_bytes=[100, 300, 100]))
    assert slots_of(stream, 6, per_layer=False) == (4, 2)
    assert slots_of(stream, 7, per_layer=False) == (5, 2)  # 4.67 and 2.33
    assert slots_of(stream, "all", per_layer=False) == (8, 4)
    assert slots_of(stream, "50%", per_layer=False) == (4, 2)
    # 1,024 of 2,000 bytes: 4 and 2 experts are 1,000 bytes, nothing more fits
    assert slots_of(stream, "1KiB", per_layer=False) == (4, 2)
    assert slots_of(stream, "1KiB", per_layer=True) == (3, 1, 3)  # 341 bytes for each layer
    result = simulate(stream, "lru", 12)
    assert (result.copies, result.copy_bytes) == (3, 500)


@pytest.mark.parametrize(
    ("capacity", "per_layer", "reason"),
    [
        (9, True, "at most the 8 experts of a layer. Got 9"),
        (17, False, "at most the 16 experts of all layers. Got 17"),
        (-1, True, "must be a number of experts.*Got -1"),
        (True, True, "must be a number of experts.*Got True"),
        ("101%", True, r"share of at most 100%. Got '101%'"),
        ("5 %", True, "Got '5 %' instead"),
        ("2GB", True, "Got '2GB' instead"),
        ("", True, "Got '' instead"),
        ([1], True, "must list 2 numbers, one per budget. Got 1"),
        ([1, 9], True, "capacity 1 must be a number of experts from 0 to 8. Got 9"),
    ],
)
def test_bad_capacities_name_rule_and_value(capacity, per_layer, reason):
    with pytest.raises(ConfigError, match=reason):
        simulate(TRACE, "lru", capacity, per_layer=per_layer)


def test_what_the_trace_does_not_know_is_not_guessed():
    unknown = small_trace([[[0]], [[1]]], None)
    assert simulate(unknown, "lru", "all").capacity_experts == 2
    with pytest.raises(ConfigError, match="capacity in percent needs the number of experts"):
        simulate(unknown, "lru", "50%")
    with pytest.raises(ConfigError, match="capacity 1MiB needs the bytes of an expert"):
        simulate(unknown, "lru", "1MiB")
    with pytest.raises(ConfigError, match="clocked timing needs the bytes of an expert"):
        simulate(unknown, "lru", 1, COST, timing="clocked")
    assert simulate(unknown, "lru", 1).copy_bytes is None
    with pytest.raises(ConfigError, match=r"layer 0 names expert 5, the trace says 4 experts"):
        EventStream.of(small_trace([[[5]]], 4))


def test_counts_of_a_cache_per_layer():
    """One slot per layer. Layer 0: 0 1 0 2 never hits; layer 1: 0 0 1 0 hits once."""
    result = simulate(TRACE, "lru", 1, per_layer=True)
    assert [(one.layer, one.accesses, one.hits) for one in result.layers] == [(0, 4, 0), (1, 4, 1)]
    assert (result.accesses, result.hits, result.cpu_fallbacks) == (8, 1, 7)
    assert (result.admissions, result.evictions, result.copies, result.copy_bytes) == (7, 5, 7, 700)
    assert (result.n_tokens, result.n_decode_tokens, result.n_events) == (4, 4, 8)
    assert result.hit_rate == result.decode_hit_rate == 1 / 8
    assert (result.capacity_experts, result.slots, result.copies_late) == (1, (1, 1), 0)
    assert result.time_per_token_ns is None


def test_time_per_token():
    """7 events take 10 + 1 + 20 ns, one 10 + 5; 4 tokens take 3 ns more each. Without misses all took 15."""
    result = simulate(TRACE, "lru", 1, COST, per_layer=True)
    assert result.time_per_token_ns == pytest.approx((7 * 31 + 15) / 4 + 3)
    assert result.miss_time_per_token_ns == pytest.approx(7 * 16 / 4)
    assert result.tokens_per_s == pytest.approx(1e9 / 61)


def test_clocked_copies_may_be_late():
    """A token takes at least 3 + 2 * 15 ns and a copy 20 ns, so that no copy is late; at a tenth of the bandwidth each
    takes 110 ns, a token at most 3 + 2 * 31."""
    assert simulate(TRACE, "lru", 1, COST, per_layer=True, timing="clocked").copies_late == 0
    slow = simulate(TRACE, "lru", 1, COST.scaled("copy_bandwidth_bytes_per_s", 0.1), per_layer=True, timing="clocked")
    assert slow.hits == 0
    assert slow.copies_late > 0
    assert slow.admissions == 7  # the decisions are the same
    assert slow.cost == "by hand, copy_bandwidth_bytes_per_s x 0.1"


def test_a_copy_costs_its_event():
    """Three misses, each a copy: 3 + 10 + 1 + 20 ns and 4 ns for the copy, which ideal timing has for nothing."""
    trace = small_trace([[[0]], [[1]], [[0]]], 2, expert_bytes=[100])
    model = dataclasses.replace(COST, copy_event_ns=4)
    assert simulate(trace, "lru", 1, model).time_per_token_ns == pytest.approx(38)
    assert simulate(trace, "lru", 1, model, timing="ideal").time_per_token_ns == pytest.approx(34)


def test_ubatches_as_the_runtime_takes_them():
    """Two tokens decoded together are one event, an expert of both counts once; a ubatch of 33 is no event at all."""
    ids = [[[0]], [[1]], [[1]], [[1]], *([[[3]]] * 33), [[0]], [[2]]]
    batch = [0, 0, 1, 1, *([2] * 33), 3, 3]
    phase = [*([1] * 4), *([0] * 33), 1, 1]
    trace = small_trace(ids, 4, batch=batch, phase=phase, request=[*[0, 1] * 2, *([0] * 33), 0, 1])
    result = simulate(trace, "lru", 2, mode="as-run", events=True)
    assert (result.n_events, result.n_tokens, result.n_decode_tokens, result.n_tokens_passed_by) == (3, 6, 6, 33)
    assert (result.accesses, result.hits) == (5, 2)  # {0, 1}, {1}, {0, 2}: 1 and 0 are there, 2 is not
    assert log_of(result)[1:] == [(0, 0, 2), (0, 0, 0), (1, 0, 2), (-1, -1, 0), (-1, -1, 1)]
    timed = simulate(trace, "lru", 2, COST, mode="as-run", timing="ideal")
    # The event of two misses, of one hit, of one hit beside a miss; one token's other work for each ubatch.
    assert timed.time_per_token_ns == pytest.approx(((10 + 41) + (10 + 5) + (10 + 21) + 3 * 3) / 6)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [(None, "mode as-run needs the ubatch"), ([0] * 33, "every ubatch has more than 32 tokens")],
)
def test_ubatches_that_cannot_be_taken_are_named(batch, reason):
    with pytest.raises(ConfigError, match=reason):
        simulate(small_trace([[[0]]] * 33, 2, batch=batch), "lru", 1, mode="as-run")


def test_prefill_tokens_of_a_batch_are_one_event():
    """Two ubatches: tokens 0-2 prefill, 3 decode. Layer 0 sees {0, 1} (1 last), then 1."""
    trace = small_trace([[[0, 1]], [[1, 0]], [[0, 1]], [[1, 2]]], 4, phase=[0, 0, 0, 1], batch=[0, 0, 0, 1])
    result = simulate(trace, "lru", 1, events=True)
    assert (result.n_events, result.accesses, result.hits) == (2, 4, 1)
    assert (result.decode_accesses, result.decode_hits) == (2, 1)
    assert result.events.ids.tolist() == [0, 1, 1, 2]
    assert result.events.row.tolist() == [2, 3]


def test_traces_without_batches_are_cut():
    """Five prefill tokens of request 0, one of request 1, two decode tokens; batches of two: 2 + 2 + 1 + 1 events."""
    ids = [[[token % 4]] for token in range(8)]
    phase, request = [0, 0, 0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0, 1, 1]
    log = simulate(small_trace(ids, 4, phase=phase, request=request), "lru", 4, batch_size=2, events=True).events
    assert log.offsets.tolist() == [0, 2, 4, 5, 6, 7, 8]
    assert log.phase.tolist() == [0, 0, 0, 1, 0, 1]
    assert log.request.tolist() == [0, 0, 0, 0, 1, 1]
    with pytest.raises(ConfigError, match=r"batch_size must be a whole number from 1 to 2\^63 - 1\. Got 0"):
        simulate(TRACE, "lru", 1, batch_size=0)


def test_a_union_is_one_event_per_layer_even_if_rows_come_token_by_token():
    ids = [[[0], [4]], [[1], [5]], [[2], [6]]]
    log = simulate(small_trace(ids, 8, phase=[0, 0, 1]), "lru", 8, events=True).events
    assert log.layer.tolist() == [0, 1, 0, 1]
    assert log.ids.tolist() == [0, 1, 4, 5, 2, 6]


def test_the_log_names_layers_and_experts():
    log = simulate(TRACE, "lru", 1, per_layer=True, events=True).events
    assert log.admitted_event.tolist() == [0, 1, 2, 4, 5, 6, 7]
    assert list(zip(log.admitted_layer.tolist(), log.admitted_expert.tolist(), strict=True)) == [
        *((0, 0), (1, 0), (0, 1), (0, 0), (1, 1), (0, 2), (1, 0)),
    ]
    assert log.evicted_expert.tolist() == [-1, -1, 0, 1, 0, 0, 1]
    assert log.evicted_layer.tolist() == [-1, -1, 0, 0, 1, 0, 1]
    assert log.hit.tolist() == [False, False, False, True, False, False, False, False]
    assert log.copy_ready.tolist() == [1, 1, 1, 1, 1, -1, -1]
    placed = simulate(TRACE, "cold-static:order=id", 1, per_layer=True, events=True)
    assert placed.events.admitted_event.tolist() == [-1, -1]
    assert (placed.admissions, placed.copies, placed.hits) == (2, 2, 5)


def test_victim_agreement():
    """One slot in layer 0: each victim is the only one. With bypass nothing would be evicted for layer 1's expert 1."""
    assert simulate(TRACE, "lru", 1, per_layer=True).victim_agreement == 1
    assert simulate(TRACE, "lru", 1, per_layer=True, victim_agreement=False).victim_agreement is None
    assert simulate(TRACE, "lru", "all", victim_agreement=False).victim_agreement is None


def test_per_access_is_labelled_and_has_no_time():
    trace = small_trace([[[0, 1]], [[1, 0]]], 2)
    atomic, single = (
        simulate(trace, "lru", 1, COST, timing="ideal", mode=mode) for mode in ("event-atomic", "per-access")
    )
    assert (atomic.hits, single.hits) == (1, 1)
    assert (atomic.n_events, single.n_events) == (2, 4)
    assert single.mode == "per-access"
    assert single.time_per_token_ns is None
    with pytest.raises(ConfigError, match="policy lfu exists for mode per-access only"):
        simulate(trace, "lfu", 1)
    with pytest.raises(ConfigError, match="ideal timing only"):
        simulate(EventStream.of(trace, mode="per-access", expert_bytes=1), "lru", 1, COST, timing="clocked")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"policy": "mru"}, "there is no policy 'mru'"),
        ({"policy": "static:file=/no/such/file"}, "/no/such/file: cannot be read"),
        ({"timing": "late"}, "timing must be ideal or clocked. Got 'late'"),
        ({"timing": "clocked"}, "clocked timing needs a cost model"),
        ({"mode": "atomic"}, "mode must be event-atomic, as-run or per-access. Got 'atomic'"),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments, reason):
    with pytest.raises(ConfigError, match=reason):
        simulate(TRACE, arguments.pop("policy", "lru"), 1, **arguments)


def test_an_empty_trace_is_refused():
    with pytest.raises(ConfigError, match="small: there is no event to simulate"):
        simulate(small_trace(np.empty((0, 1, 1)), 4), "lru", 1)


def test_a_sweep_keeps_its_order_and_does_not_depend_on_workers():
    other = small_trace([[[token * token % 8], [token % 8]] for token in range(50)], 8)
    policies, capacities = ["random:seed=3", "lru", "belady", "interval-refresh:every=4"], [0, 2, "all", "50%"]
    calls = []
    one = sweep([TRACE, other], policies, capacities, per_layer=True, workers=1, progress=lambda *c: calls.append(c))
    two = sweep([TRACE, other], policies, capacities, per_layer=True, workers=2)
    assert [r.row() for r in one] == [r.row() for r in two]
    assert [(r.policy, r.capacity) for r in one] == [
        (p, str(c)) for _ in range(2) for p in policies for c in capacities
    ]
    assert [r.row() for r in one[16:20]] == [simulate(other, policies[0], c, per_layer=True).row() for c in capacities]
    assert calls[-1] == (32, 32)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_a_sweep_checks_everything_before_it_runs():
    calls = []
    for policies, capacities in ((["lru", "mru"], [1]), (["lru"], [1, 99])):
        with pytest.raises(ConfigError):
            sweep([TRACE], policies, capacities, progress=lambda *c: calls.append(c))
    assert calls == []


def test_the_seed_is_a_default():
    trace = small_trace([[[token * 7 % 5], [token * 3 % 8]] for token in range(60)], 8)
    assert simulate(trace, "random", 2, seed=9).row() == simulate(trace, "random:seed=9", 2).row()
    assert simulate(trace, "random:seed=1", 2, seed=9).policy == "random:seed=1"
    assert simulate(trace, "lru", 2, seed=9).policy == "lru"


def test_results_become_arrow_tables():
    results = sweep([TRACE], ["lru", "belady"], [1, "all"], COST, per_layer=True)
    table = results_to_arrow(results)
    assert table.num_rows == 4
    assert table.equals(pa.concat_tables([result.to_arrow() for result in results]))
    row = table.to_pylist()[0]
    assert row["hit_rate"] == 1 / 8
    assert row["slots"] == [1, 1]
    assert row["layers"][1] == {"layer": 1, "family": "exps", "accesses": 4, "hits": 1, "hit_rate": 0.25}
    assert json.loads(json.dumps(results[0].row()))["time_per_token_ns"] == row["time_per_token_ns"]


def test_paths_and_names_are_taken(tmp_path):
    np.savez(tmp_path / "t.npz", ids=[[[0, 1]], [[1, 2]]], n_experts=4)
    for path in (tmp_path / "t.npz", str(tmp_path / "t.npz")):
        result = simulate(path, "lru", np.int64(2), "h200")
        assert (result.hits, result.cost, result.timing, result.capacity) == (1, "h200", "clocked", "2")
    assert simulate(tmp_path / "t.npz", "lru", 2).timing == "ideal"
    assert simulate(tmp_path / "t.npz", "lru", np.array([2]), per_layer=True).slots == (2,)
    swept = sweep(tmp_path / "t.npz", "lru, belady", "0:3")
    assert [(r.policy, r.capacity) for r in swept] == [(p, c) for p in ("lru", "belady") for c in ("0", "1", "2")]
    assert sweep([TRACE], ["lru"], 1)[0].capacity == "1"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: simulate(5, "lru", 1), "a trace must be a Trace, an EventStream or the path of a trace. Got int"),
        (lambda: simulate("no.npz", "lru", 1), "no.npz: does not exist"),
        (lambda: simulate(TRACE, 5, 1), "policy must be the name of a policy. Got 5"),
        (lambda: simulate(TRACE, "lru", 1.5), "must be a number of experts.*Got 1.5"),
        (lambda: simulate(TRACE, "lru", None), "must be a number of experts.*Got None"),
        (
            lambda: simulate(TRACE, "lru", 1, 5),
            "cost must be a CostModel, a file or one of h200, h200-calibrated, rtx-4060-ti. Got int",
        ),
        (lambda: simulate(TRACE, "lru", 1, "h100"), "'h100' is no cost model"),
        (lambda: simulate(TRACE, "lru", 1, seed=2**63), r"seed must be a whole number from 0 to 2\^63 - 1"),
        (lambda: simulate(TRACE, "lru", 1, seed=-1), r"seed must be a whole number from 0 to 2\^63 - 1. Got -1"),
        (lambda: sweep(TRACE, "lru,", 1), "policies has an empty item"),
        (lambda: sweep(TRACE, ["random", "random:seed=0"], 1), "which are the same policy"),
        (lambda: sweep(TRACE, "lru", 1, workers=0), "workers must be a whole number from 1"),
        (lambda: sweep(5, "lru", 1), "traces must be a list of traces or paths of traces. Got int"),
        (lambda: sweep(TRACE, "lru", 1.5), "capacities must be a list, or one"),
        (lambda: capacity_for(TRACE, "lru", 1.5), r"a target must be a hit rate in \(0, 1\]. Got 1.5"),
    ],
)
def test_wrong_arguments_are_named(call, reason):
    with pytest.raises(MoeCacheError, match=reason):
        call()


def test_ids_beyond_any_model_are_refused():
    with pytest.raises(ConfigError, match="layer 0 would have 65,537 experts, the simulator takes at most 65,536"):
        simulate(small_trace([[[65536]]], None), "lru", 1)


def test_the_smallest_capacity_for_a_hit_rate():
    """Layer 0: 0 1 0 2, layer 1: 0 0 1 0. LRU per layer hits 0 + 1 with one slot, 1 + 2 with two, and so with more."""
    one, two, never = capacity_for(TRACE, "lru", [1 / 8, 3 / 8, 0.9], per_layer=True)
    assert (one.capacity_experts, two.capacity_experts, never.capacity_experts) == (1, 2, None)
    assert (two.hit_rate, two.exact, never.exact) == (3 / 8, True, True)
    [some] = capacity_for(TRACE, "random", 1 / 8, [0, 8], per_layer=True)
    assert (some.capacity_experts, some.hit_rate, some.exact) == (8, 3 / 8, False)
    [every] = capacity_for(TRACE, "random", 1 / 8, per_layer=True)
    assert (every.capacity_experts, every.exact) == (1, True)  # layer 1 hits its expert 0 at its second event


def test_the_package_offers_both_by_name():
    assert pyanalysis.simulate is simulate
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        _ = pyanalysis.simulat


# --- cost models -----------------------------------------------------------------------------------------------------


def test_a_cost_model_goes_through_its_file(tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(COST.to_json()))
    assert cost.load(path) == COST
    jsonschema.validate(COST.to_json(), json.loads(cost.SCHEMA_PATH.read_text()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cpu_miss_ns": -1}, "cpu_miss_ns: -1 is less than the minimum of 0"),
        ({"cpu_miss_ns": "20"}, "cpu_miss_ns: '20' is not of type 'number'"),
        ({"copy_bandwidth_bytes_per_s": 0}, "copy_bandwidth_bytes_per_s: 0 is less than the minimum of 1"),
        ({"cpu_miss_ns": float("nan")}, "cpu_miss_ns: NaN is not a finite number"),
        ({"gpu_hit_ns": float("inf")}, "gpu_hit_ns: Infinity is not a finite number"),
        ({"copy_latency_ns": float("-inf")}, "copy_latency_ns: -Infinity is not a finite number"),
        ({"calibration": {"spread": [1.0, float("nan")]}}, r"calibration\.spread\.1: NaN is not a finite number"),
        ({"other_layer_ns": 1e13}, r"other_layer_ns: 10000000000000\.0 is greater than the maximum"),
        ({"cpu_event_ns": 10**400}, "cpu_event_ns: 10+ is greater than the maximum of 1000000000000.0"),
        ({"copy_bandwidth_bytes_per_s": 1e16}, "copy_bandwidth_bytes_per_s: 1e.16 is greater than the maximum"),
        ({"expert_bytes": 2**40}, "expert_bytes: 1099511627776 is greater than the maximum of 1099511627775"),
        ({"expert_bytes": 1.5}, "expert_bytes: 1.5 is not of type 'integer', 'null'"),
        ({"sources": []}, r"sources: \[\]"),
        ({"gpu_hit": 1}, "'gpu_hit' was unexpected"),
        ({"format": {"name": "ggml_moecache cost model", "version": 2}}, "format.version: 1 was expected"),
    ],
)
def test_a_bad_cost_model_names_file_and_field(tmp_path, change, reason):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps({**COST.to_json(), **change}))
    with pytest.raises(ConfigError, match=f"cost.json: .*{reason}"):
        cost.load(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"cost.json:1: not JSON"):
        cost.load(path)
    with pytest.raises(ConfigError, match=r"nowhere\.json: cannot be read"):
        cost.load(tmp_path / "nowhere.json")
    lacking = COST.to_json()
    del lacking["gpu_hit_ns"]
    path.write_text(json.dumps(lacking))
    with pytest.raises(ConfigError, match="'gpu_hit_ns' is a required property"):
        cost.load(path)


def test_a_cost_model_made_in_python_has_the_same_limits():
    values = {name: getattr(COST, name) for name in COST.__dataclass_fields__}
    for field, value in (("cpu_miss_ns", float("nan")), ("gpu_hit_ns", float("inf")), ("other_token_ns", 2e12)):
        with pytest.raises(ConfigError, match=f"CostModel: {field}: "):
            cost.CostModel(**{**values, field: value})
    whole = cost.CostModel(**{**values, "expert_bytes": 2e6})
    assert (whole.expert_bytes, type(whole.expert_bytes)) == (2_000_000, int)


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 100_000])
def test_json_that_python_cannot_read_is_refused(tmp_path, text):
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"cost.json: not a cost model: "):
        cost.load(path)


def test_costs_are_scaled_one_at_a_time():
    assert COST.scaled("cpu_miss_ns", 2).cpu_miss_ns == 40
    assert COST.scaled("cpu_miss_ns", 2).gpu_hit_ns == COST.gpu_hit_ns
    with pytest.raises(ConfigError, match="a cost that can be scaled is one of"):
        COST.scaled("name", 2)
