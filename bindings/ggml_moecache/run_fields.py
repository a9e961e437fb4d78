"""What Python knows of a run and the plugin does not: the model's file, and llama-cpp-python's version (run.json)."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import threading
from typing import TYPE_CHECKING

from ggml_moecache.errors import BackendError, ConfigError
from ggml_moecache.routing import run_metadata, set_run_field

if TYPE_CHECKING:
    from pathlib import Path

    from ggml_moecache.gguf_file import ModelFile


def file_sha256(path: Path) -> str:
    """SHA-256 of a whole file, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def check_new_log(folder: Path) -> None:
    """Raise ConfigError if `folder` cannot take a new log: before a model is loaded for nothing.

    A folder that does not exist is made and removed again: the plugin makes it when there is something to write.
    A further context of this process may log into the folder of one before.
    """
    made: list[Path] = []
    try:
        for part in reversed([part for part in (folder, *folder.parents) if not part.exists()]):
            part.mkdir()
            made.append(part)
        is_folder = folder.is_dir()
    except FileExistsError:  # a link to nothing
        is_folder = False
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made for the log: {error.strerror or error}.") from None
    finally:
        for part in reversed(made):
            with contextlib.suppress(OSError):  # another program uses it by now
                part.rmdir()
    if not is_folder:
        raise ConfigError(f"{folder} is a file, not a folder; name another one for the log.")
    if not made and not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be written: name another folder for the log.")
    run = folder / "run.json"
    if (run.exists() or any(folder.glob("routing*.jsonl"))) and not _is_of_this_process(run):
        raise ConfigError(f"{folder} holds the log of another run, which is not overwritten; name another folder.")


def _is_of_this_process(run: Path) -> bool:
    try:
        return bool(json.loads(run.read_text(encoding="utf-8"))["run_id"] == run_metadata()["run_id"])
    except (OSError, ValueError, LookupError, TypeError, BackendError):  # no log of ours, or no plugin here
        return False


def describe_run(file: ModelFile, seed: int | None, top1_every: int | None) -> None:
    """Set the fields of run.json that belong to `file` and to the arguments of load_model.

    The checksum of a large model takes a while, so it is computed beside the run: it is in the file that is written
    when the log is closed, and null there if the model was closed before it was ready.
    """
    set_run_field("model.file", file.path.name)
    set_run_field("model.architecture", file.architecture)
    set_run_field("model.quantization", file.quantization)
    set_run_field("model.n_layers", file.n_layers)
    set_run_field("seed", seed)
    set_run_field("top1_every", top1_every)
    set_run_field("llama_cpp.llama_cpp_python", importlib.metadata.version("llama-cpp-python"))
    set_run_field("model.sha256", None)
    threading.Thread(
        target=lambda: set_run_field("model.sha256", file_sha256(file.path)), name="moecache-sha256", daemon=True
    ).start()
