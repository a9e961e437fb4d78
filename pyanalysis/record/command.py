"""The subcommand `moecache record`: arguments and output."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ggml_moecache
from ggml_moecache.errors import ConfigError
from ggml_moecache.gguf_file import read_model
from ggml_moecache.model import MAX_SEQUENCES, load_backends

MAX_THREADS = 512  # of llama.cpp (GGML_MAX_N_THREADS)

if TYPE_CHECKING:
    from pyanalysis.record.report import RunReport

_DESCRIPTION = """\
Run a model over a prompt set with fixed limits, sampling and seeds, and record its complete routing.

workloads:
  long           6 long prompts. Embedded model: 900 tokens of prompt, 2048 generated; other models: the whole prompt,
                 4096 generated (or half of the trained context, if that is less)
  heterogeneous  160 unrelated prompts, shuffled by the seed, 128 tokens generated for each
  FILE           your own prompts, in their order, 128 tokens generated for each: JSON Lines or a JSON array with
                 `prompt`, LongBench (`context` and `input`) or ShareGPT (`conversations`: the first turn of a human),
                 a text file (one prompt), or a folder of *.txt files

Each workload and number of parallel sequences gets a log of its own, DIR/WORKLOAD/parallel-N, with everything that it
takes to repeat the run in run.json. Prompts are given as they are, without a chat template. Text is not logged. A full
ring makes the model wait; a log with lost events is an error. Ctrl-C ends the run; what was logged until then stays and
is reported."""

_EXAMPLES = """\
examples:
  moecache record --workload long,heterogeneous
  moecache record --workload heterogeneous --parallel 1,4 -o recorded --json
  moecache record --workload sharegpt.json -m model.gguf --limit 100 --prompt-tokens 2048 -n 256
  moecache trace show recorded/long/parallel-1
"""


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add `record` to the program's subcommands."""
    from pyanalysis.record.sampling import Sampling  # noqa: PLC0415 - each command imports only what it needs

    record = commands.add_parser(
        "record",
        help="record the routing of a model over a prompt set",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = Sampling()
    add = record.add_argument
    add("--workload", metavar="NAME[,...]", required=True, help="long, heterogeneous or a FILE; several by comma")
    add("-m", "--model", type=Path, help="GGUF file (default: the small embedded model)")
    add(
        "-o", "--out", metavar="DIR", type=Path, default=Path("recorded"), help="folder of the logs (default: recorded)"
    )
    add("--parallel", metavar="N[,...]", default="1", help="sequences at once; several by comma (default: 1)")
    add("-n", "--predict", metavar="TOKENS", type=int, help="generated tokens per request (default: the workload's)")
    add("--prompt-tokens", metavar="TOKENS", type=int, help="cut longer prompts (default: the workload's)")
    add("--limit", metavar="N", type=int, help="the first N prompts only (of the shuffled order)")
    add("--seed", type=int, default=1, help="request i (from 0) is sampled with SEED + i (default: 1)")
    add("--temperature", "--temp", type=float, default=default.temperature, help="default: %(default)s; 0: likeliest")
    add("--repeat-penalty", type=float, default=default.repeat_penalty, help="default: %(default)s; 1: off")
    add("--repeat-last-n", type=int, default=default.repeat_last_n, help="tokens it looks at (default: %(default)s)")
    add("--top-k", type=int, default=default.top_k, help="default: %(default)s (off)")
    add("--top-p", type=float, default=default.top_p, help="default: %(default)s (off)")
    add("--min-p", type=float, default=default.min_p, help="default: %(default)s (off)")
    add("--capacity", help="experts with a slot on the device (default: GGML_MOECACHE_CAPACITY)")
    add("--device", default="MoECache0", help="default: %(default)s")
    add("-t", "--threads", type=int, help="CPU threads (default: llama-cpp-python's)")
    add("-ub", "--ubatch-size", metavar="TOKENS", type=int, default=512, help="default: %(default)s")
    add("--json", action="store_true", help="print one JSON object")


def run(given: argparse.Namespace) -> int:
    """Record and report. Exit status: 0, 130 after Ctrl-C. Raises MoeCacheError for anything that cannot work."""
    from pyanalysis.record.report import as_text  # noqa: PLC0415
    from pyanalysis.record.run import Settings  # noqa: PLC0415
    from pyanalysis.record.sampling import MAX_SEED, Sampling  # noqa: PLC0415

    names = ("temperature", "repeat_penalty", "repeat_last_n", "top_k", "top_p", "min_p")
    sampling = Sampling(**{name: getattr(given, name) for name in names})
    # A ubatch of one token could not be told from a generated one in the log.
    for option, least in (("predict", 1), ("prompt_tokens", 1), ("limit", 1), ("threads", 1), ("ubatch_size", 2)):
        value = getattr(given, option)
        if value is not None and value < least:
            name = option.replace("_", "-")
            raise ConfigError(f"--{name} must be a whole number of at least {least}. Got {value} instead.")
    if given.threads is not None and given.threads > MAX_THREADS:
        raise ConfigError(f"--threads must be at most {MAX_THREADS}, as in llama.cpp. Got {given.threads} instead.")
    if not 0 <= given.seed <= MAX_SEED:
        raise ConfigError(f"--seed must be from 0 to {MAX_SEED}. Got {given.seed} instead.")
    settings = Settings(sampling, given.seed, given.capacity, given.device, given.threads, given.ubatch_size)
    reports: list[RunReport] = []
    for report in _runs(given, settings, _parallel(given.parallel)):
        reports.append(report)
        if not given.json:
            print(as_text(report), end="\n\n", flush=True)
        if report.interrupted:
            break
    if given.json:
        print(json.dumps({"runs": [report.as_json() for report in reports]}, indent=2))
    if reports[-1].interrupted:
        print(f"moecache: interrupted; the log in {reports[-1].folder} ends there and can be read", file=sys.stderr)
        return 130
    return 0


def _parallel(text: str) -> list[int]:
    parts = text.split(",")
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit() and 1 <= int(part) <= MAX_SEQUENCES]
    if len(set(numbers)) < len(parts):
        raise ConfigError(
            f"--parallel must be different whole numbers from 1 to {MAX_SEQUENCES} by comma. Got {text!r} instead."
        )
    return numbers


