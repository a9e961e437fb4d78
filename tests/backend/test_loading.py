"""The plugin is loaded, or refused with one line, by stock programs and in any order (DESIGN 2b.10, 2b.14)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.environment import Build, process_environment, reference_device
from tests.models.tokenizer import embedded_model

GGML_VERSION = b"0.25.3\0"


def complete(
    build: Build, environment: dict[str, str], *options: str, model: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Four tokens through stock llama-completion; no repacked weights, whose AMX code some virtual machines refuse."""
    command = [build.llama_bin / "llama-completion", "-m", model or embedded_model(), "-p", "SQLite is", "-n", "4"]
    command += ["-no-cnv", "--temp", "0", "--no-repack", *options]
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )


WITHOUT_DEVICES = {"GGML_MOECACHE_STANDIN": "0", "CUDA_VISIBLE_DEVICES": "-1"}


def our_lines(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Our log lines without llama.cpp's time and level."""
    return [match[0] for match in re.finditer(r"moecache: .*", result.stderr)]


def with_plugin(build: Build, capacity: str = "0", **extra: str) -> dict[str, str]:
    return process_environment(build, capacity=capacity, extra={"GGML_BACKEND_PATH": str(build.plugin), **extra})


def test_status_and_exit_line_and_file(build: Build, tmp_path: Path) -> None:
    """One line when the cache is known, one at exit, the same figures in the file."""
    status = tmp_path / "status.json"
    result = complete(build, with_plugin(build, GGML_MOECACHE_STATUS=str(status)), "--device", "MoECache0")
    assert result.returncode == 0, result.stderr
    active, at_exit = our_lines(result)
    assert active.startswith("moecache: active: 0 of 1024 experts (0 %) in 0.0 MiB on MoECache0 over ")
    assert at_exit.startswith("moecache: exit: 0 hits, ")
    report = json.loads(status.read_text())
    (context,) = report["contexts"]
    assert context["state"] == "active"
    assert (context["n_experts"], context["n_layers"]) == (8 * 128, 8)
    assert context["store_bytes"] == 8 * 128 * 3 * (256 * 32 // 32) * 18  # layers, experts, weights, blocks of Q4_0
    assert context["n_misses"] == 8 * context["n_events"]  # top-8
    assert f"{context['n_misses']} misses" in at_exit


def test_another_ggml_version_is_refused_and_the_program_goes_on(build: Build, tmp_path: Path) -> None:
    """The version that the library was compiled for is a string in it; another one there is another library."""
    contents = build.plugin.read_bytes()
    assert GGML_VERSION in contents
    other = tmp_path / "libggml-moecache.so"
    other.write_bytes(contents.replace(GGML_VERSION, b"0.24.9\0"))
    environment = with_plugin(build, MOECACHE_REQUIRE="") | {"GGML_BACKEND_PATH": str(other)}
    result = complete(build, environment)
    assert result.returncode == 0, result.stderr
    (line,) = our_lines(result)
    assert line.startswith("moecache: inactive: ggml_version: the program uses ggml 0.25.3, ")
    assert "compiled for ggml 0.24.9" in line


def test_without_gpu_and_stand_in_nothing_is_registered(build: Build) -> None:
    """One line with the reason; the program goes on."""
    result = complete(build, with_plugin(build, MOECACHE_REQUIRE="", **WITHOUT_DEVICES))
    assert result.returncode == 0, result.stderr
    (line,) = our_lines(result)
    assert line.startswith("moecache: inactive: no_gpu: ")


@pytest.mark.parametrize("program", ["llama-completion", "llama-bench"])
def test_nonsense_capacity_ends_the_program(build: Build, program: str) -> None:
    """One line that names variable, rule and value; the device does not exist then."""
    command = [build.llama_bin / program, "-m", embedded_model(), "--device", "MoECache0", "-n", "4"]
    environment = with_plugin(build, "120%", MOECACHE_REQUIRE="")
    result = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode != 0
    (line,) = our_lines(result)
    assert "GGML_MOECACHE_CAPACITY must be a number of experts, a share like 25%, a size like 2GiB" in line
    assert "Got '120%' instead." in line


def test_a_library_that_was_never_used_says_so(build: Build) -> None:
    """Loaded, but the model ran elsewhere: nobody should believe in a cache then."""
    result = complete(build, with_plugin(build, MOECACHE_REQUIRE=""), "--device", "none")
    assert result.returncode == 0, result.stderr
    assert [line.split(" ")[1:3] for line in our_lines(result)] == [["inactive:", "never_used:"]]


def test_an_unwritable_status_file_is_one_error_and_the_model_runs(build: Build) -> None:
    environment = with_plugin(build, GGML_MOECACHE_STATUS="/nonexistent-folder/status.json", MOECACHE_REQUIRE="")
    result = complete(build, environment, "--device", "MoECache0")
    assert result.returncode == 0, result.stderr
    (error,) = [line for line in our_lines(result) if "status_file" in line]
    what = "moecache: status_file: cannot write /nonexistent-folder/status.json: No such file or directory - "
    assert error.startswith(what)


ON_DEVICE = ("--device", "MoECache0")
# What is wrong: capacity, further settings ({tmp}: a folder), options, the reason, and whether a context can tell.
FALLBACKS = {
    "the status file": ("25%", {"GGML_MOECACHE_STATUS": "{tmp}/none/status.json"}, ON_DEVICE, "status_file", True),
    "a folder of a state": ("25%", {"GGML_MOECACHE_STATE_OUT": "{tmp}/none/state.json"}, ON_DEVICE, "state_out", True),
    "a state that is a folder": ("25%", {"GGML_MOECACHE_STATE_OUT": "{tmp}"}, ON_DEVICE, "state_out", True),
    "a state without a cache": ("0", {"GGML_MOECACHE_STATE_OUT": "{tmp}/state.json"}, ON_DEVICE, "state_out", True),
    "a state to start from": ("25%", {"GGML_MOECACHE_STATE_IN": "{tmp}/none.json"}, ON_DEVICE, "state_in", True),
    "a folder of a log": ("25%", {"GGML_MOECACHE_LOG": "/dev/null/log"}, ON_DEVICE, "log_file", True),
    "a full ring": (
        "25%",
        {"GGML_MOECACHE_LOG": "{tmp}/log", "GGML_MOECACHE_LOG_RING_EVENTS": "64"},
        (*ON_DEVICE, "-p", "SQLite is a library " * 40),
        "log_full",
        True,
    ),
    "no room for a slot": ("1KiB", {}, ON_DEVICE, "no_cache", True),
    "another device": ("25%", {}, ("--device", "none"), "never_used", False),
    "no layer on the device": ("25%", {}, (*ON_DEVICE, "-ngl", "0"), "never_used", False),
    "no room for a layer": ("25%", {"GGML_MOECACHE_DEVICE_MIB": "1"}, (*ON_DEVICE, "-fitt", "1"), "never_used", False),
    "a setting": ("120%", {}, (), "bad_config", False),
    "a misspelt setting": ("25%", {"GGML_MOECACHE_POLICI": "lru"}, ON_DEVICE, "GGML_MOECACHE_POLICI is set", False),
    "no device": ("25%", WITHOUT_DEVICES, (), "no_gpu", False),
}


@pytest.mark.parametrize("what", FALLBACKS)
def test_every_fallback_is_an_error_when_the_cache_is_required(build: Build, tmp_path: Path, what: str) -> None:
    """Without MOECACHE_REQUIRE=1 the program ends well and the reason is said; with it neither it nor its exit line
    claims that the cache was never used when that is not the reason."""
    if reference_device() is not None and what == "no room for a layer":
        pytest.skip("a GPU's driver takes more than the 1 MiB of this device for itself")
    capacity, settings, options, reason, has_context = FALLBACKS[what]
    for required in (False, True):
        folder = tmp_path / str(required)
        folder.mkdir()
        extra = {name: value.replace("{tmp}", str(folder)) for name, value in settings.items()}
        extra["MOECACHE_REQUIRE"] = "1" if required else ""
        result = complete(build, with_plugin(build, capacity, **extra), *options)
        lines = our_lines(result)
        assert (result.returncode != 0) == required, result.stderr
        assert any(reason in line for line in lines), lines
        assert reason == "never_used" or not any("never_used" in line for line in lines)
        if required and has_context:
            assert any(line.startswith(f"moecache: MOECACHE_REQUIRE=1: {reason}: ") for line in lines), lines
            assert sum(line.startswith("moecache: exit: ") for line in lines) == 1
        if required:
            assert lines[-1] == "moecache: MOECACHE_REQUIRE=1: the process ends with status 1"
        if reason != "log_full":
            assert sum(reason in line for line in lines) == 1, lines


def test_what_has_no_use_without_experts_is_said_and_no_error(build: Build, tmp_path: Path) -> None:
    """All experts elsewhere by --cpu-moe, yet a state and a log are named; a dense draft model is such a context."""
    named = {"GGML_MOECACHE_STATE_OUT": str(tmp_path / "state.json"), "GGML_MOECACHE_LOG": str(tmp_path / "log")}
    result = complete(build, with_plugin(build, "25%", **named), *ON_DEVICE, "--cpu-moe")
    assert result.returncode == 0, result.stderr
    unused = [line.partition("nothing for ")[2] for line in our_lines(result) if "has no experts here" in line]
    assert unused == [f"{name} ({path})" for name, path in named.items()]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", ["llama-perplexity", "llama-cli", "llama-bench"])
def test_programs_that_do_not_care_or_tell(build: Build, tmp_path: Path, program: str) -> None:
    """They ignore that a decode failed, or keep the log quiet: the line is on stderr, the status is 1 if required."""
    text = tmp_path / "text"
    text.write_text("SQLite is a library that implements a small and fast database. " * 40)
    options = {
        "llama-perplexity": ["-f", str(text), "-c", "64"],
        "llama-cli": ["-p", "SQLite is", "-n", "4", "-st", "--no-repack"],
        "llama-bench": ["-p", "8", "-n", "0", "-r", "1"],
    }[program]
    for required in ("", "1"):
        result = subprocess.run(
            [build.llama_bin / program, "-m", embedded_model(), "--device", "MoECache0", *options],
            env=with_plugin(build, "1025", MOECACHE_REQUIRE=required),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == int(required or 0), result.stderr
        (line,) = [line for line in our_lines(result) if "no_cache" in line]
        assert line.startswith(
            "moecache: MOECACHE_REQUIRE=1: no_cache: " if required else "moecache: inactive: no_cache: "
        )


def test_the_first_reason_is_the_one_that_is_kept(build: Build, tmp_path: Path) -> None:
    """Capacity auto and one graph: neither state can be had, and the context's reason is the first."""
    status = tmp_path / "status.json"
    named = {"GGML_MOECACHE_STATE_IN": str(tmp_path / "in"), "GGML_MOECACHE_STATE_OUT": str(tmp_path / "out")}
    environment = with_plugin(build, "auto", GGML_MOECACHE_STATUS=str(status), **named)
    result = complete(build, environment, *ON_DEVICE, "-p", "a", "-n", "1", "--no-warmup")
    assert result.returncode == 1, result.stderr
    (context,) = json.loads(status.read_text())["contexts"]
    assert (context["state"], context["reason"]) == ("inactive", "state_in")
    assert context["fallbacks"] == ["state_in", "state_out"]


def test_the_status_file_is_never_of_an_earlier_run(build: Build, tmp_path: Path) -> None:
    """A process that cannot use the library, or does not, says so there."""
    status = tmp_path / "status.json"
    for options, capacity, reason in (
        (ON_DEVICE, "25%", "none"),
        (("--device", "none"), "25%", "never_used"),
        ((), "120%", "bad_config"),
    ):
        named = {"GGML_MOECACHE_STATUS": str(status), "MOECACHE_REQUIRE": ""}
        result = complete(build, with_plugin(build, capacity, **named), *options)
        assert result.returncode == 0, result.stderr
        report = json.loads(status.read_text())
        assert report["reason"] == reason
        assert [context["state"] for context in report["contexts"]] == (["active"] if reason == "none" else [])
        assert (reason == "bad_config") == ("Got '120%' instead" in report["detail"])


def test_no_room_for_all(build: Build, tmp_path: Path) -> None:
    """Too small a device: one reason, the model runs on; under MOECACHE_REQUIRE=1 the computation ends."""
    if reference_device() is not None:
        pytest.skip("a GPU's driver takes more than the 8 MiB of this device for itself")
    status = tmp_path / "status.json"
    options = ("--device", "MoECache0", "-fitt", "1", "-c", "512", "-b", "64", "-ub", "64")
    settings = {"GGML_MOECACHE_DEVICE_MIB": "8", "GGML_MOECACHE_STATUS": str(status)}
    result = complete(build, with_plugin(build, "all", MOECACHE_REQUIRE="0", **settings), *options)
    assert result.returncode == 0, result.stderr
    assert our_lines(result)[0].startswith("moecache: inactive: no_room: 13.5 MiB of experts do not fit on MoECache0 (")
    (context,) = json.loads(status.read_text())["contexts"]
    assert (context["state"], context["reason"], context["fallbacks"]) == ("inactive", "no_room", ["no_room"])
    assert context["n_hits"] == 0
    assert context["n_misses"] > 0
    required = complete(build, with_plugin(build, "all", MOECACHE_REQUIRE="1", **settings), *options)
    assert required.returncode != 0
    assert any(line.startswith("moecache: MOECACHE_REQUIRE=1: no_room: ") for line in our_lines(required))


LOADED_FIRST = """
import ctypes, sys
folder, plugin = sys.argv[1:]
ggml = ctypes.CDLL(folder + "/libggml.so.0")
ggml.ggml_backend_load.restype = ctypes.c_void_p
ggml.ggml_backend_dev_by_name.restype = ctypes.c_void_p
first = ggml.ggml_backend_load(plugin.encode())
ggml.ggml_backend_load_all_from_path(folder.encode())
second = ggml.ggml_backend_load(plugin.encode())
third = ggml.ggml_backend_load(plugin.encode())
found = ggml.ggml_backend_dev_by_name(b"MoECache0")
print(bool(first), bool(second), second == third, bool(found))
"""


def test_loaded_before_any_device_it_can_be_loaded_again(build: Build) -> None:
    """GGML enumerates a registry once: an empty one would hide the devices for ever."""
    result = subprocess.run(
        [sys.executable, "-c", LOADED_FIRST, str(build.llama_bin), str(build.plugin)],
        env=process_environment(build, capacity="0", extra={"MOECACHE_REQUIRE": ""}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.stdout.split() == ["False", "True", "True", "True"], result.stderr
    assert result.stderr.count("inactive: no_gpu") == 1


def test_the_library_needs_only_the_loaded_ggml(build: Build) -> None:
    """Loading it alone fails on a missing library, not on a path of the machine it was built on."""
    environment = {k: v for k, v in process_environment(build, capacity="0").items() if k != "LD_LIBRARY_PATH"}
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    result = subprocess.run(
        [sys.executable, "-c", code, str(build.plugin)], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode != 0
    assert re.search(r"libggml(-base)?\.so\.0: cannot open shared object file", result.stderr), result.stderr
