"""`moecache run`: which options are ours, what is added to llama-completion's command line, and real runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ggml_moecache import embedded_model
from ggml_moecache.errors import ConfigError
from pyanalysis import run

MOECACHE = Path(sys.executable).with_name("moecache")
PROMPT = "SQLite is a library that"


def test_our_options_are_taken_out():
    request = run.parse(["-m", "a.gguf", "-p", "x", "--capacity", "all", "-n", "4", "--show-command"])
    assert request.model == Path("a.gguf")
    assert (request.capacity, request.show_command) == ("all", True)
    assert request.llama_options == ["-p", "x", "-n", "4"]


def test_equals_form():
    request = run.parse(["--model=a=b.gguf", "--capacity=0"])
    assert (request.model, request.capacity) == (Path("a=b.gguf"), "0")


def test_options_that_begin_like_ours_reach_llama_cpp():
    """-mg and -mu begin with -m; a parser that abbreviates would take them for the model."""
    options = ["-mg", "0", "-mu", "http://x", "--model-draft", "d.gguf", "-md", "d.gguf"]
    request = run.parse(options)
    assert request.model is None
    assert request.llama_options == options


@pytest.mark.parametrize("arguments", [["-m"], ["--model"], ["-p", "x", "--capacity"]])
def test_option_without_value(arguments):
    with pytest.raises(ConfigError, match=f"{arguments[-1]} needs a value"):
        run.parse(arguments)


@pytest.mark.parametrize("capacity", ["x", "1.5", "", "ALL", "2GB"])
def test_nonsense_capacity(capacity):
    with pytest.raises(ConfigError) as caught:
        run.parse(["--capacity", capacity])
    rule = "a number of experts, a share like 25%, a size like 2GiB or 512MiB, auto, or all"
    assert str(caught.value) == f"--capacity must be {rule}. Got {capacity!r} instead."


def command(*options: str, help_text: str = "-lm, --load-mode MODE") -> list[str]:
    return run.command_for(run.parse(list(options)), Path("m.gguf"), Path("llama-completion"), help_text)


def test_added_options():
    expected = ["llama-completion", "-m", "m.gguf", "--device", "MoECache0", "-lm", "none", "-no-cnv", "-p", "x"]
    assert command("-p", "x") == expected


def test_older_llama_cpp_has_no_load_mode():
    assert command(help_text="--no-mmap")[5:] == ["--no-mmap", "-no-cnv"]


@pytest.mark.parametrize(
    ("option", "absent"),
    [("-dev", "--device"), ("--device", "MoECache0"), ("--mmap", "-lm"), ("-lm", "none"), ("-cnv", "-no-cnv")],
)
def test_user_decides(option, absent):
    """Options and environment of a kind are added only where the user gave none of that kind."""
    assert absent not in [part for part in command(option, "VALUE") if part != option]


def moecache(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # LLAMA_CPP_LIB_PATH: the import of ggml_moecache has set it in this process.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GGML_", "LLAMA_ARG_", "LLAMA_CPP_LIB_PATH"))}
    return subprocess.run(
        [MOECACHE, *arguments], env={**clean, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("capacity", ["0", "all"])
def test_real_run(tmp_path, capacity):
    """Text on stdout begins with the prompt; the status file says that the device did it, with the asked capacity.

    The log is not looked at: llama.cpp's own logger loses its last lines when a short run ends.
    """
    status_file = tmp_path / "status.json"
    options = ["-p", PROMPT, "-n", "16", "--temp", "0", "--capacity", capacity]
    result = moecache("run", *options, GGML_MOECACHE_STATUS=str(status_file))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(PROMPT)
    assert len(result.stdout) > len(PROMPT) + 20
    active = [c for c in json.loads(status_file.read_text())["contexts"] if c["state"] == "active"]
    assert [(c["capacity"], c["n_experts"]) for c in active] == [(capacity, 1024)]


def test_show_command():
    result = moecache("run", "--show-command", "-p", PROMPT, "-n", "1")
    line = next(line for line in result.stderr.splitlines() if line.startswith("moecache: GGML_BACKEND_PATH="))
    assert f"-m {embedded_model()} --device MoECache0" in line
    assert "'SQLite is a library that'" in line


def test_unknown_llama_option_is_llama_cpp_s_error():
    result = moecache("run", "--no-such-option")
    assert result.returncode != 0
    assert "--no-such-option" in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), (b"text", "is not a GGUF file"), (b"GGUF\3\0\0\0", "is truncated")],
)
def test_bad_model_is_one_line(tmp_path, content, message):
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    result = moecache("run", "-m", str(path), "-p", "x", "-n", "1")
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"moecache: error: {path} {message}")


def test_no_programs(tmp_path):
    """Libraries without programs (a plain llama-cpp-python): the message says where to get them."""
    (tmp_path / "libllama.so").touch()
    result = moecache("run", "-p", "x", "-n", "1", LLAMA_CPP_LIB_PATH=str(tmp_path), PATH=str(tmp_path))
    assert result.returncode == 2
    assert "no llama.cpp programs found" in result.stderr


def test_refusal_of_the_plugin_comes_before_the_run():
    result = moecache("run", "-p", "x", "-n", "1", GGML_MOECACHE_DEVICE_MIB="x")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("moecache: error: the plugin was not loaded: bad_config: GGML_MOECACHE_DEVICE_MIB must")


def test_bad_llama_dir(tmp_path):
    result = moecache("run", "-p", "x", "-n", "1", MOECACHE_LLAMA_DIR=str(tmp_path))
    assert result.returncode == 2
    assert result.stderr.startswith(f"moecache: error: MOECACHE_LLAMA_DIR={tmp_path} holds no libllama.so")
