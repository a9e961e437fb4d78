"""`moecache trace` as a program: results, notes, exit statuses, and files that are whole or not there."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyanalysis import cli
from tests.pyanalysis.traces import logs


@pytest.fixture
def trace(capsys, monkeypatch, tmp_path):
    """Run `moecache trace ...` in tmp_path; returns (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["moecache", "trace", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out = capsys.readouterr()
        return ended.value.code, out.out, out.err

    return run


@pytest.fixture
def log(tmp_path):
    """The base log in tmp_path/log."""
    return logs.write(tmp_path / "log", logs.base_log())


@pytest.mark.usefixtures("log")
def test_show(trace):
    status, out, err = trace("show", "log")
    assert (status, err) == (0, "")
    assert out.startswith("log       log/routing.jsonl (run run-1, context 0)\n")
    assert "    1       5        4 of 5  0.40    62.5%  2 (40.0%)" in out


@pytest.mark.usefixtures("log")
def test_the_name_of_a_folder_is_no_file(trace, tmp_path):
    status, out, err = trace("convert", "log", "out.parquet/")
    assert (status, out) == (2, "")
    assert err.startswith("moecache: error: 'out.parquet/' is the name of a folder, and a file is to be written")
    assert trace("convert", "log", "copy/")[0] == 0  # without suffix it is a folder, with the slash or without
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "log"]


@pytest.mark.usefixtures("log")
def test_show_as_json(trace):
    status, out, _ = trace("show", "log/routing.jsonl", "--json", "--top", "1")
    [summary] = json.loads(out)
    assert status == 0
    assert summary["n_tokens"] == 5
    assert summary["overlap"] == pytest.approx(4.5 / 8)
    assert summary["layers"][0]["top_experts"] == [[0, 0.4]]


def test_show_of_a_directory_shows_every_log(trace, log):
    other = [{**r, "context_id": 1} for r in logs.base_log()]
    (log.parent / "routing-1.jsonl").write_text(logs.text_of(other))
    _, out, _ = trace("show", "log", "--json")
    assert [summary["context_id"] for summary in json.loads(out)] == [0, 1]
    _, out, _ = trace("show", "log")
    assert "log/routing-1.jsonl" in out


@pytest.mark.usefixtures("log")
def test_check_of_a_valid_log(trace):
    assert trace("check", "log") == (0, "log/routing.jsonl: valid, 10 events\n", "")
    status, out, _ = trace("check", "log", "--json")
    assert status == 0
    assert json.loads(out)["valid"]


def test_check_of_a_bad_log(trace, log):
    log.write_text(log.read_text().replace("[3,2]", "[3,9]").replace('"batch_id":1', '"batch_id":null', 1))
    status, out, err = trace("check", "log")
    assert (status, err) == (1, "")
    assert out.splitlines() == [
        "log/routing.jsonl:7: batch_id must be a whole number of at least -1, got null",
        "log/routing.jsonl:11: the end record counts 10 events, the file has 9",
        "log/routing.jsonl:6: expert id 9 is out of range: layer 1 has 5 experts",
        "log/routing.jsonl:9: expert id 9 is out of range: layer 0 has 5 experts",
        "log/routing.jsonl:8: missing layers: request 0, token 3 has no event of layer 0",
    ]
    status, out, _ = trace("check", "log", "--json")
    assert status == 1
    assert [p["line"] for p in json.loads(out)["problems"]] == [7, 11, 6, 9, 8]


def test_check_of_many_problems_says_how_many(trace, log):
    log.write_text("x\n" * 25)
    status, out, _ = trace("check", "log")
    assert status == 1
    assert out.count("not JSON") == 20
    assert "... and 6 problems more; --json lists all of them" in out  # 25 lines, and that the log is empty


def test_check_of_an_unreadable_log(trace, log):
    (log.parent / "run.json").write_text("[]")
    status, out, _ = trace("check", "log")
    assert (status, out) == (1, "log/run.json: not a run.json: it must be one JSON object\n")


def test_check_notes_a_killed_process(trace, log):
    log.write_text(logs.text_of(logs.base_events()) + '{"type"')
    status, out, _ = trace("check", "log")
    assert status == 0
    assert "log/routing.jsonl: note: line 11 is cut off and left out\n" in out
    assert "log/routing.jsonl: valid, 10 events" in out


def test_check_compares_the_layers_of_a_directory_with_run_json(trace, log):
    (log.parent / "run.json").write_text(json.dumps(logs.run_json(moe_layers=[0, 2])))
    status, out, _ = trace("check", "log")
    assert status == 1
    assert "missing layers: no event of layer 2 of run.json's moe_layers" in out
    assert "events of layer 1, which run.json's moe_layers does not have" in out
    # An event that is known to be lost may have been its layer's only one.
    (log.parent / "run.json").write_text(json.dumps(logs.run_json(moe_layers=[0, 1, 2])))
    log.write_text(logs.text_of([*logs.base_events(), logs.overflow(2, 1), logs.end(10, 1)]))
    assert trace("check", "log")[0] == 0
    log.write_text(logs.text_of(logs.base_log()))
    assert trace("check", "log")[0] == 1
    # With the second device's log beside it the layers are complete.
    (log.parent / "run.json").write_text(json.dumps(logs.run_json(moe_layers=[0, 1, 2])))
    other = [{**r, "context_id": 1, **({"layer_id": 2} if "layer_id" in r else {})} for r in logs.base_log()]
    other = [r for i, r in enumerate(other) if i in (0, 1, 2, 6, 8)]
    (log.parent / "routing-1.jsonl").write_text(logs.text_of([*other, logs.end(5, context_id=1)]))
    assert trace("check", "log")[0] == 0


def test_convert_there_and_back(trace, log):
    assert trace("convert", "log", "a.parquet") == (0, "", "")
    assert trace("convert", "a.parquet", "b.jsonl") == (0, "", "")
    assert trace("convert", "b.jsonl", "c.npz") == (0, "", "")
    assert trace("convert", "c.npz", "back") == (0, "", "")
    assert Path("back/routing.jsonl").read_bytes() == log.read_bytes()
    assert json.loads(Path("b.run.json").read_text()) == logs.run_json()
    assert sorted(p.name for p in Path().iterdir()) == ["a.parquet", "b.jsonl", "b.run.json", "back", "c.npz", "log"]


@pytest.mark.usefixtures("log")
def test_cut_merge_shuffle(trace):
    assert trace("cut", "log", "a.parquet", "--tokens", ":3") == (0, "", "")
    assert trace("cut", "log", "b.parquet", "--tokens", "3:", "--layers", "0,1:5", "--requests", "0") == (0, "", "")
    assert trace("merge", "a.parquet", "b.parquet", "c.parquet") == (0, "", "")
    assert trace("shuffle", "c.parquet", "d", "--seed", "7") == (0, "", "")
    status, out, _ = trace("check", "d")
    assert (status, out) == (0, "d/routing.jsonl: valid, 10 events\n")


def test_notes_of_the_source_go_to_stderr(trace, log):
    log.write_text(logs.text_of(logs.base_events()))
    status, out, err = trace("convert", "log", "a.parquet")
    assert (status, out) == (0, "")
    assert err == "moecache: note: no end record: the process was killed or still runs, or the disk was full\n"


@pytest.mark.usefixtures("log")
def test_existing_file_is_kept_unless_forced(trace):
    target = Path("a.parquet")
    target.write_text("mine")
    status, _, err = trace("convert", "log", "a.parquet")
    assert status == 2
    assert err == (
        "moecache: error: a.parquet: exists already; name another file, or say --force to replace it\n"
    )  # fmt: skip
    assert target.read_text() == "mine"
    assert trace("convert", "log", "a.parquet", "--force")[0] == 0
    assert trace("check", "a.parquet")[0] == 0


@pytest.mark.parametrize("target", ["out.jsonl", "out.parquet", "out.npz", "out"])
@pytest.mark.parametrize("tool", ["convert", "shuffle"])
def test_nothing_is_left_of_a_failed_run(trace, log, target, tool):
    log.write_text(log.read_text().replace('"phase":"decode"', '"phase":"x"', 1))
    options = ["--seed", "1"] if tool == "shuffle" else []
    status, out, err = trace(tool, "log", target, *options)
    assert (status, out) == (2, "")
    assert err == 'moecache: error: log/routing.jsonl:7: phase must be "prefill" or "decode", got "x"\n'
    assert [p.name for p in Path().iterdir()] == ["log"]


def with_ids(layer, ids):
    """The base log, the ids of token 3 in `layer` replaced."""
    return [
        {**r, "expert_ids": ids} if (r.get("token_index"), r.get("layer_id")) == (3, layer) else r
        for r in logs.base_log()
    ]


BAD_EVENTS = {
    "range": (with_ids(1, [0, 5]), "log/routing.jsonl:8: expert id 5 is out of range: layer 1 has 5 experts"),
    "repeated": (with_ids(0, [1, 1]), "log/routing.jsonl:7: expert id 1 is repeated in the event"),
    "count": (with_ids(0, [1]), "log/routing.jsonl:7: router_weights has 2 entries, expert_ids has 1"),
    "missing": ([r for r in logs.base_events() if (r["token_index"], r["layer_id"]) != (3, 1)] + [logs.end(9)],
                "log/routing.jsonl:7: missing layers: request 0, token 3 has no event of layer 1"),
    "run": ([{**r, "run_id": "run-2"} for r in logs.base_log()],
            "log/routing.jsonl: run_id is 'run-2', run.json's is 'run-1'"),
}  # fmt: skip


@pytest.mark.parametrize("tool", ["show", "convert", "cut", "shuffle", "merge"])
@pytest.mark.parametrize(("content", "message"), BAD_EVENTS.values(), ids=BAD_EVENTS.keys())
def test_every_tool_refuses_what_show_refuses(trace, tmp_path, tool, content, message):
    """Also where the events in question would not be among those that are kept."""
    logs.write(tmp_path / "log", content)
    options = {"show": [], "convert": ["out"], "cut": ["out", "--tokens", ":2"], "shuffle": ["out", "--seed", "1"]}
    logs.write(tmp_path / "other", logs.base_log())
    status, out, err = trace(tool, "log", *options.get(tool, ["other", "out"]))
    assert (status, out) == (2, "")
    assert err.startswith(f"moecache: error: {message}")
    assert err.count("\n") == 1
    assert sorted(p.name for p in Path().iterdir()) == ["log", "other"]


@pytest.mark.parametrize("target", ["out.jsonl", "out.parquet", "out.npz", "out", "there"])
@pytest.mark.parametrize("tool", ["convert", "cut", "shuffle", "merge"])
def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path, tool, target):
    """A limit on the length of files stands for a disk with room for 500 bytes."""
    logs.write(tmp_path / "log", logs.base_log())
    logs.write(
        tmp_path / "b", [{**r, "run_id": "run-2"} for r in logs.base_log()], {**logs.run_json(), "run_id": "run-2"}
    )
    (tmp_path / "there").mkdir()
    before = sorted(tmp_path.rglob("*"))
    options = {"cut": ["--tokens", ":4"], "shuffle": ["--seed", "1"]}
    sources = ["log", "b"] if tool == "merge" else ["log"]
    result = limited(tmp_path, 500, tool, *sources, target, *options.get(tool, []))
    file = target if "." in target else f"{target}/routing.jsonl"
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"moecache: error: {file}: cannot be written: File too large\n"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("target", ["out.jsonl", "out"])
def test_a_disk_without_room_for_run_json(tmp_path, target):
    logs.write(tmp_path / "log", logs.base_log(), {**logs.run_json(), "benchmark": "x" * 20000})
    result = limited(tmp_path, 15000, "convert", "log", target)
    file = target if "." in target else f"{target}/routing.jsonl"
    assert result.returncode == 2
    assert result.stderr == f"moecache: error: {file}: cannot be written: File too large\n"
    assert [p.name for p in tmp_path.iterdir()] == ["log"]


