"""The decision on constructed traces: static wins, adaptive wins, neither, and caching that does not pay."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ggml_moecache.errors import ConfigError
from pyanalysis.decide.cells import choose_adaptive, mean_losses
from pyanalysis.decide.evidence import BOUND, COLD, OPTIMUM, STATIC, Options, canonical, gather
from pyanalysis.decide.replays import Replayer
from pyanalysis.simulation import EventStream
from tests.pyanalysis.decide.constructed import adaptive_wins, all_equal, cost, decided, static_wins
from tests.pyanalysis.simulation.small import small_trace
from tests.reference.events import events_of
from tests.reference.replay import replay

PER_TOKEN = {"a": (100.0, 0.5), "b": (110.0, 0.01)}  # ns and copies per token


def cell_of(decision, percent, split="requests"):
    (found,) = [c for c in decision.groups[0].cells if c.percent == percent and c.split == split]
    return found


def test_static_wins():
    """One slot: adaptive never hits, 200 ns; static hits half, 150.5 ns. Two slots: both hit everything, 101 ns."""
    decision = decided({"s": static_wins()}, cost())
    one, two = cell_of(decision, 25), cell_of(decision, 50)
    assert one.saved["adaptive"].value == 0
    assert one.saved["static"].value == pytest.approx(150.5 / 200 - 1)
    assert one.against["static"].value == pytest.approx(200 / 150.5 - 1)
    assert one.bound_hits.value == -0.5
    assert two.saved["adaptive"].value == pytest.approx(101 / 200 - 1)
    verdict = decision.groups[0].verdict
    assert (verdict.outcome, decision.recommended) == ("static", "static")
    assert verdict.n_cells == 4  # two splits, two capacities
    assert verdict.losses["adaptive"] == pytest.approx(200 / 150.5 - 1)


def test_adaptive_wins():
    """One slot: a miss and 49 hits a request, 102.98 ns a token; any static set has a quarter, 175.25 ns."""
    decision = decided({"a": adaptive_wins()}, cost(), adaptive=("lru",))
    one, two = cell_of(decision, 25), cell_of(decision, 50)
    assert one.against["static"].value == pytest.approx(102.98 / 175.25 - 1)
    assert one.bound_time.value == pytest.approx(102.98 / 175.25 - 1)
    assert two.against["static"].value == pytest.approx(102.98 / 150.5 - 1)
    # The second halves of the requests: no miss is left.
    assert cell_of(decision, 25, "tokens").against["static"].value == pytest.approx(101 / 175.25 - 1)
    assert decision.groups[0].verdict.outcome == "equivalent"  # and more than that: faster than any static set
    assert decision.recommended == "lru"


def test_equivalent():
    decision = decided({"e": all_equal()}, cost())
    verdict = decision.groups[0].verdict
    assert (verdict.outcome, decision.recommended) == ("equivalent", "request-lfu")
    assert verdict.losses == {"adaptive": 0, "static": 0, "cold-static": 0}


def test_neither():
    """What wins depends on the trace. Static loses 175.25 / 101 - 1 on one, adaptive 200 / 150.5 - 1 on the other."""
    decision = decided({"s": static_wins(), "a": adaptive_wins()}, cost())
    group = decision.groups[0]
    assert group.verdict_of(workload="s").outcome == "static"
    assert group.verdict_of(workload="a").outcome == "equivalent"
    assert group.verdict.outcome == "neither"
    assert group.verdict.losses["static"] == pytest.approx(175.25 / 101 - 1)
    assert group.verdict.losses["adaptive"] == pytest.approx(200 / 150.5 - 1)
    assert decision.recommended == "request-lfu"


def test_caching_does_not_pay():
    """A hit on this GPU takes ten times as long as a miss: 1,100 ns against 200."""
    decision = decided({"s": static_wins(), "a": adaptive_wins()}, cost(gpu_hit_ns=1000))
    verdict = decision.groups[0].verdict
    assert (verdict.outcome, verdict.n_paying, verdict.n_cells) == ("nothing", 0, 8)
    assert decision.recommended == "no cache"


def test_copies_that_never_arrive():
    """Then only what was placed beforehand hits, and adaptive loses on the trace on which it won."""
    decision = decided({"a": adaptive_wins()}, cost(copy_bandwidth_bytes_per_s=8.0), adaptive=("lru",))
    assert cell_of(decision, 25).saved["adaptive"].value == 0
    assert cell_of(decision, 25).saved["static"].value == pytest.approx(175.25 / 200 - 1)
    assert (decision.groups[0].verdict.outcome, decision.recommended) == ("static", "static")
    late = [p for p in decision.groups[0].points if p.policy == "lru" and p.percent == 25 and p.split == "requests"]
    assert late[0].late > 0


def test_sensitivity():
    """Hits at half or twice 1 ns change nothing; misses at half of 100 ns still leave static ahead, at 150 to 125.5."""
    decision = decided({"s": static_wins()}, cost(), percents=(0, 5, 20, 40, 60))
    varied = {(one.field, one.factor): one.verdict for one in decision.groups[0].sensitivity}
    assert len(varied) == 8  # four costs above 0 (latency, event and token are 0): twice each
    assert all(verdict.outcome == "static" for verdict in varied.values())
    assert varied["cpu_miss_ns", 0.5].losses["adaptive"] == pytest.approx(150 / 125.5 - 1)
    assert varied["cpu_miss_ns", 2.0].losses["adaptive"] == pytest.approx(300 / 200.5 - 1)


def test_sensitivity_replays_what_waits_for_copies():
    """From one lookup to the next 200 ns: a miss, the other work. A copy takes 150 ns, at half the bandwidth 300."""
    costs = cost(copy_bandwidth_bytes_per_s=1000 / 150e-9)
    request = np.repeat(np.arange(40), 2)
    trace = small_trace((request % 4)[:, None, None], 4, request=request)
    decision = decided({"t": trace}, costs, adaptive=("lru",), percents=(0, 20))
    losses = {(v.field, v.factor): v.verdict.losses["adaptive"] for v in decision.groups[0].sensitivity}
    # In time: the second token of each request hits. Late: none does, and static has a quarter.
    assert losses["copy_bandwidth_bytes_per_s", 2.0] == losses["gpu_hit_ns", 0.5] == 0
    assert losses["copy_bandwidth_bytes_per_s", 0.5] == pytest.approx(200 / 175.25 - 1)


def test_the_adaptive_policy_is_chosen_on_the_selection_parts_only():
    """The first 40 requests are static_wins', on which lru hits every second token; then lru hits nothing.

    Losses on the selection part decide, so lru is chosen though it is the worst of both where it is judged.
    """
    held_out = np.tile([1, 2, 3, 0, 1, 2, 3, 0], 40)
    ids = np.concatenate([np.tile([0, 1, 1, 0, 0, 1, 1, 0], 40), held_out])
    trace = small_trace(ids[:, None, None], 4, request=np.repeat(np.arange(80), 8))
    options = Options((cost(),), ("cumulative-lfu", "lru"), (0, 25), workers=1)
    evidence = gather(trace, options, lambda *_: None)
    selected = {policy: evidence.selection["made", "requests", policy, 25] for policy in options.adaptive}
    # Both copy at every second token; lru hits at every other one (the first token of all is a miss).
    assert selected["lru"] == pytest.approx(((159 * 101 + 161 * 200) / 320, 161 / 320))
    assert selected["cumulative-lfu"] == (200, 160 / 320)
    assert choose_adaptive([evidence], options.adaptive)[0] == "lru"
    held_out = {policy: evidence.sums["made", "requests", policy, 25].hits.sum() for policy in options.adaptive}
    assert held_out == {"lru": 0, "cumulative-lfu": 80}  # 0 or 1 stays: each is a quarter of the 320


def test_losses_with_copies():
    """At 20 %: 100 and 110 ns, or with a miss of 100 ns for each copy 100 + 50 and 110 + 1. 2 % does not count."""
    found = {("c", "tokens", policy, at): value for at in (2, 20) for policy, value in PER_TOKEN.items()}
    long = SimpleNamespace(held_out=SimpleNamespace(has_intervals=True))
    selection = found | {("c", "tokens", "b", 2): (9e9, 0)}
    evidence = SimpleNamespace(selection=selection, costs={"c": cost()}, splits=[long])
    assert mean_losses([evidence], ["a", "b"]) == pytest.approx({"a": 0, "b": 0.1})
    assert mean_losses([evidence], ["a", "b"], misses_per_copy=1) == pytest.approx({"a": 150 / 111 - 1, "b": 0})


def test_a_trace_that_does_not_vote_does_not_choose():
    """A long trace on which a is 1 % faster, a short one on which b is twice as fast; alone the short one chooses."""

    def evidence(has_intervals, a, b):
        split = SimpleNamespace(held_out=SimpleNamespace(has_intervals=has_intervals))
        selection = {("c", "tokens", "a", 20): (a, 0.0), ("c", "tokens", "b", 20): (b, 0.0)}
        return SimpleNamespace(selection=selection, costs={"c": cost()}, splits=[split])

    long, short = evidence(True, 100.0, 101.0), evidence(False, 200.0, 100.0)
    assert choose_adaptive([long, short], ["a", "b"]) == ("a", pytest.approx({"a": 0, "b": 0.01}))
    assert choose_adaptive([short], ["a", "b"])[0] == "b"


def test_a_copy_that_has_a_cost_is_made_to_cost_a_miss_in_all():
    """A miss is 100 ns. Copies that cost 60 ns each are charged 40 ns more: a takes 100 + 0.5 * 40."""
    split = SimpleNamespace(held_out=SimpleNamespace(has_intervals=True))
    selection = {("c", "tokens", policy, 20): value for policy, value in PER_TOKEN.items()}
    evidence = SimpleNamespace(selection=selection, costs={"c": cost(copy_event_ns=60)}, splits=[split])
    losses = mean_losses([evidence], ["a", "b"], misses_per_copy=1)
    assert losses == pytest.approx({"a": 120 / 110.4 - 1, "b": 0})


def test_parallel_sequences_are_a_group_of_their_own():
    one = static_wins()
    n = one.n_events // 2
    batch = np.concatenate([np.repeat(np.arange(n // 2), 2), n + np.arange(one.n_events - n)])
    request = np.concatenate([np.tile([0, 1], n // 2), one.request[n:]])
    parallel = replace(one, batch=batch, request=request)
    decision = decided({"one": one, "two": parallel}, cost())
    assert [group.name for group in decision.groups] == ["batch 1", "2 sequences in parallel"]
    assert {cell.workload for cell in decision.groups[0].cells} == {"one"}


def test_sums_are_those_of_the_reference():
    """Hits of a part, replayed in plain Python, for every kind of policy; the static sets counted by hand below."""
    generator = np.random.default_rng(5)
    ids = np.argsort(generator.random((120, 2, 6)) * [1, 1, 2, 2, 4, 4], axis=2)[:, :, :2]
    trace = small_trace(ids, 6, request=np.repeat(np.arange(6), 20))
    options = Options((cost(),), canonical(["lru", "request-lfu", "lfru:weight=16"]), (0, 25, 50), workers=2)
    evidence = gather(trace, options, lambda *_: None)
    events = events_of(trace)
    for policy in (*options.adaptive, COLD, OPTIMUM):
        decisions, _ = replay(policy, events, [3], {0: 6, 1: 6})
        for split in evidence.splits:
            sums = evidence.sums["made", split.name, policy, 25]
            own = [decisions[event].hits for event in split.held_out.events]
            assert sums.hits.sum() == sum(map(sum, own))
            assert sums.accesses.sum() == sum(map(len, own))
            times = [200.0 - 100 + 100 * (2 - sum(h)) if sum(h) < 2 else 102.0 for h in own]
            assert sums.time_ns(cost()).sum() == pytest.approx(sum(times))
    for split in evidence.splits:
        for name, part in ((STATIC, split.selection), (BOUND, split.held_out)):
            uses = {}
            for event in part.events:
                for key in events[event].keys:
                    uses[key] = uses.get(key, 0) + 1
            best = sorted(uses, key=lambda key: (-uses[key], key))[:3]
            hits = sum(key in best for event in split.held_out.events for key in events[event].keys)
            assert evidence.sums["made", split.name, name, 25].hits.sum() == hits


def test_ranking_file(tmp_path):
    trace = small_trace([[[1], [0]], [[1], [2]], [[0], [2]]], 3)
    replayer = Replayer(EventStream.of(trace), per_layer=False)
    replayer.write_ranking(tmp_path / "r.csv", np.array([1, 2, 0, 1, 0, 2]))
    rows = (tmp_path / "r.csv").read_text().split()
    assert rows == ["layer,family,expert", "0,exps,1", "1,exps,2", "0,exps,0", "1,exps,0", "0,exps,2", "1,exps,1"]


@pytest.mark.parametrize("policy", ["belady", "hindsight-static", "cold-static", "static:file=f", "lfu", "nonsense"])
def test_adaptive_policies_only(policy):
    with pytest.raises(ConfigError, match=policy.split(":")[0]):
        canonical([policy])
