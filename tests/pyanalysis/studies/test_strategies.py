"""What strategies hand to the replay, the rules of the verdict, and that nothing of it knows the future."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError
from pyanalysis import costs, threads
from pyanalysis.simulation import simulate
from pyanalysis.studies import registry, strategies
from pyanalysis.studies.splits import splits_of
from pyanalysis.studies.strategy import placement, ranking
from pyanalysis.studies.strategy.base import Context, Forecast, NotApplicableError, Plan, break_even
from pyanalysis.studies.strategy.calibration import calibration_of
from pyanalysis.studies.strategy.prefetching import forecast_of
from pyanalysis.studies.strategy.replayed import replay_plan, replay_plan_at_once
from pyanalysis.studies.strategy.selection import halves, part_of
from pyanalysis.studies.strategy.table import STRATEGIES, SURE, THRIFTY, chosen, parse
from pyanalysis.studies.verdicts import Cell, Standing, standings, verdict
from tests.pyanalysis.simulation.small import small_trace
from tests.pyanalysis.studies.processes import layer_chain, routing_of

H200 = costs.load("h200")
N_EXPERTS, N_LAYERS, N_TOKENS = 7, 3, 120


def made_trace(seed=0, prompts=False):
    generator = np.random.default_rng(seed)
    ids = np.array([[generator.permutation(N_EXPERTS)[:2] for _ in range(N_LAYERS)] for _ in range(N_TOKENS)])
    request = np.arange(N_TOKENS) // 40
    phase = (np.arange(N_TOKENS) % 40 >= 10).astype(int) if prompts else None
    weights = generator.random((N_TOKENS * N_LAYERS, 2)).astype(np.float32)
    return replace(small_trace(ids, N_EXPERTS, request=request, phase=phase), weights=weights)


def context_of(trace, fit=None) -> Context:
    request = registry.Request((("made", trace),), costs=(H200,))
    bench = strategies._bench("made", trace, request)
    fit = splits_of(bench.routing)[1].fit if fit is None else fit
    return Context(bench.routing, bench.stream, bench.event_of, bench.routing, fit, bench.prompts)


# --- scheduling -----------------------------------------------------------------------------------------------------


def test_the_example_of_job_sequencing():
    deadlines, sure = [1, 2, 2, 3, 3, 3], [0.55, 0.90, 0.40, 0.75, 0.70, 0.30]
    chosen = _native.schedule(deadlines, sure, [0, 1, 3, 4])
    assert sorted(chosen) == [0, 1, 3, 4]
    assert sum(sure[i] for i in chosen) == pytest.approx(2.90)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 30)), max_size=8),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_scheduling_is_optimal(tasks, more):
    capacity = [0, *np.cumsum(more).tolist()]

    def fits(subset):
        return all(sum(tasks[i][0] <= d for i in subset) <= capacity[d] for d in range(1, 5))

    subsets = ([i for i in range(len(tasks)) if mask >> i & 1] for mask in range(1 << len(tasks)))
    best = max(sum(tasks[i][1] for i in subset) for subset in subsets if fits(subset))
    chosen = _native.schedule([d for d, _ in tasks], [float(c) for _, c in tasks], capacity)
    assert fits(chosen)
    assert sum(tasks[i][1] for i in chosen) == best


# --- candidates -----------------------------------------------------------------------------------------------------


def test_candidates_come_in_the_order_of_their_events():
    forecast = Forecast.of(np.array([2, 0, 2]), np.array([5, 6, 7]), np.array([1, 2, 3]), np.array([0.1, 0.2, 0.3]), 4)
    assert forecast.offsets.tolist() == [0, 1, 1, 3, 3]
    assert forecast.items.tolist() == [6, 5, 7]
    assert forecast.ahead.tolist() == [2, 1, 3]


@pytest.mark.parametrize(
    ("when", "predictor"), [("layer", "inter-layer"), ("same-layer", "cross-token"), ("token", "popularity")]
)
def test_where_candidates_appear_and_when_they_are_due(when, predictor):
    context = context_of(made_trace())
    forecast = forecast_of(context, predictor, when)
    event = np.repeat(np.arange(context.n_events), np.diff(forecast.offsets).astype(int))
    layer = forecast.items // N_EXPERTS
    source_layer = event % N_LAYERS
    if when == "layer":
        assert (layer == source_layer + 1).all()
        assert (forecast.ahead == 1).all()
    elif when == "same-layer":
        assert (layer == source_layer).all()
        assert (forecast.ahead == N_LAYERS).all()
    else:
        assert (source_layer == N_LAYERS - 1).all()
        assert (forecast.ahead == layer + 1).all()
    # k + 3 of each layer; of every token but the first of a request, and of the one that would follow its last
    sources = {"layer": N_TOKENS * (N_LAYERS - 1), "same-layer": N_TOKENS * N_LAYERS, "token": N_TOKENS * N_LAYERS}
    assert len(event) == 5 * sources[when]


COMBINED = ["retention:predictor=state-space", "prefetch:predictor=state-space:when=token:order=scheduling"]


@pytest.mark.parametrize("name", [*(one.name for one in STRATEGIES if one.name != "prefill-hot"), *COMBINED])
def test_a_strategy_does_not_know_the_future(name):
    """Another routing from token 90 on: the scores and candidates of all events before are the same."""
    trace = made_trace()
    ids = trace.ids.copy()
    cut = 90 * N_LAYERS
    ids[cut:] = (ids[cut:] + 2) % N_EXPERTS
    changed = replace(trace, ids=ids)
    fit = np.arange(60)
    slots = (6,)
    plans = [parse(name).make(context_of(t, fit), slots) for t in (trace, changed)]
    one, two = plans
    if one.scores is not None:
        rows = [plan.scores.row_of_event[:cut] for plan in plans]
        assert (rows[0] == rows[1]).all()
        used = rows[0][rows[0] >= 0]
        assert np.allclose(one.scores.values[used], two.scores.values[used], atol=1e-5)
    if one.forecast is not None:
        assert (one.forecast.offsets[: cut + 1] == two.forecast.offsets[: cut + 1]).all()
        n = int(one.forecast.offsets[cut])
        sure = [np.sort(plan.forecast.confidence[:n]) for plan in plans]
        assert np.allclose(sure[0], sure[1], atol=1e-5)


def test_retention_by_hand():
    # popularity's forecast is the same at every step, and the weights of the steps sum to 1
    context = context_of(made_trace())
    scores = ranking.retention(context, "popularity")
    share = context.fitted("popularity").scores(context.routing, np.array([0]))[0]
    assert np.allclose(scores.values.reshape(-1, N_LAYERS, N_EXPERTS), share, atol=1e-6)
    assert scores.row_of_event.tolist() == list(range(N_TOKENS * N_LAYERS))


def test_the_first_predicted_step():
    # one layer, experts 0, 1, 2, 3, 0, ...: at a token that used e the next are e + 1, e + 2, e + 3, and e itself
    ids = (np.arange(400) % 4)[:, None, None]
    context = context_of(small_trace(ids, 4), np.arange(200))
    scores = ranking.first_predicted(context, "cross-token").values.reshape(400, 4)
    assert scores[300].tolist() == [5, 8, 7, 6]  # token 300 used expert 0


def test_router_weights_fade():
    trace = made_trace()
    scores = ranking.router_weights(context_of(trace)).values.reshape(N_TOKENS, N_LAYERS, N_EXPERTS)
    expected = np.zeros(N_EXPERTS)
    for token in range(5):
        row = token * N_LAYERS + 1
        now = np.zeros(N_EXPERTS)
        now[trace.ids[row]] = trace.weights[row] / trace.weights[row].sum()
        expected = now if token == 0 else 0.9 * expected + 0.1 * now
    assert np.allclose(scores[4, 1], expected, atol=1e-5)
    with pytest.raises(NotApplicableError, match="router weights"):
        ranking.router_weights(context_of(replace(trace, weights=None)))


def test_the_prompts_experts():
    trace = made_trace(prompts=True)
    context = context_of(trace)
    plan = placement.prefill_hot(context, (6,))
    lists = plan.scores.values.reshape(3, N_LAYERS, N_EXPERTS)
    rows = [r for r in range(trace.n_events) if trace.request[r] == 1 and trace.phase[r] == 0 and trace.layer[r] == 2]
    assert lists[1, 2].tolist() == np.bincount(trace.ids[rows].ravel(), minlength=N_EXPERTS).tolist()
    # the six most used of all layers are sent for, once a request
    assert len(plan.forecast.items) == 18
    worth = lists[0].ravel()
    assert np.sort(worth[plan.forecast.items[:6]]).tolist() == np.sort(worth)[-6:].tolist()
    with pytest.raises(NotApplicableError, match="no prompt for 3 of 3 requests"):
        placement.prefill_hot(context_of(made_trace()), (6,))


# --- replays --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_layer", [True, False])
def test_a_plan_without_candidates_is_the_policy(per_layer):
    trace = made_trace()
    request = registry.Request((("made", trace),), costs=(H200,), per_layer=per_layer)
    bench = strategies._bench("made", trace, request)
    replayer = bench.replayers["h200"]
    for policy, plan in (("lru", Plan("lru")), (_native.default_policy, Plan())):
        for percent in (15, 45):
            slots = bench.slots(percent, request)
            expected = simulate(bench.stream, policy, f"{percent}%", H200, per_layer=per_layer, events=True)
            assert (replay_plan(replayer, plan, slots, H200).replayed.hit == expected.events.hit).all()
            at_once = simulate(bench.stream, policy, f"{percent}%", per_layer=per_layer)
            counted = replay_plan_at_once(replayer, replace(plan, victim_agreement=True), slots)
            assert counted["hits"] == at_once.hits
            assert counted["agreed"] / counted["demand_victims"] == at_once.victim_agreement


def test_perfect_candidates_are_hits_where_the_link_is_fast_enough():
    """The true experts of the next layer as candidates: what a layer's time can carry is there."""
    context = context_of(made_trace())
    event = np.arange(0, context.n_events - 1)
    ids = context.stream.native.items().reshape(-1, 2)
    items = ids[1:].ravel()
    forecast = Forecast.of(np.repeat(event, 2), items, np.ones(len(items)), np.ones(len(items)), context.n_events)
    request = registry.Request((("made", made_trace()),), costs=(H200,))
    replayer = strategies._bench("made", made_trace(), request).replayers["h200"]
    plan = Plan("lru", demand=False, forecast=forecast)
    # a copy takes 37 us, a layer at least 95: both experts of the next event are there in time
    outcome = replay_plan(replayer, plan, (N_EXPERTS * N_LAYERS,), H200)
    assert outcome.replayed.hit.tolist() == [0, 0] + [1] * len(items)
    # with fewer slots one that was there may make room for the other of the same event, so not all are hits
    fewer = replay_plan(replayer, plan, (12,), H200)
    for one in (outcome, fewer):
        counts = one.counts(np.arange(context.n_events))
        assert counts["in_time"] == counts["asked"] == counts["prefetches"] == counts["used"]
        assert counts["prefetches"] > 0
    assert fewer.replayed.hit.mean() > 0.9