def limited(folder, n_bytes, *arguments):
    """`moecache trace` in `folder`, which may write files of `n_bytes` at most."""
    return subprocess.run(
        [Path(sys.executable).with_name("moecache"), "trace", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes)),
    )


BAD_ARGUMENTS = {
    "missing": (["show", "nowhere"], "nowhere: does not exist"),
    "no_log": (["show", "."], ".: holds no routing.jsonl; name a directory"),
    "top": (["show", "log", "--top", "0"], "--top must be a whole number of at least 1, got 0"),
    "suffix": (["convert", "log", "a.txt"],
               "a.txt: has no suffix of a trace format that can be written (.jsonl, .parquet, .npz)"),
    "folder_missing": (["convert", "log", "/proc/none/a.npz"], "/proc/none/a.npz: cannot be written"),
    "file_as_folder": (["convert", "log", "log/run.json/x"], "log/run.json/x: cannot be written: Not a directory"),
    "parent_missing": (["cut", "log", "a/b.npz", "--layers", "0"],
                       "a/b.npz: cannot be written: the folder a does not exist; make it first"),
    "parent_of_folder_missing": (["convert", "log", "a/b"],
                                 "a/b: cannot be written: the folder a does not exist; make it first"),
    "cut_nothing": (["cut", "log", "a.npz"], "cut needs one of --requests, --tokens, --layers, --phase, --no-weights"),
    "cut_words": (["cut", "log", "a.npz", "--tokens", "x"], "--tokens must be A:B, A:, :B or A with whole numbers"),
    "cut_negative": (["cut", "log", "a.npz", "--tokens=-3:"], "--tokens must be A:B, A:, :B or A"),
    "cut_empty": (["cut", "log", "a.npz", "--requests", "4:4"],
                  "--requests selects nothing: the end 4 is not above the first 4"),
    "cut_open_layers": (["cut", "log", "a.npz", "--layers", "3:"], "--layers must be numbers and ranges A:B by comma"),
    "cut_all_away": (["cut", "log", "a.npz", "--layers", "7"], "log/routing.jsonl: nothing is left"),
    "merge_one": (["merge", "log", "a.npz"], "merge needs at least two logs and the file to write"),
    "seed": (["shuffle", "log", "a.npz", "--seed=-1"], "--seed must be a whole number of at least 0, got -1"),
}  # fmt: skip


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS.keys())
def test_bad_arguments(trace, arguments, message):
    status, out, err = trace(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"moecache: error: {message}")
    assert err.count("\n") == 1
    assert [p.name for p in Path().iterdir()] == ["log"]


