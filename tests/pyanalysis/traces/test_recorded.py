"""The traces in traces/: complete, as their run.json says, and of the workloads and the model that ship."""

from __future__ import annotations

import hashlib
import json

import jsonschema
import numpy as np
import pytest

from ggml_moecache import embedded_model
from pyanalysis import traces, workloads
from tests.pyanalysis.traces import logs

TRACES = logs.ROOT / "traces"
# name: workload, requests, generated tokens of each, sequences at once
RECORDED = {
    "tiny-long": ("long", 6, 2048, 1),
    "tiny-heterogeneous-parallel-1": ("heterogeneous", 160, 128, 1),
    "tiny-heterogeneous-parallel-4": ("heterogeneous", 160, 128, 4),
}


@pytest.fixture(scope="module", params=RECORDED)
def recorded(request):
    return request.param, traces.read_trace(TRACES / f"{request.param}.parquet")


def test_checksums():
    lines = (TRACES / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert set(sums) == {f"{name}{suffix}" for name in RECORDED for suffix in (".parquet", ".run.json")}
    for name, digest in sums.items():
        assert hashlib.sha256((TRACES / name).read_bytes()).hexdigest() == digest
    assert sum((TRACES / name).stat().st_size for name in sums) < 15e6


def test_every_token_of_every_request(recorded):
    """All 8 layers saw each token once; all generated tokens but the last are decode, at positions that follow."""
    name, trace = recorded
    _, n_requests, n_predict, _ = RECORDED[name]
    assert (trace.complete, trace.n_lost, trace.notes) == (True, 0, ())
    tokens = trace.tokens
    assert trace.n_events == 8 * len(tokens)
    assert trace.ids.shape == (trace.n_events, 8)
    assert np.bincount(tokens.request[tokens.phase == 1]).tolist() == [n_predict - 1] * n_requests
    for request in range(n_requests):
        mine = np.flatnonzero(tokens.request == request)
        assert tokens.token[mine].tolist() == list(range(len(mine)))
        assert tokens.phase[mine].tolist() == sorted(tokens.phase[mine].tolist())
    if name == "tiny-long":
        assert np.bincount(tokens.request[tokens.phase == 0]).tolist() == [900] * 6


def test_sequences_at_once(recorded):
    name, trace = recorded
    tokens = trace.tokens
    together = np.bincount(tokens.batch[tokens.phase == 1])
    assert set(together[together > 0].tolist()) == {RECORDED[name][3]}


def test_run_json(recorded):
    name, trace = recorded
    run = json.loads((TRACES / f"{name}.run.json").read_text())
    assert run == trace.metadata
    jsonschema.validate(run, json.loads((TRACES / "run.schema.json").read_text()))
    workload, n_requests, n_predict, n_parallel = RECORDED[name]
    assert run["model"]["sha256"] == hashlib.sha256(embedded_model().read_bytes()).hexdigest()
    benchmark = run["benchmark"]
    assert (benchmark["workload"], benchmark["parallel"]) == (workload, n_parallel)
    assert benchmark["prompts"]["n_prompts"] == n_requests
    assert benchmark["prompts"]["sha256"] == hashlib.sha256(workloads.path_of(workload).read_bytes()).hexdigest()
    assert benchmark["limits"]["predict"] == n_predict
    assert not benchmark["results"]["interrupted"]


def test_the_table_of_the_document(recorded):
    name, trace = recorded
    row = next(line for line in (TRACES / "README.md").read_text().splitlines() if line.startswith(f"| `{name}."))
    _, _, _, n_requests, n_tokens, n_events, repeated, weights, _ = (cell.strip() for cell in row.split("|"))
    decode = int(trace.tokens.phase.sum())
    assert int(n_requests) == RECORDED[name][1]
    assert n_tokens == f"{len(trace.tokens) - decode:,}, {decode:,}"
    assert n_events == f"{trace.n_events:,}"
    assert repeated == f"{100 * trace.metadata['benchmark']['results']['repetition']['rate']:.1f} %"
    assert (weights == "yes") == (trace.weights is not None)
