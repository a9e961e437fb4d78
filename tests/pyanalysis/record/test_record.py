"""`moecache record` as a whole: the logs it writes, counted by hand, and what it says about them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from ggml_moecache import embedded_model
from pyanalysis.traces import read_trace
from tests.bindings.gguf_files import write_moe

MOECACHE = Path(sys.executable).with_name("moecache")
SCHEMA = Path(__file__).resolve().parents[3] / "traces" / "run.schema.json"
PROMPTS = ["SQLite is a library that", "SQLite is not", "numpy"]
PARALLEL = "--parallel must be different whole numbers from 1 to 256 by comma."


def moecache(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MOECACHE, *arguments], capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Three prompts, 5 generated tokens each, one and two at a time."""
    folder = tmp_path_factory.mktemp("record")
    prompts = folder / "three.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    arguments = ("--workload", str(prompts), "-n", "5", "--parallel", "1,2", "--seed", "9", "-t", "1", "--json")
    result = moecache("record", *arguments, "-o", str(folder / "out"))
    assert result.returncode == 0, result.stderr
    return prompts, folder / "out" / "three", json.loads(result.stdout)["runs"]


@pytest.fixture(scope="module")
def n_tokens():
    """Tokens of the prompts, by llama-tokenize's own function through llama-cpp-python."""
    import ggml_moecache

    llm = ggml_moecache.load_model(verbose=False)
    found = [len(llm.tokenize(text.encode())) for text in PROMPTS]
    llm.close()
    return found


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_every_request_is_complete(recorded, n_tokens, n_parallel):
    """Each token of a prompt is prefill; of 5 generated tokens 4 are computed, and decode; all in 8 layers."""
    trace = read_trace(recorded[1] / f"parallel-{n_parallel}")
    assert trace.complete
    assert trace.n_events == 8 * (sum(n_tokens) + 3 * 4)
    tokens = trace.tokens
    for request, n in enumerate(n_tokens):
        mine = tokens.request == request
        assert tokens.token[mine].tolist() == list(range(n + 4))
        assert tokens.phase[mine].tolist() == [0] * n + [1] * 4
    assert trace.weights is not None


def test_parallel_sequences_share_ubatches(recorded):
    """One at a time each decode token has a ubatch of its own; two at a time the first two requests share four."""
    for n_parallel, expected in ((1, [1] * 12), (2, [2] * 4 + [1] * 4)):
        tokens = read_trace(recorded[1] / f"parallel-{n_parallel}").tokens
        decode = tokens.batch[tokens.phase == 1].tolist()
        assert [decode.count(batch) for batch in sorted(set(decode))] == expected


def test_run_json_is_complete(recorded, n_tokens):
    prompts, folder, _ = recorded
    for n_parallel in (1, 2):
        run = json.loads((folder / f"parallel-{n_parallel}" / "run.json").read_text())
        jsonschema.validate(run, json.loads(SCHEMA.read_text()))
        assert (run["seed"], run["warmup_tokens"]) == (9, 0)
        assert run["model"]["sha256"] == hashlib.sha256(embedded_model().read_bytes()).hexdigest()
        assert run["llama_cpp"]["ggml_version"]
        found = run["benchmark"]
        results = found.pop("results")
        assert found == {
            "name": "moecache record",
            "workload": "three",
            "prompts": {
                "file": "three.jsonl",
                "sha256": hashlib.sha256(prompts.read_bytes()).hexdigest(),
                "n_prompts": 3,
                "n_left_out": 0,
                "order": "as in the file",
            },
            "limits": {"prompt": None, "predict": 5, "context": 8192},
            "parallel": n_parallel,
            "sampling": {
                "temperature": 0.9,
                "repeat_penalty": 1.1,
                "repeat_last_n": 256,
                "top_k": 0,
                "top_p": 1.0,
                "min_p": 0.0,
                "end_of_text": "never chosen",
                "seeds": "seed + number of the request",
            },
            "n_ubatch": 512,
            "n_ctx": n_parallel * (max(n_tokens) + 5),
            "n_threads": 1,
        }
        assert (results["finished_requests"], results["interrupted"]) == (3, False)


def test_each_number_of_sequences_is_reported_apart(recorded, n_tokens):
    """Two prompts begin with the same words: what they share is counted once for each of them."""
    _, folder, runs = recorded
    assert [run["parallel"] for run in runs] == [1, 2]
    for run in runs:
        assert (run["prefill_tokens"], run["decode_tokens"]) == (sum(n_tokens), 12)
        assert (run["events"], run["lost_events"]) == (8 * (sum(n_tokens) + 12), 0)
        assert run["repetition"] == {"ngram_tokens": 8, "rate": None, "by_request": [None] * 3}
        longest = run["shared_prefixes"]["longest_tokens"]
        assert longest >= 2  # "SQLite is" is no single token
        assert run["shared_prefixes"]["shared_tokens"] == 2 * longest
        assert run["shared_prefixes"]["share"] == 2 * longest / sum(n_tokens)
        assert run["log"] == str(folder / f"parallel-{run['parallel']}")


