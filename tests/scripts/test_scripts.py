"""The scripts: each has help with examples, and the helpers do what their messages say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"


@pytest.fixture
def helpers(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("GGML_MOECACHE_HOME", "/cache")


@pytest.mark.parametrize("name", ["setup", "demo", "test", "check", "bench", "record_traces", "decide", "strategies"])
def test_help(name):
    result = subprocess.run([SCRIPTS / name, "--help"], capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert result.stdout.startswith(f"usage: scripts/{name}")
    assert "examples:" in result.stdout


@pytest.mark.parametrize("name", ["fetch_llama_cpp.py", "build_llama_cpp.py"])
def test_help_of_helpers(name):
    result = subprocess.run([sys.executable, SCRIPTS / name, "--help"], capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert f"python scripts/{name}" in result.stdout


@pytest.mark.usefixtures("helpers")
def test_cache_home(monkeypatch):
    import fetch_llama_cpp

    assert fetch_llama_cpp.cache_home() == Path("/cache")
    monkeypatch.delenv("GGML_MOECACHE_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert fetch_llama_cpp.cache_home() == Path("/xdg/ggml-moecache")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/user")
    assert fetch_llama_cpp.cache_home() == Path("/home/user/.cache/ggml-moecache")


def test_fetch_without_a_network(tmp_path):
    """Nothing listens on the port: one error that says what to do, and nothing left behind but the lock."""
    environment = {
        **os.environ,
        "GGML_MOECACHE_HOME": str(tmp_path),
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull,
    }
    command = [sys.executable, SCRIPTS / "fetch_llama_cpp.py"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    assert "error: pip could not download llama-cpp-python 0.3.36" in result.stderr
    assert "set LLAMA_CPP_DIR" in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == [".fetch.lock"]


@pytest.mark.usefixtures("helpers")
def test_fetch_does_not_touch_what_it_did_not_make(tmp_path):
    import fetch_llama_cpp

    (tmp_path / "llama_cpp_python-0.3.36").mkdir()
    with pytest.raises(SystemExit, match="exists but is not the unpacked sdist; remove it"):
        fetch_llama_cpp.fetch(tmp_path)


@pytest.mark.usefixtures("helpers")
def test_build_folders():
    """The default has a readable name; each other source or set of flags has a folder of its own."""
    import build_llama_cpp

    pinned = Path("/cache/llama_cpp_python-0.3.36/vendor/llama.cpp")
    assert build_llama_cpp.build_name(pinned, []) == "llama-0.3.36-portable"
    names = [
        build_llama_cpp.build_name(pinned, ["-DGGML_NATIVE=ON"]),
        build_llama_cpp.build_name(pinned, ["-DGGML_CUDA=ON"]),
        build_llama_cpp.build_name(Path("/own"), []),
        build_llama_cpp.build_name(Path("/other"), []),
    ]
    assert len(set(names)) == 4
    assert [name[:13] for name in names] == ["llama-0.3.36-", "llama-0.3.36-", "llama-own-" + names[2][10:13],
                                             "llama-own-" + names[3][10:13]]  # fmt: skip


@pytest.mark.usefixtures("helpers")
def test_build_refuses_another_folder(tmp_path):
    import build_llama_cpp

    with pytest.raises(SystemExit, match=r"is not a llama\.cpp source checkout"):
        build_llama_cpp.build_llama_cpp(tmp_path, [])


@pytest.mark.usefixtures("helpers")
def test_failing_build_shows_its_end_and_names_its_log(tmp_path):
    import build_llama_cpp

    log = tmp_path / "log"
    code = "print('the cause'); raise SystemExit(3)"
    with pytest.raises(SystemExit, match=r"the cause\nerror: .* failed; the whole log is .*log"):
        build_llama_cpp.run_with_progress([sys.executable, "-c", code], log)


@pytest.mark.usefixtures("helpers")
def test_size_limits():
    import check_file_sizes

    names = {
        "ggml_moecache/core/status.cpp": 500,
        "ggml_moecache/core/policies/lru.cpp": 200,
        "tests/core/test-lru.cpp": 700,
        "scripts/setup": 40,
        "README.md": None,
    }
    assert {name: check_file_sizes.limit(Path(name)) for name in names} == names


@pytest.mark.usefixtures("helpers")
def test_the_results_of_strategies_are_their_report_without_times(tmp_path):
    import json

    import strategies_results

    report, out = tmp_path / "report", tmp_path / "out"
    report.mkdir()
    points = [{"held out": "a", "hit rate": 1 / 3, "least": "off"}, {"held out": "a", "hit rate": None, "least": 0.4}]
    study = {"command": "moecache study strategies", "seconds": 7, "tables": {"points": points, "empty": []}}
    (report / "study.json").write_text(json.dumps(study))
    plots = "## Time per token against capacity"
    parts = ["# V", plots, "## Every replay", "rows", "## Operating regime", "- a: 0.5", "## Time and memory", "7 s"]
    (report / "README.md").write_text("\n\n".join(parts))
    strategies_results.main(report, out)
    assert json.loads((out / "strategies.json").read_text()) == {
        "command": "moecache study strategies",
        "tables": {
            "points": {
                "held out": {"names": ["a"], "of": [0, 0]},
                "hit rate": [0.33333, None],
                "least": ["off", 0.4],
            },
            "empty": {},
        },
    }
    text = (out / "README.md").read_text()
    assert text.startswith("# V\n\n## Operating regime\n\n- a: 0.5\n\nEvery replay, by capacity")