@pytest.mark.parametrize("name", ["inter-layer-prefetch", "seqmoe", "retention-cross-token"])
def test_the_clock_takes_what_the_report_counts(name):
    """Each admission and each prefetch costs copy_event_ns once, in the replay's clock and in the report's sums."""
    calibrated = costs.load("h200-calibrated")
    assert calibrated.copy_event_ns > 0
    trace = made_trace()
    request = registry.Request((("made", trace),), costs=(calibrated,))
    replayer = strategies._bench("made", trace, request).replayers["h200-calibrated"]
    context = context_of(trace)
    outcome = replay_plan(replayer, parse(name).make(context, (6,)), (6,), calibrated)
    assert len(outcome.replayed.copied_event) > 100
    everything = part_of(context.event_of, np.arange(N_TOKENS))
    spent = replayer.sums(outcome.replayed, everything).time_ns(calibrated)
    assert spent.sum() == pytest.approx(outcome.detail["end_ns"], rel=1e-12)


def test_copies_are_those_of_the_part_only():
    """Held-out tokens lie between selected ones: what the others copied is not theirs."""
    request = registry.Request((("made", made_trace()),), costs=(H200,))
    replayer = strategies._bench("made", made_trace(), request).replayers["h200"]
    outcome = replay_plan(replayer, Plan("lru"), (6,), H200)
    event = outcome.replayed.copied_event
    even, odd = (np.arange(start, N_TOKENS * N_LAYERS, 2) for start in (0, 1))
    assert outcome.counts(even)["copies"] == (event % 2 == 0).sum()
    assert outcome.counts(even)["copies"] + outcome.counts(odd)["copies"] == len(event)


