"""What `moecache trace show` says of a cache: sums worked out by hand on a log of twelve ubatches."""

from __future__ import annotations

import json

import pytest

from pyanalysis import cli
from pyanalysis.traces import cache_use, read_trace
from tests.pyanalysis.traces import logs
from tests.pyanalysis.traces.logs import end, event


def cached_log():
    """Ubatch 0 passes the cache by, 1 to 12 miss twice, once, or hit twice, in turn; two layers."""
    events = [event(batch_id=0, token_index=i, layer_id=layer, phase="prefill") for layer in (0, 1) for i in (0, 1)]
    for batch in range(1, 13):
        hits = [[False, False], [True, False], [True, True]][(batch - 1) % 3]
        n_misses = hits.count(False)
        for layer in (0, 1):
            admitted = [[0, 7], [0, 8]][:n_misses] if layer == 0 else []
            events.append(
                event(
                    batch_id=batch,
                    token_index=batch + 1,
                    layer_id=layer,
                    resident_experts=batch,
                    cache_hit=hits,
                    admitted=admitted,
                    evicted=[[1, 3]] if admitted else [],
                    copy_bytes=1 << 20 if admitted else 0,
                    ready_before_next_token=(batch > 3) if admitted else None,
                )
            )
    return [*events, end(events=len(events))]


def use_of(path):
    builder = cache_use.CacheUseBuilder()
    read_trace(path, builder.add)
    return builder.finish()


def test_sums(tmp_path):
    use = use_of(logs.write(tmp_path, cached_log()))
    # Twelve ubatches of two layers and two rows; of every three ubatches 0 + 1 + 2 of 6 rows a layer hit.
    assert (use.rows, use.hits, use.events_passed_by) == (48, 24, 4)
    assert use.by_layer == {(0, "exps"): (24, 12), (1, "exps"): (24, 12)}
    # Layer 0 admits 2, 1 and 0 experts and evicts 1, 1 and 0, four times over; six of the eight copies were in time.
    assert (use.admitted, use.evicted, use.copy_bytes) == (12, 8, 8 << 20)
    assert use.in_time == pytest.approx(6 / 8)


def test_over_time(tmp_path):
    """Twelve ubatches in ten parts: two parts of two, eight of one."""
    parts = use_of(logs.write(tmp_path, cached_log())).over_time
    assert [(part.first_batch, part.last_batch) for part in parts[:3]] == [(1, 2), (3, 4), (5, 5)]
    assert [part.hit_rate for part in parts] == [0.25, 0.5, 0.5, 1, 0, 0.5, 1, 0, 0.5, 1]


def test_a_log_without_a_cache_has_none(tmp_path):
    assert use_of(logs.write(tmp_path, logs.base_log())) is None


def show(monkeypatch, capsys, *arguments: str) -> str:
    monkeypatch.setattr("sys.argv", ["moecache", "trace", "show", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (0, None)
    return capsys.readouterr().out


def test_shown(tmp_path, capsys, monkeypatch):
    path = str(logs.write(tmp_path, cached_log()))
    text = show(monkeypatch, capsys, path)
    assert "cache     hit rate 50.0% (24 of 48 rows); 4 events in larger ubatches passed it by" in text
    assert "copies    12 experts, 8.0 MiB; 8 evicted; ready at the next token for 75.0% of the events that tell" in text
    assert "over time 25.0%  50.0%  50.0%  100.0%  0.0%" in text
    assert "regime" not in text  # the run.json names no policy
    shown = json.loads(show(monkeypatch, capsys, "--json", path))[0]["cache"]
    assert shown["hit_rate"] == 0.5
    assert shown["over_time"][1] == {"first_batch": 3, "last_batch": 4, "rows": 8, "hits": 4, "hit_rate": 0.5}
    assert shown["by_layer"][0] == {"layer": 0, "family": "exps", "rows": 24, "hits": 12}


def test_the_regime_stands_beside_the_hit_rate(tmp_path, capsys, monkeypatch):
    """Two experts of a layer a ubatch, over the two layers' six slots."""
    run = {**logs.run_json(), "policy": "lru", "capacity": "6", "policy_parameters": {"n_slots": 6, "per_layer": False}}
    path = str(logs.write(tmp_path, cached_log(), run))
    text = show(monkeypatch, capsys, path)
    assert "\nregime    different experts that a ubatch uses over the slots of all layers, at 6: 0.67\n" in text
    shown = json.loads(show(monkeypatch, capsys, "--json", path))[0]["regime"]
    assert (shown["step_experts_over_slots"], shown["steps_above_slots"]) == (pytest.approx(4 / 6), 0.0)
