"""top1_token: last layer against the real logits, inner layers against numpy over what stock llama.cpp shows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gguf
import jsonschema
import numpy as np
import pytest
from gguf.quants import dequantize

import ggml_moecache
from ggml_moecache import errors
from ggml_moecache.gguf_file import read_model
from ggml_moecache.logit_lens import ARCHITECTURES, LogitLens
from pyanalysis.traces import read_trace
from tests.harness.plan import ModelOptions, Plan, Scenario, decode
from tests.harness.runner import run_reference
from tests.harness.scenarios import token_stream
from tests.models.families.table import FAMILIES, MOE_FAMILIES
from tests.models.generate import model_path

N_PROMPT = 40
TOKENS = token_stream(N_PROMPT + 2)
ROOT = Path(__file__).resolve().parents[2]
# Sums of some hundred float32 products in another order; logits of these models are of the order of 1.
ROUNDING = 1e-3
# llama.cpp rounds the hidden state to 8 bits for the product with a quantised LM head: half a step of 1/127 of the
# largest value, in each of 256 elements at random.
ROUNDING_QUANTISED = 0.1


def logged(folder, model=None, every=1, tokens=TOKENS, n_prompt=N_PROMPT, **arguments):
    """Prompt in ubatches of 16, then single tokens. Returns the trace and the logits (n_token, n_vocab)."""
    llm = ggml_moecache.load_model(
        model, log=folder, log_top1_every=every, verbose=False, n_ctx=256, n_ubatch=16, logits_all=True, **arguments
    )
    llm.eval(tokens[:n_prompt])
    for token in tokens[n_prompt:]:
        llm.eval([token])
    logits = np.array(llm.scores[: len(tokens)])
    llm.close()
    return read_trace(folder), logits


def of_layer(trace, layer):
    """{token_index: top1_token} of the events of a layer that were sampled."""
    rows = (trace.layer == layer) & (trace.top1 >= 0)
    return dict(zip(trace.token[rows].tolist(), trace.top1[rows].tolist(), strict=True))


def margins(logits):
    best = np.sort(logits, axis=1)
    return best[:, -1] - best[:, -2]


@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_last_layer_is_the_greedy_token_of_the_logits(tmp_path, family):
    trace, logits = logged(tmp_path / "log", model_path(family, "F32"))
    last = of_layer(trace, trace.layer.max())
    clear = margins(logits) > ROUNDING
    assert clear.mean() > 0.9
    assert list(last) == list(range(len(TOKENS)))
    np.testing.assert_array_equal(np.array(list(last.values()))[clear], logits.argmax(axis=1)[clear])


def test_last_layer_of_the_trained_model(tmp_path):
    """Q4_0 with a quantised LM head."""
    trace, logits = logged(tmp_path / "log")
    assert set(trace.layer) == set(range(8))
    clear = margins(logits) > ROUNDING_QUANTISED
    assert clear.mean() > 0.7
    last = np.array(list(of_layer(trace, 7).values()))
    np.testing.assert_array_equal(last[clear], logits.argmax(axis=1)[clear])
    assert (np.array(list(of_layer(trace, 0).values())) != last).mean() > 0.5  # not the same in every layer


@pytest.mark.parametrize("capacity", ["0", "all"])
@pytest.mark.parametrize(("family", "type_name"), [("qwen3moe", "F32"), ("qwen35moe", "Q4_0"), ("deepseek2", "F32")])
def test_inner_layers_are_numpys(build, tmp_path, family, type_name, capacity):
    """Another way: hidden states of stock llama.cpp, weights as the gguf package reads them, float64."""
    path = model_path(family, type_name)
    steps = (decode(TOKENS[:N_PROMPT]), *(decode(TOKENS[i : i + 1], start=i) for i in range(N_PROMPT, len(TOKENS))))
    scenario = Scenario("hidden", steps, n_ubatch=16, observe_hidden=True)
    stock = run_reference(build, Plan(ModelOptions(str(path)), (scenario,)), capacity=capacity).arrays
    reader = gguf.GGUFReader(path)
    tensors = {t.name: dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors if "out" in t.name}
    arch = FAMILIES[family].arch
    epsilon = float(reader.fields[f"{arch}.attention.layer_norm_rms_epsilon"].parts[-1][0])
    trace, _ = logged(tmp_path / "log", path, capacity=capacity)
    layers = sorted(set(trace.layer.tolist()))
    assert len(layers) > 1
    for layer in layers:
        keys = [f"hidden/{step}/l_out-{layer}/{part}" for step in range(len(steps)) for part in range(3)]
        hidden = np.concatenate([stock[key][0] for key in keys if key in stock]).astype(np.float64)
        assert len(hidden) == len(TOKENS)
        norm = hidden / np.sqrt((hidden**2).mean(axis=1, keepdims=True) + epsilon) * tensors["output_norm.weight"]
        logits = norm @ tensors["output.weight"].T
        # llama-cpp-python lets the CPU repack Q4_0, whose kernels round the hidden states differently.
        clear = margins(logits) > (ROUNDING if type_name == "F32" else ROUNDING_QUANTISED)
        assert clear.mean() > (0.9 if type_name == "F32" else 0.5)
        found = np.array(list(of_layer(trace, layer).values()))
        np.testing.assert_array_equal(found[clear], logits.argmax(axis=1)[clear])


def test_every_third_token_and_output_rows_only(tmp_path):
    """Tokens 0, 3, ... 39 and 42 over ubatches of 16, 16, 8, 1, 1, 1; the last layer sees the last of the prompt."""
    path = model_path("qwen3moe", "F32")
    tokens = token_stream(43)
    whole, _ = logged(tmp_path / "whole", path, tokens=tokens)
    llm = ggml_moecache.load_model(path, log=tmp_path / "log", log_top1_every=3, verbose=False, n_ctx=256, n_ubatch=16)
    llm.eval(tokens[:40])
    for token in tokens[40:]:
        llm.eval([token])
    llm.close()
    trace = read_trace(tmp_path / "log")
    expected = {0: list(range(0, 43, 3)), 1: list(range(0, 43, 3)), 2: [39, 42]}
    for layer, sampled in expected.items():
        all_tokens = of_layer(whole, layer)
        assert of_layer(trace, layer) == {token: all_tokens[token] for token in sampled}
    assert trace.notes == ()
    assert trace.metadata["top1_every"] == 3
    assert trace.metadata["timings"] is False
    assert trace.metadata["model"]["layers_with_output_rows_only"] == [2]


def test_both_families_of_a_layer_have_the_token(tmp_path):
    trace, _ = logged(tmp_path / "log", model_path("grovemoe", "F32"))
    assert trace.families == ("exps", "chexps")
    first, second = (trace.top1[trace.family == family] for family in (0, 1))
    np.testing.assert_array_equal(first, second)


def test_a_warm_up_counts_no_tokens(tmp_path):
    """llama_set_warmup: 2 tokens that are not logged. Of the 5 behind it, 0, 2 and 4 are sampled."""
    import llama_cpp

    folder = tmp_path / "log"
    llm = ggml_moecache.load_model(model_path("mixtral", "F32"), log=folder, log_top1_every=2, verbose=False, n_ctx=64)
    llama_cpp.llama_set_warmup(llm._ctx.ctx, True)
    llm.eval(TOKENS[:1])
    llama_cpp.llama_set_warmup(llm._ctx.ctx, False)
    llm.reset()
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llm._ctx.ctx), True)
    llm.eval(TOKENS[:5])
    llm.close()
    assert list(of_layer(read_trace(folder), 0)) == [0, 2, 4]


def test_lines_are_those_of_the_schema(tmp_path):
    logged(tmp_path / "log", model_path("mixtral", "F32"), every=7)
    schema = json.loads((ROOT / "traces" / "top1.schema.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "log" / "routing.top1.jsonl").read_text().splitlines()]
    for line in lines:
        jsonschema.validate(line, schema)
    assert lines[-1]["type"] == "end"
    assert lines[-1]["n_tokens"] == 2 * 6  # tokens 0, 7, ... 35 in both layers
    run = json.loads((tmp_path / "log" / "run.json").read_text())
    jsonschema.validate(run, json.loads((ROOT / "traces" / "run.schema.json").read_text()))


def test_two_models_one_with_tokens(tmp_path):
    """run.json of a folder says what its own log has, whatever was loaded since."""
    plain = ggml_moecache.load_model(model_path("mixtral", "F32"), log=tmp_path / "plain", verbose=False, n_ctx=64)
    plain.eval(TOKENS[:3])
    logged(tmp_path / "lens", model_path("mixtral", "F32"), seed=7)
    plain.close()
    before, after = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("plain", "lens"))
    assert "top1_every" not in before
    assert before["seed"] is None
    assert (after["top1_every"], after["timings"], after["seed"]) == (1, False, 7)


def test_no_timings_are_measured_or_printed(tmp_path, capfd):
    llm = ggml_moecache.load_model(log=tmp_path / "log", log_top1_every=4, verbose=True, n_ctx=64)
    assert llm.context_params.no_perf is True
    llm.create_completion("SQLite", max_tokens=2)
    llm.close()
    said = capfd.readouterr().err
    assert "moecache: top1_token is recorded: this run gives no timings\n" in said
    assert "llama_perf_context_print" not in said


KILLED = """
import os, sys, ggml_moecache
llm = ggml_moecache.load_model(log=sys.argv[1], log_top1_every=1, verbose=False, n_ctx=2048)
for token in range(1000):
    llm.eval([token % 300])