@pytest.mark.parametrize("tool", ["", "show", "check", "convert", "cut", "merge", "shuffle"])
@pytest.mark.usefixtures("log")
def test_help_has_an_example_that_works(trace, tool):
    status, out, _ = trace(*filter(None, [tool]), "--help")
    assert status == 0
    both = [r for r in logs.base_log() if r.get("layer_id") != 1]
    logs.write(Path("a"), [*both[:-1], logs.end(5)])
    examples = re.findall(r"^  moecache trace (.*)$", out, re.MULTILINE)
    assert examples
    for example in examples:
        command = shlex.split(example.split("|")[0])
        if "routing-1.jsonl" in example or command[:3] == ["merge", "a", "b"]:
            other = [{**r, "context_id": 1} for r in logs.base_log() if r.get("layer_id") != 0]
            text = logs.text_of([*other[:-1], logs.end(5, context_id=1)])
            logs.write(Path("log"), [*both[:-1], logs.end(5)])
            Path("log/routing-1.jsonl").write_text(text)
            logs.write(Path("b"), text)
        notes = ""
        if "moe-trace.csv" in example:
            Path("moe-trace.csv").write_text("-1,0,1,2\n0,0,127,3\n")
            Path("log").rename("the log")
            notes = "moecache: note: llama-moe-trace records no number of experts, router weights or model: "
        status, _, err = trace(*command)
        assert status == 0, example
        assert err.startswith(notes) if notes else err == "", example
        if "routing-1.jsonl" in example:
            Path("log/routing-1.jsonl").unlink()
        if notes:
            shutil.rmtree("log")
            Path("the log").rename("log")


