"""Residency lines through the tools: whatever is written has the same set for the same event, or no lines at all."""

from __future__ import annotations

import pytest

from pyanalysis import traces
from pyanalysis.traces import edit, jsonl, merge
from tests.harness.residency import events_with_sets
from tests.pyanalysis.traces import logs


def residency(generation, **sets):
    return {"type": "residency", "run_id": logs.RUN, "context_id": 0, "generation": generation, **sets}


# The cache of the base log (logs.py): generation 0 is empty; expert 0 of both layers, and 0 of another family, come
# with ubatch 1; in ubatch 2 expert 0 of layer 1 leaves for expert 1.
SETS = {
    0: set(),
    2: {(0, 0, "exps")},
    3: {(0, 0, "exps"), (1, 0, "exps"), (1, 0, "chexps")},
    4: {(0, 0, "exps"), (1, 1, "exps"), (1, 0, "chexps")},
}
GENERATION = {(0, 0): 0, (0, 1): 0, (1, 0): 2, (1, 1): 3, (2, 0): 3, (2, 1): 4}  # of ubatch and layer
LINES = {
    (0, 0): residency(0, full=[]),
    (1, 0): residency(2, added=[[0, 0]], removed=[]),
    (1, 1): residency(3, added=[[1, 0], [1, 0, 1]], removed=[]),
    (2, 1): residency(4, added=[[1, 1]], removed=[[1, 0]]),
}


def cached_log() -> list:
    content, told = [], set()
    for event in logs.base_events():
        place = (event["batch_id"], event["layer_id"])
        if place in LINES and place not in told:
            content.append(LINES[place])
            told.add(place)
        generation = GENERATION[place]
        hits = [(place[1], expert, "exps") in SETS[generation] for expert in event["expert_ids"]]
        content.append({**event, "resident_experts": generation, "cache_hit": hits})
    return [*content, logs.end()]


def sets_of(records, **options):
    return [(e["token_index"], e["layer_id"], resident) for e, resident in events_with_sets(records, **options)]


ALL = sets_of(cached_log())


def test_the_log_of_these_tests_says_what_it_means():
    assert [resident for *_, resident in ALL] == [SETS[0]] * 6 + [SETS[2], SETS[3], SETS[3], SETS[4]]


@pytest.mark.parametrize(
    "selection",
    [
        {"tokens": (3, None)},
        {"tokens": (0, 4)},
        {"layers": frozenset([1])},
        {"phase": "decode"},
        {"requests": (0, 1)},
        {"weights": False},
    ],
)
def test_a_cut_log_has_the_same_sets(tmp_path, selection):
    log = logs.write(tmp_path / "in", cached_log())
    edit.cut(log, traces.open_writer(tmp_path / "out"), edit.Selection(**selection))
    out = logs.records_in(tmp_path / "out" / "routing.jsonl")
    kept = {(e["token_index"], e["layer_id"]) for e in out if e["type"] == "event"}
    assert kept
    assert sets_of(out) == [entry for entry in ALL if entry[:2] in kept]


def test_conversion_keeps_every_byte(tmp_path):
    log = logs.write(tmp_path / "in", cached_log())
    edit.copy(log, traces.open_writer(tmp_path / "t.parquet"))
    edit.copy(tmp_path / "t.parquet", traces.open_writer(tmp_path / "back.jsonl"))
    assert (tmp_path / "back.jsonl").read_bytes() == log.read_bytes()


def test_a_chunk_with_residency_lines_is_read_at_once():
    """Not line by line, which is many times slower; there may be as many of them as events."""
    table = jsonl._parse_block(logs.text_of(cached_log()).encode())
    assert table is not None
    assert table["full"].to_pylist()[0] == []
    assert [row for row in table["added"].to_pylist() if row] == [[[0, 0]], [[1, 0], [1, 0, 1]], [[1, 1]]]
    wrong = [*cached_log(), residency(9, added=[[1, 0, 0]], removed=[])]
    assert jsonl._parse_block(logs.text_of(wrong).encode()) is None  # family 0 is left out


def test_runs_are_counted_on(tmp_path):
    """The second run's generations begin behind the last one of the first (4), so no set is taken for another run's."""
    run = {"run_id": "run-2"}
    second = [{**record, **run} for record in cached_log()]
    sources = [logs.write(tmp_path / "0", cached_log())]
    sources.append(logs.write(tmp_path / "1", second, {**logs.run_json(), **run}))
    notes = merge.merge(sources, traces.open_writer(tmp_path / "out"))
    out = logs.records_in(tmp_path / "out" / "routing.jsonl")
    assert sets_of(out, one_run=False) == ALL + ALL
    assert [r["generation"] for r in out if r["type"] == "residency"] == [0, 2, 3, 4, 5, 7, 8, 9]
    assert not any("residency" in note for note in notes)


def test_runs_whose_generations_do_not_fit_are_refused(tmp_path):
    large = [{**r, "resident_experts": 2**63 - 1} if r["type"] == "event" else r for r in cached_log()]
    run = {"run_id": "run-2"}
    sources = [logs.write(tmp_path / "0", cached_log())]
    sources.append(logs.write(tmp_path / "1", [{**r, **run} for r in large], {**logs.run_json(), **run}))
    writer = traces.open_writer(tmp_path / "out")
    with pytest.raises(traces.TraceError, match=r"its generations, counted on from .* do not fit 63 bits"):
        merge.merge(sources, writer)
    writer.discard()


@pytest.mark.parametrize("context", [0, 4])
def test_layers_that_are_put_together_have_no_sets(tmp_path, context):
    """Devices (another context) and cut parts (the same one): the note counts the lines that are left out."""
    log = logs.write(tmp_path / "in", cached_log())
    sources = []
    for layer in (0, 1):
        folder = tmp_path / str(layer)
        edit.cut(log, traces.open_writer(folder), edit.Selection(layers=frozenset([layer])))
        if layer == 1:
            records = [{**r, "context_id": context} for r in logs.records_in(folder / "routing.jsonl")]
            (folder / "routing.jsonl").write_text(logs.text_of(records))
        sources.append(folder)
    notes = merge.merge(sources, traces.open_writer(tmp_path / "out"))
    out = logs.records_in(tmp_path / "out" / "routing.jsonl")
    assert [r["type"] for r in out] == ["event"] * 10 + ["end"]
    assert sum(f"{4 if context == 0 else 8} residency lines are left out" in note for note in notes) == 1


def test_a_shuffled_log_has_no_sets(tmp_path):
    log = logs.write(tmp_path / "in", cached_log())
    edit.shuffle(log, traces.open_writer(tmp_path / "out"), 3)
    out = logs.records_in(tmp_path / "out" / "routing.jsonl")
    assert [r["type"] for r in out] == ["event"] * 10 + ["end"]
    assert {r["resident_experts"] for r in out[:-1]} == {None}