def _workloads(text: str) -> list[str]:
    names = text.split(",")
    if "" in (name.strip() for name in names):
        raise ConfigError(f"--workload has an empty item: name workloads by comma. Got {text!r} instead.")
    return names


def _runs(given: argparse.Namespace, settings: Any, parallel: list[int]) -> Any:  # noqa: ANN401
    """Every workload and number of sequences in turn; all of them are checked before the first one runs."""
    from ggml_moecache.run_fields import check_new_log  # noqa: PLC0415
    from pyanalysis.record import run as runner  # noqa: PLC0415
    from pyanalysis.record.tokens import tokens_of  # noqa: PLC0415
    from pyanalysis.record.workload import fit, load_workload  # noqa: PLC0415

    model = read_model(given.model or ggml_moecache.embedded_model())
    if not model.expert_tensors:
        raise ConfigError(f"{model.path}: has no experts; there is no routing to record")
    found = [
        load_workload(
            name,
            model,
            seed=given.seed,
            prompt_tokens=given.prompt_tokens,
            predict_tokens=given.predict,
            n_prompts=given.limit,
        )
        for name in _workloads(given.workload)
    ]
    if len({workload.name for workload in found}) < len(found):
        raise ConfigError(f"--workload {given.workload}: two workloads have one name, and would have one folder")
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)  # as verbose=False of Llama does
    module, _ = load_backends()
    prepared = []
    for workload in found:
        texts = [prompt.text for prompt in workload.prompts.prompts]
        tokens, n_special = tokens_of(module.llama_cpp, model.path, texts)
        prepared.append((workload, fit(workload, tokens), n_special))
    for workload in found:
        for n in parallel:
            check_new_log(runner.folder_of(given.out, workload, n))
    for workload, prompts, n_special in prepared:
        for n in parallel:
            folder = runner.folder_of(given.out, workload, n)
            yield runner.record(
                model, workload, prompts, n_special=n_special, settings=settings, folder=folder, n_parallel=n
            )
