"""The subcommand `moecache calibrate`: arguments and output."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import ggml_moecache
from ggml_moecache.errors import BackendError, ConfigError
from ggml_moecache.gguf_file import read_model
from pyanalysis.output_path import file_to_write

_DESCRIPTION = """\
Measure what this machine takes for a model's experts, and write it as a cost model of the simulator: CPU time of 1 to
top-k misses by thread count (GGML's kernels on the model's own weights, set up as the plugin does it), GPU time of 1 to
top-k hits, host to device copies by size from pinned and from ordinary memory, and, by llama-bench on the MoECache
device, everything else of a layer. Medians and quartiles are in the file. Nothing else should run meanwhile.

Without a GPU only the CPU is measured: the other costs are null, the file says so, and moecache simulate refuses it."""

_EXAMPLES = """\
examples:
  moecache calibrate
  moecache calibrate -m model.gguf -o my-machine.json
  moecache calibrate -m model.gguf --threads 4,8,16 --repeats 300 -o my-machine.json
  moecache simulate log --policy lru,cumulative-lfu --capacity 10%,25%,50% --cost my-machine.json
"""


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add `calibrate` to the program's subcommands."""
    from pyanalysis.calibrate.calibration import Setup  # noqa: PLC0415 - each command imports only what it needs

    calibrate = commands.add_parser(
        "calibrate",
        help="measure this machine's costs for a model's experts, for moecache simulate --cost",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = calibrate.add_argument
    add("-m", "--model", type=Path, help="GGUF file (default: the small embedded model)")
    add("-o", "--out", metavar="FILE", type=file_to_write, default=Path("cost.json"), help="default: cost.json")
    add("--force", action="store_true", help="replace FILE if it exists")
    add("-t", "--threads", metavar="N[,...]", help="CPU threads to measure (default: 1, 2, 4, ... and all CPUs)")
    add("--repeats", type=int, default=Setup.repeats, help="measurements per figure, at least 4 (default: %(default)s)")
    add(
        "--store-mib",
        metavar="MIB",
        type=int,
        default=Setup.store_mib,
        help="experts to load; should exceed the CPU's last-level cache where the model does (default: %(default)s)",
    )
    add("--json", action="store_true", help="print the cost model instead of the tables")


def run(given: argparse.Namespace) -> int:
    """Measure, write the file, print the tables. Raises MoeCacheError for anything that cannot work."""
    from pyanalysis import cost  # noqa: PLC0415
    from pyanalysis import run as program  # noqa: PLC0415
    from pyanalysis.calibrate import calibration  # noqa: PLC0415
    from pyanalysis.calibrate.ggml import GgmlError  # noqa: PLC0415
    from pyanalysis.calibrate.report import as_text  # noqa: PLC0415
    from pyanalysis.traces.staging import require_writable  # noqa: PLC0415

    for option, least in (("repeats", 4), ("store_mib", 1)):
        if getattr(given, option) < least:
            name = option.replace("_", "-")
            raise ConfigError(
                f"--{name} must be a whole number of at least {least}. Got {getattr(given, option)} instead."
            )
    threads = _threads(given.threads)
    if given.out.exists() and not given.force:
        raise ConfigError(f"{given.out} exists; --force replaces it")
    if given.out.exists() and not given.out.is_file():
        raise ConfigError(f"{given.out} is no regular file; name a file to write")
    require_writable(given.out)
    model = read_model(given.model or ggml_moecache.embedded_model())
    folder = program.program_dir()
    library_dir = next((d for d in (folder, folder.parent / "lib") if (d / "libllama.so").is_file()), folder)
    plugin = ggml_moecache.backend_path()
    setup = calibration.Setup(folder, library_dir, plugin, model.path, threads, given.repeats, given.store_mib)
    try:
        found = calibration.calibrate(setup)
    except GgmlError as error:
        raise BackendError(str(error)) from error
    cost.check(found, "calibration")
    try:
        calibration.write(given.out, found)
    except OSError as error:
        raise ConfigError(f"{given.out} cannot be written: {error.strerror or error}") from None
    print(json.dumps(found, indent=2) if given.json else as_text(found))
    print(f"moecache: wrote {given.out}", file=sys.stderr)
    return 0


def _threads(text: str | None) -> list[int]:
    if text is None:
        return []
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= 512 for part in parts):  # noqa: PLR2004
        raise ConfigError(f"--threads must be whole numbers from 1 to 512 by comma. Got {text!r} instead.")
    return sorted({int(part) for part in parts})
