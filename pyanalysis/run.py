"""`moecache run`: text from llama.cpp's own llama-completion on the MoECache device."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ggml_moecache
from ggml_moecache import _native
from ggml_moecache._probe import devices_of
from ggml_moecache.errors import BackendError, ConfigError, MissingDependencyError
from ggml_moecache.gguf_file import read_model
from ggml_moecache.run_fields import check_new_log, file_sha256
from pyanalysis import run_top1, settings
from pyanalysis.output_path import file_to_write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Options of llama-completion that say the same as ours would; whoever gives one of a group decides for the group.
_DEVICE_OPTIONS = {"-dev", "--device"}
_LOAD_OPTIONS = {
    "-lm",
    "--load-mode",
    "--mmap",
    "--no-mmap",
    "--mlock",
    "-dio",
    "--direct-io",
    "-ndio",
    "--no-direct-io",
}
_CONVERSATION_OPTIONS = {"-cnv", "--conversation", "-no-cnv", "--no-conversation"}
_SEED_OPTIONS = {"-s", "--seed"}
_RANDOM_SEED = 2**32 - 1  # -1
_WARMUP_OPTIONS = {"--warmup", "--no-warmup"}


@dataclass
class RunRequest:
    """The arguments of `moecache run`: its own, and llama.cpp's in their order."""

    model: Path | None = None
    capacity: str | None = None
    policy: str | None = None
    per_layer: bool = False
    state_in: Path | None = None
    state_out: Path | None = None
    warm: Path | None = None
    log: Path | None = None
    top1_every: int | None = None
    show_command: bool = False
    llama_options: list[str] = field(default_factory=list)


def parse(arguments: list[str]) -> RunRequest:
    """Take our options out of `arguments`; all others are llama.cpp's, whose names an argument parser would abbreviate.

    Raises ConfigError for an option without its value and for what is no capacity; the plugin checks the policy.
    """
    request = RunRequest()
    rest = iter(arguments)
    for argument in rest:
        name, equals, inline = argument.partition("=")
        if name in _OWN_OPTIONS and (equals == "" or name.startswith("--")):
            value = inline if equals else next(rest, None)
            if value is None or (value == "" and name != "--capacity"):
                raise ConfigError(f"{name} needs a value")
            attribute, convert = _OWN_OPTIONS[name]
            setattr(request, attribute, convert(value))
        elif argument in _OWN_FLAGS:
            setattr(request, _OWN_FLAGS[argument], True)
        else:
            request.llama_options.append(argument)
    if request.top1_every is not None and (request.log is None or request.show_command):
        need, what = (
            ("needs", "--log DIR") if request.log is None else ("excludes", "--show-command: no program is run")
        )
        raise ConfigError(f"--top1-every {need} {what}")
    if request.warm is not None and request.state_in is not None:
        raise ConfigError("--warm and --state-in are two beginnings of the cache; name one of them")
    return request


def _capacity(value: str) -> str:
    if not _native.is_capacity(value):
        raise ConfigError(f"--capacity must be {_native.capacity_rule}. Got {value!r} instead.")
    return value


def _top1_every(value: str) -> int:
    return _count("--top1-every", value)


# Option: attribute of RunRequest, what makes its value of the text.
_OWN_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "-m": ("model", Path),
    "--model": ("model", Path),
    "--capacity": ("capacity", _capacity),
    "--policy": ("policy", str),
    "--state-in": ("state_in", Path),
    "--state-out": ("state_out", file_to_write),
    "--warm": ("warm", Path),
    "--log": ("log", Path),
    "--top1-every": ("top1_every", _top1_every),
}
_OWN_FLAGS = {"--per-layer": "per_layer", "--show-command": "show_command"}


def _count(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()) or int(value) < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1. Got {value!r} instead.")
    return int(value)