"""


def test_a_killed_process_leaves_both_files_readable(tmp_path):
    folder = tmp_path / "log"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stderr=subprocess.DEVNULL)
    beside = folder / "routing.top1.jsonl"
    deadline = time.monotonic() + 60
    while not (beside.is_file() and beside.stat().st_size > 20_000):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    trace = read_trace(folder)
    assert not trace.complete
    assert "routing.top1.jsonl: no end record: top1_token may be missing on the last tokens" in trace.notes
    known = trace.token < trace.token.max() - 1
    assert (trace.top1[known] >= 0).all()


def test_a_file_that_cannot_be_written_is_said_once_and_the_model_runs(tmp_path, capfd):
    folder = tmp_path / "log"
    llm = ggml_moecache.load_model(log=folder, log_top1_every=1, verbose=False, n_ctx=64, logits_all=True)
    folder.mkdir()  # the plugin makes it at the first event
    (folder / "routing.top1.jsonl").write_text("mine")
    llm.eval(TOKENS[:8])
    logits = np.array(llm.scores[:8])
    llm.close()
    said = [line for line in capfd.readouterr().err.splitlines() if "top1" in line]
    assert said == [f"moecache: log_file: {folder}: File exists; no more top1 tokens are recorded"]
    assert (folder / "routing.top1.jsonl").read_text() == "mine"
    plain = ggml_moecache.load_model(verbose=False, n_ctx=64, logits_all=True)
    plain.eval(TOKENS[:8])
    np.testing.assert_array_equal(logits, plain.scores[:8])
    plain.close()


def test_beside_the_log_of_another_run_nothing_is_written(tmp_path, monkeypatch, capfd):
    """The folder is named by the environment, so the model runs on without a log; context ids are the same."""
    folder = tmp_path / "log"
    code = "import sys, ggml_moecache as g; g.load_model(log=sys.argv[1], verbose=False, n_ctx=64).eval([1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, capture_output=True)
    files = sorted(path.name for path in folder.iterdir())
    run = json.loads((folder / "run.json").read_text())
    run["contexts"] = [{**run["contexts"][0], "context_id": context_id} for context_id in range(1000)]
    (folder / "run.json").write_text(json.dumps(run))
    monkeypatch.setenv("GGML_MOECACHE_LOG", str(folder))
    llm = ggml_moecache.load_model(log_top1_every=1, verbose=False, n_ctx=64)
    llm.eval(TOKENS[:8])
    llm.close()
    said = capfd.readouterr().err
    assert f"moecache: log_file: {folder} holds the log of another run; no more top1 tokens" in said
    assert sorted(path.name for path in folder.iterdir()) == files


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"log_top1_every": 0, "log": "x"}, "whole number of at least 1. Got 0 instead"),
        ({"log_top1_every": 2.5, "log": "x"}, "Got 2.5 instead"),
        ({"log_top1_every": True, "log": "x"}, "Got True instead"),
        ({"log_top1_every": 4}, "needs a folder for the log"),
        ({"log_top1_every": 4, "log": "x", "log_full": "drop"}, "'wait' with 'log_top1_every'.*Got 'drop'"),
        ({"log_top1_every": 4, "log": "x", "no_perf": False}, "gives no timings. Got False"),
        ({"log_top1_every": 4, "log": "x", "lora_path": "a.gguf"}, "'lora_path' parameter of load_model excludes"),
    ],
)
def test_what_excludes_it(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.ConfigError, match=words):
        ggml_moecache.load_model(verbose=False, **arguments)
    assert not list(tmp_path.iterdir())


def write_head(path, arch="llama", **changes):
    """Only what a LogitLens reads: 2 values per hidden state, 3 tokens; `changes` by tensor name, None: left out."""
    tensors = {
        "token_embd.weight": np.array([[9, 9], [0, 0], [0, 0]], np.float32),
        "output_norm.weight": np.array([2, 1], np.float32),
        "output.weight": np.array([[1, 0], [0, 1], [-1, -1]], np.float32),
    } | {name.replace("__", "."): value for name, value in changes.items()}
    writer = gguf.GGUFWriter(path, arch)
    writer.add_layer_norm_rms_eps(0.5)
    for name, value in tensors.items():
        if value is not None:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_model(path)


def test_lens_by_hand(tmp_path):
    """x = (1, 2): mean square 2.5, with epsilon 3, so x / sqrt(3) * (2, 1) = (2, 2) / sqrt(3): tokens 0 and 1 tie."""
    lens = LogitLens(write_head(tmp_path / "m.gguf"))
    hidden = np.array([[1, 2], [1, 3], [-5, 0]], np.float32)
    root = np.sqrt(3)
    np.testing.assert_allclose(lens.logits(hidden)[0], [2 / root, 2 / root, -4 / root], rtol=1e-6)
    assert lens.top1(hidden).tolist() == [0, 1, 2]


def test_a_tied_head_is_the_embedding(tmp_path):
    lens = LogitLens(write_head(tmp_path / "m.gguf", output__weight=None))
    assert lens.top1(np.array([[1, 1], [-1, -1]], np.float32)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"arch": "dbrx"},
            "it is not known how the architecture dbrx makes logits of a hidden state. Known are: afmoe",
        ),
        ({"output_norm__bias": np.zeros(2, np.float32)}, "has output_norm.bias"),
        ({"output__bias": np.zeros(3, np.float32)}, "has output.bias"),
        ({"output_norm__weight": None}, "lacks the epsilon or weight of its final norm"),
        ({"output__weight": None, "token_embd__weight": None}, "or its LM head"),
    ],
)
def test_models_that_are_refused(tmp_path, changes, words):
    with pytest.raises(errors.ConfigError, match=words):
        LogitLens(write_head(tmp_path / "m.gguf", **changes))


def test_families_of_the_tests_are_known():
    assert {family.arch for family in FAMILIES.values()} <= ARCHITECTURES