def test_arrays_that_do_not_fit_are_refused():
    trace = made_trace()
    request = registry.Request((("made", trace),), costs=(H200,))
    replayer = strategies._bench("made", trace, request).replayers["h200"]
    wrong = Forecast(np.zeros(3, np.uint64), *(np.zeros(0, kind) for kind in (np.uint32, np.uint32, np.float32)))
    with pytest.raises(ConfigError, match="offsets"):
        replay_plan(replayer, Plan(forecast=wrong), (6,), H200)
    with pytest.raises(ConfigError, match="table of scores"):
        replay_plan(replayer, Plan("scores"), (6,), H200)
    with pytest.raises(ConfigError, match="always be in time"):
        replay_plan_at_once(replayer, Plan(forecast=wrong), (6,))


def test_tokens_that_share_their_steps_are_refused():
    ids = np.array([[[0], [1]], [[1], [2]]])
    trace = small_trace(ids, 3, request=[0, 1], batch=[0, 0])
    with pytest.raises(ConfigError, match="one sequence at a time"):
        strategies._bench("made", trace, registry.Request((("made", trace),), costs=(H200,)))


# --- the least confidence -------------------------------------------------------------------------------------------


def test_where_a_prefetch_pays_for_its_copy():
    cost = replace(H200, cpu_miss_ns=30_000.0, gpu_hit_ns=2_000.0, copy_event_ns=14_000.0)
    assert break_even(cost) == 0.5
    assert break_even(replace(cost, gpu_hit_ns=30_000.0)) == np.inf
    assert parse("thrifty").tried(cost) == (0.25, 0.375, 0.5, 0.75, np.inf)
    assert parse("promoe").tried(cost) == SURE