def command_for(request: RunRequest, model: Path, program: Path, help_text: str) -> list[str]:
    """The llama-completion command line; `help_text` is the program's --help, which differs between versions."""
    given = set(request.llama_options)
    command = [str(program), "-m", str(model)]
    if not given & _DEVICE_OPTIONS:
        command += ["--device", "MoECache0"]
    if not given & _LOAD_OPTIONS:
        # Read the weights straight into the store; a memory mapping would keep the experts in the page cache as well.
        command += ["-lm", "none"] if "--load-mode" in help_text else ["--no-mmap"]
    if not given & _CONVERSATION_OPTIONS:
        command.append("-no-cnv")
    if request.log is not None and not given & _WARMUP_OPTIONS:
        command.append("--no-warmup")  # it is a decode like any other and would be the log's first request
    return command + request.llama_options


def environment_for(request: RunRequest, library_dir: Path) -> dict[str, str]:
    """The child's environment: the plugin, the capacity, and the stand-in device on a machine without a GPU.

    Raises BackendError if the plugin would refuse: llama-completion itself would only miss the device.
    """
    environment = dict(os.environ)
    environment["GGML_BACKEND_PATH"] = str(ggml_moecache.backend_path())
    if request.capacity is not None:
        environment["GGML_MOECACHE_CAPACITY"] = request.capacity
    if request.policy is not None:
        environment["GGML_MOECACHE_POLICY"] = request.policy
    if request.per_layer:
        environment["GGML_MOECACHE_PER_LAYER"] = "1"
    for name, path in (("STATE_IN", request.state_in), ("STATE_OUT", request.state_out), ("LOG", request.log)):
        if path is not None:
            environment[f"GGML_MOECACHE_{name}"] = str(path)
    if request.state_in is not None:
        check_state(request.state_in)
    found = devices_of(library_dir, environment)
    if found["refusal"] is not None:
        raise BackendError(found["refusal"], reason=found["reason"])
    if not found["has_gpu"] and not environment.get("GGML_MOECACHE_STANDIN"):
        environment["GGML_MOECACHE_STANDIN"] = "1"
        print("moecache: no GPU found, the CPU stands in for the device", file=sys.stderr)
    if request.log is not None:
        check_new_log(request.log)
    return environment


def check_state(path: Path) -> None:
    """Raises ConfigError if `path` holds no session state."""
    try:
        _native.read_state(str(path))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def warm_up(request: RunRequest, folder: Path) -> None:
    """Replay the trace of --warm at the run's policy and capacity; its state, in `folder`, becomes --state-in.

    Raises ConfigError if the capacity has no session or is auto, or the trace cannot be replayed, TraceError for a
    file that is no trace.
    """
    from pyanalysis.simulation.warm import state_after  # noqa: PLC0415 - it takes long to import
    from pyanalysis.traces import logs_in, read_trace  # noqa: PLC0415

    assert request.warm is not None  # noqa: S101 - the caller has looked
    variables = {variable.name: variable for variable in _native.variables()}

    def in_force(name: str, given: str | None) -> str:
        return given or settings.in_force(variables[name], os.environ)

    capacity = in_force("GGML_MOECACHE_CAPACITY", request.capacity)
    if capacity in ("0", "all", "auto"):
        raise ConfigError(
            "--warm needs a capacity between 0 and all that is known beforehand, such as --capacity 25%. "
            f"Got {capacity!r} instead."
        )
    logs = logs_in(request.warm)
    if len(logs) != 1:
        raise ConfigError(f"--warm is one trace, {request.warm} holds {len(logs)}; name one of its files")
    per_layer = request.per_layer or os.environ.get("GGML_MOECACHE_PER_LAYER") == "1"
    policy = in_force("GGML_MOECACHE_POLICY", request.policy)
    request.state_in = folder / f"state-after-{logs[0].name}.json"  # the plugin's messages name it
    trace = read_trace(logs[0])
    for note in trace.notes:
        print(f"moecache: note: {logs[0]}: {note}", file=sys.stderr)
    state_after(trace, policy, capacity, per_layer=per_layer).write(request.state_in)


def finish_log(folder: Path, model: Path, status: int, seed: int | None = None) -> int:
    """Describe the log of a run that ended with `status`; returns the exit status: 1 where there is no log at all."""
    if (folder / "run.json").is_file():
        describe_log(folder, model, seed)
    elif status == 0:
        print(f"moecache: error: no log was written to {folder}: {_why_no_log(folder)}", file=sys.stderr)
        return 1
    return status


