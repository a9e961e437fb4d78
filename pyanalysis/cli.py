"""The command-line program `moecache`: parses and delegates."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from ggml_moecache.errors import MoeCacheError
from pyanalysis import bench, interrupt, simulate_command, trace
from pyanalysis.calibrate import command as calibrate
from pyanalysis.decide import command as decide
from pyanalysis.printing import discard_stdout, show, write
from pyanalysis.record import command as record
from pyanalysis.studies import command as study

_RUN_HELP = """\
usage: moecache run [-m MODEL] [-p PROMPT] [--capacity C [--policy P] [--per-layer]] [--state-in FILE | --warm TRACE]
                    [--state-out FILE] [--log DIR [--top1-every N]] [--show-command] [llama.cpp options ...]

Generate text with llama.cpp's own llama-completion on the MoECache device. Options that are not listed here are
llama-completion's and reach it unchanged (llama-completion --help). Text goes to stdout, logs to stderr.

options:
  -m, --model MODEL   GGUF file (default: the small embedded model)
  --capacity C        experts with a slot on the device: 0, a number, a share (25%), memory (2GiB), auto (what is free),
                      all (default: GGML_MOECACHE_CAPACITY, else 0)
  --policy P          which experts get the slots, name:parameter=value:... (default: GGML_MOECACHE_POLICY; moecache
                      simulate --list-policies)
  --per-layer         each layer has slots of its own; a number or share is then of each layer
  --state-in FILE     start the cache from a session state of the same model, capacity and policy
  --warm TRACE        start it from a routing trace of the same model, which is replayed first (moecache record)
  --state-out FILE    write the session state there at the end, for the next --state-in; it is replaced as a whole
  --log DIR           write the routing log to this folder, which must not hold one yet (moecache trace show DIR)
  --top1-every N      also log, for every N-th token and each layer, the token that the final norm and LM head would
                      give from the layer's hidden state. llama-cpp-python then makes the text, with -p or -f, -n, -c
                      (default: 4096), -b, -ub, -t, -s, --temp, --top-k, --top-p, --min-p; the run gives no timings
  --show-command      print the llama-completion command and its environment to stderr before it runs

added unless you say otherwise: --device MoECache0, -no-cnv (no conversation), -lm none (no memory mapping: experts are
read into the store), GGML_MOECACHE_STANDIN=1 on a machine without a GPU, and with --log also --no-warmup (llama.cpp's
warm-up is a request like any other and would be the first in the log)

examples:
  moecache run -p "SQLite is a library that" -n 48 --temp 0
  moecache run -m model.gguf --capacity all -p "Hello" -n 64 -c 4096
  moecache run --capacity 25% --policy lru -p "SQLite is" -n 200 --log cached
  moecache run --capacity 25% -p "SQLite is" -n 200 --state-out learnt.json
  moecache run --capacity 25% -p "SQLite has" -n 200 --state-in learnt.json --state-out learnt.json
  moecache run --capacity 25% -p "SQLite is" -n 200 --warm recorded/long/parallel-1
  moecache run -m model.gguf -cnv -sys "You are a helpful assistant"
  moecache run -p "SQLite is" -n 200 --log log && moecache trace show log
  moecache run -p "SQLite is" -n 200 --log lens --top1-every 8 && moecache trace convert lens lens.parquet
"""

_EXAMPLES = """\
examples:
  moecache run -p "SQLite is a library that" -n 48 --temp 0
  moecache doctor -m model.gguf
  moecache doctor --json | jq .verdict
  moecache config
  moecache trace show log
  moecache simulate log --policy lru,cumulative-lfu,belady --capacity 10%,25%,50% --per-layer
  moecache bench log -m model.gguf
  moecache record --workload long,heterogeneous
  moecache calibrate -m model.gguf -o my-machine.json
  moecache decide log --cost my-machine.json --report decision
  moecache study frequency log --report frequency
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="moecache",
        description="An expert-level cache for Mixture-of-Experts models in stock llama.cpp.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the versions of moecache and of its ggml")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("run", help="generate text with llama-completion on the MoECache device", add_help=False)
    doctor = commands.add_parser(
        "doctor",
        help="what this machine and model would do, and why",
        epilog="examples:\n  moecache doctor\n  moecache doctor -m model.gguf --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("-m", "--model", type=Path, help="GGUF file (default: the small embedded model)")
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    config = commands.add_parser(
        "config",
        help="the settings of the plugin: values in force, defaults",
        description=(
            "Print every setting of the plugin: the value in force here (of the environment, else the default; those "
            "that differ from the default have a star), what it takes, its default and what it does. Variables that "
            "begin as ours do and are none are warned of."
        ),
        epilog="examples:\n  moecache config\n  GGML_MOECACHE_CAPACITY=25% moecache config\n  moecache config --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    config.add_argument("--json", action="store_true", help="print one JSON array")
    trace.add_parser(commands)
    simulate_command.add_parser(commands)
    bench.add_parser(commands)
    record.add_parser(commands)
    calibrate.add_parser(commands)
    decide.add_parser(commands)
    study.add_parser(commands)
    return parser


def _run(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(_RUN_HELP, end="")
        return 0
    from pyanalysis import run  # noqa: PLC0415 - each command imports only what it needs

    return run.run(arguments)


def _doctor(model: Path | None, *, as_json: bool) -> int:
    from pyanalysis import doctor, settings  # noqa: PLC0415

    settings.warn_of_unknown()
    report = doctor.diagnose(model)
    show(json.dumps(report, indent=2) if as_json else doctor.as_text(report))
    return 2 if report["verdict"]["reason"] == "bad_config" else 0


def _config(*, as_json: bool) -> int:
    from pyanalysis import settings  # noqa: PLC0415

    show(settings.as_json(os.environ) if as_json else settings.as_text(os.environ))
    settings.warn_of_unknown()
    return 0


def _version() -> int:
    import ggml_moecache  # noqa: PLC0415

    print(f"moecache {ggml_moecache.__version__} (ggml {ggml_moecache.ggml_version})")
    return 0


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["run"]:  # its options are llama.cpp's, which argparse must not see
        return _run(arguments[1:])
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.version:
        return _version()
    if parsed.command == "doctor":
        return _doctor(parsed.model, as_json=parsed.json)
    if parsed.command == "config":
        return _config(as_json=parsed.json)
    tools = {
        "trace": trace.run,
        "simulate": simulate_command.run,
        "bench": bench.run,
        "record": record.run,
        "calibrate": calibrate.run,
        "decide": decide.run,
        "study": study.run,
    }
    if parsed.command in tools:
        return tools[parsed.command](parsed)
    parser.print_help(sys.stderr)
    return 2


def main() -> None:
    """End with the program's own status for `run`, 2 for what cannot work (one line on stderr), 130 for Ctrl-C."""
    with interrupt.handled():
        status = _status()
    sys.exit(status)


def _status() -> int:
    try:
        status = _dispatch(sys.argv[1:])
        write("")  # what is still in the buffer
    except MoeCacheError as error:
        print(f"moecache: error: {error}", file=sys.stderr)
        status = 2
    except BrokenPipeError:  # `moecache run ... | head`: the reader has what it wanted
        discard_stdout()
        status = 0
    except OSError as error:  # a full disk under a file that no command has named
        place = f"{error.filename}: " if error.filename else ""
        print(f"moecache: error: {place}{error.strerror or error}", file=sys.stderr)
        status = 2
    return status