def test_halves():
    request = np.repeat([0, 1, 2, 3], [8, 4, 8, 1])
    routing = routing_of(np.arange(21)[:, None, None] % 5, 5, request=request)
    tokens, requests = splits_of(routing)
    # of the first 4, 2, 4 and 0 tokens of the requests
    assert [part.tolist() for part in halves(tokens)] == [[0, 1, 8, 12, 13], [2, 3, 9, 14, 15]]
    assert [part.tolist() for part in halves(requests)] == [list(range(8)), list(range(8, 12))]
    single = routing_of(np.arange(2)[:, None, None], 5)
    assert [part.tolist() for part in halves(splits_of(single)[0])] == [[0], [0]]
    event_of = np.arange(42).reshape(21, 2)
    part = part_of(event_of, np.array([3, 5]))
    assert (part.events.tolist(), part.tokens.tolist()) == ([6, 7, 10, 11], [2])


def test_calibrated_confidences_are_how_often_they_are_right():
    # The next layer follows with probability .7, else any of 8
    routing = routing_of(layer_chain(4000, 3, 8, kept=0.7), 8)
    rises = calibration_of("inter-layer", routing, np.arange(4000), seed=0)
    assert rises.predict([0.0]) == 0
    assert rises.predict([0.7 + 0.3 / 8]) == pytest.approx(0.7 + 0.3 / 8, abs=0.05)
    assert rises.predict([0.3 / 8]) == pytest.approx(0.3 / 8, abs=0.02)
    # Uniform choice of 1 of 64, 100 tokens: logistic regression says up to 1, and is right once in 64
    noise = routing_of(np.random.default_rng(0).integers(0, 64, (100, 2, 1)), 64)
    assert calibration_of("logistic", noise, np.arange(100), seed=0).predict([1.0]) < 0.3