def test_the_same_command_gives_the_same_routing(recorded, tmp_path):
    prompts, folder, _ = recorded
    result = moecache("record", "--workload", str(prompts), "-n", "5", "--seed", "9", "-t", "1", "-o", str(tmp_path))
    assert result.returncode == 0, result.stderr
    first, again = (read_trace(path / "parallel-1") for path in (folder, tmp_path / "three"))
    assert first.ids.tolist() == again.ids.tolist()
    assert first.weights.tolist() == again.weights.tolist()
    assert result.stdout.startswith("three, 1 sequence at a time\n  requests     3 of 3 finished\n")
    check = moecache("trace", "check", str(tmp_path / "three" / "parallel-1"))
    assert check.returncode == 0, check.stdout


def test_a_log_is_not_overwritten(recorded):
    prompts, folder, _ = recorded
    before = (folder / "parallel-1" / "routing.jsonl").read_bytes()
    result = moecache("record", "--workload", str(prompts), "--parallel", "3,1", "-o", str(folder.parent))
    assert result.returncode == 2
    assert f"{folder / 'parallel-1'} holds the log of another run" in result.stderr
    assert (folder / "parallel-1" / "routing.jsonl").read_bytes() == before
    assert not (folder / "parallel-3").exists()


@pytest.mark.parametrize("n_parallel", [1, 3])
def test_ctrl_c_leaves_a_log_that_can_be_read(tmp_path, n_parallel):
    folder = tmp_path / "heterogeneous" / f"parallel-{n_parallel}"
    command = [MOECACHE, "record", "--workload", "heterogeneous", "--parallel", str(n_parallel), "-o", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (folder / "routing.jsonl").exists() or (folder / "routing.jsonl").stat().st_size < 1 << 20:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    trace = read_trace(folder)
    assert trace.complete
    assert trace.n_events % 8 == 0
    results = json.loads((folder / "run.json").read_text())["benchmark"]["results"]
    assert results["interrupted"]
    assert results["finished_requests"] < 160
    assert results["prefill_tokens"] + results["decode_tokens"] == len(trace.tokens) == trace.n_events // 8
    assert f"{results['finished_requests']} of 160 finished (interrupted)" in out
    assert f"moecache: interrupted; the log in {folder} ends there and can be read" in err
    assert moecache("trace", "check", str(folder)).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workload", ""), "--workload has an empty item: name workloads by comma. Got '' instead."),
        (("--workload", "long,"), "--workload has an empty item: name workloads by comma. Got 'long,' instead."),
        (("--parallel", "0"), f"{PARALLEL} Got '0' instead."),
        (("--parallel", "2,2"), f"{PARALLEL} Got '2,2' instead."),
        (("--predict", "0"), "--predict must be a whole number of at least 1. Got 0 instead."),
        (("--ubatch-size", "1"), "--ubatch-size must be a whole number of at least 2. Got 1 instead."),
        (("--seed", "-1"), "--seed must be from 0 to 4294967294. Got -1 instead."),
        (("--temperature", "-1"), "--temperature must be at least 0. Got -1.0 instead."),
        (("--workload", "long,long"), "--workload long,long: two workloads have one name, and would have one folder"),
        (("--workload", "nowhere.json"), "nowhere.json: cannot be read: No such file or directory"),
        (("-m", "nowhere.gguf"), "nowhere.gguf does not exist. Name a GGUF file."),
    ],
)
def test_bad_arguments(tmp_path, arguments, message):
    result = moecache("record", "--workload", "long", "-o", str(tmp_path / "out"), *arguments)
    assert (result.returncode, result.stderr) == (2, f"moecache: error: {message}\n")
    assert not (tmp_path / "out").exists()


def test_requests_that_the_model_cannot_hold(tmp_path):
    arguments = ("--workload", "long", "--prompt-tokens", "900", "-n", "8100")
    result = moecache("record", *arguments, "-o", str(tmp_path / "out"))
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].endswith(
        "long.jsonl:1: 900 tokens of prompt and 8100 to generate are more than the 8192 of the model's trained "
        "context; give --prompt-tokens, which cuts prompts, or a smaller --predict"
    )
    assert not (tmp_path / "out").exists()


def test_a_dense_model(tmp_path):
    dense = write_moe(tmp_path / "dense.gguf", dense=True)
    result = moecache("record", "--workload", "long", "-m", str(dense), "-o", str(tmp_path / "out"))
    message = f"moecache: error: {dense}: has no experts; there is no routing to record\n"
    assert (result.returncode, result.stderr) == (2, message)