def test_installed_program_has_all_of_it(log, tmp_path):
    """Run without the checkout in reach: the wheel must hold every module."""
    program = Path(sys.executable).with_name("moecache")
    result = subprocess.run([program, "trace", "check", log], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (result.stdout, result.stderr) == (f"{log}: valid, 10 events\n", "")


def test_progress_is_for_terminals_only(log):
    code = (
        f"import sys; sys.argv = ['moecache', 'trace', 'check', {str(log)!r}]; from pyanalysis.cli import main; main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=logs.ROOT, env={"PATH": ""}
    )
    assert result.stderr == ""


def test_reader_that_leaves_early_is_no_error(log):
    code = (
        f"import sys; sys.argv = ['moecache', 'trace', 'show', {str(log)!r}]; from pyanalysis.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=logs.ROOT
    )
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "status"), [(["check", "log"], 1), (["check", "log", "--json"], 1), (["show", "good"], 0)]
)
def test_exit_status_when_the_reader_has_left(log, tmp_path, arguments, status):
    log.write_text("{}\n" + log.read_text())
    logs.write(tmp_path / "good", logs.base_log())
    reading, writing = os.pipe()
    os.close(reading)
    program = Path(sys.executable).with_name("moecache")
    with os.fdopen(writing, "wb") as nobody:
        result = subprocess.run(
            [program, "trace", *arguments], stdout=nobody, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path
        )
    assert (result.returncode, result.stderr) == (status, "")