def least_of(name, trace, cost):
    """(the bench, what the selection part chooses at 25 %)."""
    request = registry.Request((("made", trace),), costs=(cost,), percents=(25.0,))
    bench = strategies._bench("made", trace, request)
    split = splits_of(bench.routing)[0]
    earlier, later = halves(split)
    with threads.pool(1) as pool:
        judged = part_of(bench.event_of, later)
        context = bench.context(split, earlier, request)
        return strategies._least(parse(name), context, bench, judged, request=request, pool=pool)[cost.name, 25.0]


def test_thrifty_prefetches_only_what_pays():
    trace = small_trace(layer_chain(1200, 4, 16, kept=0.9), 16)
    cheap = replace(H200, copy_event_ns=1_000.0)
    assert least_of("thrifty", trace, cheap) in [one * break_even(cheap) for one in THRIFTY[:-1]]
    # as much as 2 misses: no confidence is high enough, and what is not predicted costs nothing
    assert least_of("thrifty", trace, replace(H200, copy_event_ns=2 * H200.cpu_miss_ns)) == np.inf
    # and of the fixed ones the highest
    assert least_of("inter-layer-prefetch", trace, replace(H200, copy_event_ns=2 * H200.cpu_miss_ns)) == SURE[-1]


def test_a_held_out_workload_takes_the_other_traces_least_confidence():
    one, other = made_trace(0), replace(made_trace(1), weights=None)
    names = ("thrifty", "inter-layer-prefetch", "hybrimoe")
    request = registry.Request(
        (("one", one), ("other", other)), costs=(H200,), percents=(25.0,), strategies=names, seed=3
    )
    table = strategies.run(request)
    points = next(b.table for b in table.blocks if hasattr(b, "table") and b.table.name == "points")
    rows = [dict(zip(points.header, row, strict=True)) for row in points.rows]
    least = {(r["held out"], r["strategy"]): r["least confidence"] for r in rows}
    for name in names[:2]:
        for test, fitted in (("one", "other"), ("other", "one")):
            own = least[f"{fitted}, held-out requests", name]
            assert least[f"{test}, held-out workload, fitted on {fitted}", name] == own
    assert ("one, held-out requests", "hybrimoe") in least
    assert ("one, held-out workload, fitted on other", "hybrimoe") not in least
    note = "hybrimoe on one, held-out workload, fitted on other: not replayed, it was not on the other trace"
    assert note in table.as_markdown()


# --- names and verdicts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("belady", "there is no strategy 'belady'"),
        ("prefetch:predictor=oracle", "needs predictor=P with one of popularity"),
        ("prefetch:predictor=reservoir:order=best", "'best' is not one of arrival"),
        ("prefetch:predictor=reservoir:size=3", "no parameter 'size'"),
        ("prefetch:predictor=logistic:when=token", "when=layer"),
        ("prefetch:predictor=reservoir:when=same-layer", "when=token"),
        ("retention:predictor=logistic", "one of popularity, cross-token, reservoir"),
    ],
)
def test_names_that_cannot_be(text, message):
    with pytest.raises(ConfigError, match=message):
        parse(text)


def test_combinations():
    assert parse("prefetch:predictor=reservoir:when=token:order=scheduling:ranking=lru").confidences == SURE
    assert parse("retention:predictor=cross-token").name == "retention:predictor=cross-token"


