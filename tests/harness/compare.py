"""Compare the MoECache device with stock llama.cpp on one tiny model.

    python -m tests.harness.compare --family qwen3moe --type Q4_0 --tokens 7 --capacity 0 \\
        --plugin build/libggml-moecache.so --llama-bin ~/.cache/ggml-moecache/llama-0.3.36-portable/bin
    python -m tests.harness.compare --family all --type Q4_0 --tokens all --capacity 0,all

Prints one line per combination; exit status 1 if any differs. Without --tokens the exactness tests' scenarios run.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from tests.harness.difference import compare
from tests.harness.environment import Build, MissingBuild, find_build
from tests.harness.plan import ModelOptions, Plan, Scenario
from tests.harness.runner import Result, RunFailed, run_moecache, run_stock
from tests.harness.scenarios import STANDARD, prefill_and_decode
from tests.models.families.table import FAMILIES
from tests.models.generate import TYPES, model_path


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        build = _build(options)
        families = list(FAMILIES) if options.family == "all" else options.family.split(",")
        types = TYPES if options.type == "all" else options.type.split(",")
        models = (
            {Path(options.model).name: Path(options.model)}
            if options.model
            else {f"{f} {t}": model_path(f, t, build.llama_bin) for f in families for t in types}
        )
    except (MissingBuild, ValueError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    failed = 0
    for name, path in models.items():
        plan = Plan(ModelOptions(str(path), n_gpu_layers=options.n_gpu_layers), _scenarios(options), options.threads)
        failed += _compare_one(name, build, plan, options)
    return 1 if failed else 0


def _compare_one(name: str, build: Build, plan: Plan, options: argparse.Namespace) -> int:
    """Number of capacities at which the device differs or fails."""
    failed = 0
    try:
        expected = run_stock(build, plan, device=options.reference_device)
    except RunFailed as error:
        print(f"{name}: stock FAILED: {error}")
        return 1
    for capacity in options.capacity.split(","):
        try:
            actual = run_moecache(build, plan, capacity=capacity)
        except RunFailed as error:
            print(f"{name} capacity {capacity}: FAILED: {error}")
            failed += 1
            continue
        difference = compare(expected.logits(), actual.logits())
        print(f"{name} capacity {capacity}: {difference}; {_status_line(actual)}", flush=True)
        failed += not difference.equal
        if options.verbose:
            print(actual.log, file=sys.stderr)
    return failed


def _status_line(result: Result) -> str:
    lines = [line for line in result.log.splitlines() if "moecache:" in line]
    return lines[0] if lines else "no status line"


def _scenarios(options: argparse.Namespace) -> tuple[Scenario, ...]:
    if options.tokens == "all":
        return STANDARD
    chosen = tuple(prefill_and_decode(int(count)) for count in options.tokens.split(","))
    return tuple(dataclasses.replace(scenario, flash_attn=options.flash_attn) for scenario in chosen)


def _build(options: argparse.Namespace) -> Build:
    if options.plugin and options.llama_bin:
        return Build(options.plugin.resolve(), options.llama_bin.expanduser().resolve())
    return find_build()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="all", help="families, comma-separated, or all (default)")
    parser.add_argument("--type", default="Q4_0", help="types, comma-separated, or all (default: Q4_0)")
    parser.add_argument("--model", help="a GGUF file instead of a generated model")
    parser.add_argument("--tokens", default="all", help="prefill lengths, or all scenarios (default)")
    parser.add_argument("--capacity", default="0,all", help="capacities, comma-separated (default: 0,all)")
    parser.add_argument("--plugin", type=Path, help="the plugin (default: the installed package's)")
    parser.add_argument("--llama-bin", type=Path, help="folder of the llama.cpp build (default: the package's)")
    parser.add_argument("--reference-device", help="stock device to compare with (default: the CPU)")
    parser.add_argument("--n-gpu-layers", type=int, default=99, help="layers on the device (default: 99)")
    parser.add_argument("--threads", type=int, default=2, help="threads on both sides (default: 2)")
    parser.add_argument("--flash-attn", type=int, default=-1, choices=(-1, 0, 1), help="-1 auto (default), 0 off, 1 on")
    parser.add_argument("--verbose", action="store_true", help="print the worker's log on stderr")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