def _why_no_log(folder: Path) -> str:
    """Why there is no run.json: the plugin makes the log first, when the first expert is computed."""
    if any(folder.glob("routing*.jsonl")):
        return "run.json could not be written, the log_file line above says why"
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(4096))
    except OSError as error:
        return f"{there} cannot be written: {error.strerror}"
    return "no expert was computed on the device"


def seed_of(options: Sequence[str]) -> int | None:
    """The seed that llama.cpp's `options` give, None: it is a random one. The last one counts, as 32 bits."""
    seed = None
    for name, value in itertools.pairwise(options):
        if name in _SEED_OPTIONS and (number := re.match(r"\s*[+-]?\d+", value)):
            seed = int(number[0]) % 2**32
    return None if seed == _RANDOM_SEED else seed


def describe_log(folder: Path, model: Path, seed: int | None = None) -> None:
    """Add to run.json what the plugin is not told: the model's file, architecture and checksum, and the seed if any.

    Raises ConfigError if it cannot be written; the run.json that the plugin has written then stays.
    """
    path = folder / "run.json"
    file = read_model(model)
    metadata = json.loads(path.read_text(encoding="utf-8"))
    described = metadata["model"] or {}
    described |= {
        "file": file.path.name,
        "architecture": file.architecture,
        "quantization": file.quantization,
        "n_layers": file.n_layers,
        "sha256": file_sha256(file.path),
    }
    metadata["model"] = described
    if seed is not None:
        metadata["seed"] = seed
    replace_run_json(path, metadata)


def replace_run_json(path: Path, metadata: dict[str, Any]) -> None:
    """Write a run.json anew, as a whole. Raises ConfigError if it cannot be written; the old one then stays."""
    temporary = path.with_name("run.json.tmp")
    try:
        temporary.write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigError(f"{path} could not be completed: {error.strerror}") from None


def program_dir() -> Path:
    """Folder of llama.cpp's stock programs. Raises MissingDependencyError if there is none."""
    folder = ggml_moecache.llama_bin_dir()
    if folder is None:
        raise MissingDependencyError(
            "no llama.cpp programs found (llama-completion). Run scripts/setup, set MOECACHE_LLAMA_DIR to a build of "
            "llama.cpp, or put its programs on PATH; from Python, ggml_moecache.load_model needs none."
        )
    return folder


def prepare(request: RunRequest) -> tuple[list[str], dict[str, str]]:
    """Check the model and return llama-completion's command line and environment. Raises MoeCacheError."""
    model = read_model(request.model or ggml_moecache.embedded_model()).path
    folder = program_dir()
    program = folder / "llama-completion"
    library_dir = next((d for d in (folder, folder.parent / "lib") if (d / "libllama.so").is_file()), folder)
    help_text = subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout
    return command_for(request, model, program, help_text), environment_for(request, library_dir)


def run(arguments: list[str]) -> int:
    """Run llama-completion and return its exit status. Raises MoeCacheError for anything that cannot work."""
    request = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="moecache-warm-") as folder:
        if request.warm is not None:
            warm_up(request, Path(folder))
        return _run(request)


def _run(request: RunRequest) -> int:
    if request.log is not None and request.top1_every is not None:
        cache = {name: getattr(request, name) for name in ("capacity", "policy", "state_in", "state_out")}
        cache["per_layer"] = request.per_layer or None
        status = run_top1.run(request.model, cache, request.log, request.top1_every, request.llama_options)
        return finish_log(request.log, request.model or ggml_moecache.embedded_model(), status)
    command, environment = prepare(request)
    if request.show_command:
        changed = [f"{name}={value}" for name, value in environment.items() if os.environ.get(name) != value]
        print("moecache:", *changed, shlex.join(command), file=sys.stderr)
    status = subprocess.run(command, env=environment, check=False).returncode
    if request.log is not None:
        model = request.model or ggml_moecache.embedded_model()
        return finish_log(request.log, model, status, seed_of(request.llama_options))
    return status