def standing(trace, held_out, low, high, hits=0.01) -> Standing:
    middle = (low + high) / 2
    return Standing(
        "s",
        "strategy",
        trace,
        f"{trace} {held_out}",
        held_out,
        "h200",
        low,
        middle,
        high,
        hits,
        0.0,
        middle,
        known=True,
    )


def cell(strategy, time_ns, copies, predict_ns=0.0, hits=(5, 5)) -> Cell:
    """Two units of ten tokens, ten experts asked for in each."""
    ten = np.array([10, 10])
    return Cell(
        *("a", "a, held-out tokens", "tokens", "made", 10.0, strategy, "strategy", 0.0),
        *(np.array(time_ns, dtype=float), np.array(hits), ten, ten, predict_ns, 100.0, copies, 0),
        enough_units=True,
        late=0,
    )


def test_a_standing_by_hand():
    cells = [cell("base", [1000, 1000], 10), cell("other", [700, 900], 14, predict_ns=5.0, hits=(8, 6))]
    [found] = standings(cells, "base", seed=0)
    # 1,600 ns and 5 for each of 20 tokens against 2,000
    assert found.change == pytest.approx(1700 / 2000 - 1)
    assert found.predicting == pytest.approx(100 / 2000)
    assert found.with_copies == pytest.approx((1700 + 1400) / (2000 + 1000) - 1)
    assert found.hit_change == pytest.approx(0.2)
    assert found.low <= found.change <= found.high
    assert (found.low, found.high) == (pytest.approx(-0.25), pytest.approx(-0.05))  # one of the two units throughout


def test_chosen_is_what_is_faster_everywhere():
    good = [standing(t, h, -0.08, -0.03) for t in ("a", "b") for h in ("tokens", "requests")]
    both = ["a", "b"]
    assert verdict(good, both) == "chosen"
    assert verdict([*good[:3], standing("b", "requests", -0.05, -0.01)], both) == "rejected: faster on a only"
    slower = [standing("b", h, 0.01, 0.03) for h in ("tokens", "requests")]
    assert verdict([*good[:2], *slower], both) == "rejected: faster on a only"
    # a workload that loses is shown, it does not decide; without held-out requests nothing is chosen
    assert verdict([*good, standing("b", "workload", 0.1, 0.2)], both) == "chosen"
    assert verdict([good[0], good[2]], both) == "rejected"


def test_what_could_not_be_replayed_on_a_trace_is_not_chosen():
    good = [standing("a", h, -0.08, -0.03) for h in ("tokens", "requests")]
    assert verdict(good, ["a"]) == "chosen"
    assert verdict(good, ["a", "b"]) == "rejected: faster on a only"
    assert verdict([*good, replace(good[0], trace="b", known=False)], ["a", "b"]) == "rejected: faster on a only"


def test_more_hits_and_more_time_are_rejected():
    slow = [standing("a", h, 0.01, 0.03, hits=0.05) for h in ("tokens", "requests")]
    assert verdict(slow, ["a"]) == "rejected: more hits, more time"
    unknown = [replace(one, known=False) for one in slow]
    assert verdict(unknown, ["a"]).startswith("undecided")


def test_predicting_costs_what_it_reads():
    # the h200 model's CPU reads an expert of 1,904,640 bytes in 25,239 ns
    assert strategies.predict_ns(1_904_640 // 2, H200) == pytest.approx(25_239 / 2)
    context = context_of(made_trace())
    # inter-layer: 2 rows of 7 experts in 3 layers, float32; 8 steps of cross-token: 8 times that
    assert parse("inter-layer-prefetch").make(context, (6,)).predict_bytes == 2 * 7 * 3 * 4
    assert parse("retention-cross-token").make(context, (6,)).predict_bytes == 8 * 2 * 7 * 3 * 4
    assert parse("prompt-conditioned").make(context, (6,)).predict_bytes == 0


def test_a_strategy_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="the strategy 'moe-infinity' is named twice"):
        chosen(["moe-infinity", "promoe", "moe-infinity"])
