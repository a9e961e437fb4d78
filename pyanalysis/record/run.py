"""One recorded run: a workload at a number of parallel sequences, its log checked against what was computed."""

from __future__ import annotations

import contextlib
import importlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import ggml_moecache
from ggml_moecache.errors import BackendError
from ggml_moecache.run_fields import check_new_log, file_sha256
from pyanalysis import traces
from pyanalysis.record.generate import Generator
from pyanalysis.record.report import RunReport, TokenCounts
from pyanalysis.record.text_report import Repetition, SharedPrefixes
from pyanalysis.run import replace_run_json
from pyanalysis.traces.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ggml_moecache.gguf_file import ModelFile
    from pyanalysis.record.sampling import Sampling
    from pyanalysis.record.workload import Workload
    from pyanalysis.traces.trace import Array


@dataclass(frozen=True)
class Settings:
    """What a run takes beside its workload; None: the default of load_model."""

    sampling: Sampling
    seed: int
    capacity: str | None
    device: str
    n_threads: int | None
    n_ubatch_tokens: int

    def ubatch_tokens(self, n_parallel: int) -> int:
        """Room for a token of each sequence."""
        return max(self.n_ubatch_tokens, n_parallel)


def folder_of(out: Path, workload: Workload, n_parallel: int) -> Path:
    """Where the log of a run goes."""
    return out / workload.name / f"parallel-{n_parallel}"


def record(
    model: ModelFile,
    workload: Workload,
    prompts: Sequence[Sequence[int]],
    *,
    n_special: int,
    settings: Settings,
    folder: Path,
    n_parallel: int,
) -> RunReport:
    """Run and log `prompts` (token ids); `n_special` of each are the tokenizer's.

    After an interruption (Ctrl-C) the log and its report are those of what was computed until then. Raises
    MoeCacheError, also when the log does not hold what was computed.
    """
    check_new_log(folder)
    predict = workload.limits.predict
    n_ctx = n_parallel * (max(map(len, prompts)) + predict)
    benchmark = _described(workload, settings, n_parallel, n_ctx)
    ggml_moecache.set_run_field("warmup_tokens", 0)
    ggml_moecache.set_run_field("benchmark", benchmark)
    done: dict[int, list[int]] = {}
    n_computed = 0
    n_total = sum(len(prompt) + predict - 1 for prompt in prompts)
    progress = Progress(f"{workload.name}, {n_parallel} at a time")

    def on_tokens(n: int) -> None:
        nonlocal n_computed
        n_computed += n
        progress.update(n_computed / n_total)

    interrupted = False
    with contextlib.closing(_load(model, settings, folder, n_parallel, n_ctx)) as llm:
        low_level = importlib.import_module("llama_cpp.llama_cpp")
        with contextlib.closing(Generator(llm, low_level, n_parallel, settings.ubatch_tokens(n_parallel))) as generator:
            try:
                generator.run(
                    prompts,
                    n_predict=predict,
                    sampling=settings.sampling,
                    seed=settings.seed,
                    on_tokens=on_tokens,
                    done=done,
                )
            except KeyboardInterrupt:
                interrupted = True
        n_threads = llm.n_threads
    progress.close()
    counts, by_request = _counted(folder, len(prompts))
    if not interrupted:
        _check_complete(folder, counts, by_request, [(len(prompt), predict - 1) for prompt in prompts])
    report = RunReport(
        workload=workload.name,
        n_parallel=n_parallel,
        n_requests=len(prompts),
        n_finished=len(done),
        interrupted=interrupted,
        counts=counts,
        repetition=Repetition.of([done[request] for request in sorted(done)]),
        prefixes=SharedPrefixes.of(prompts, n_special),
        folder=str(folder),
    )
    _complete(folder, model, {**benchmark, "n_threads": n_threads, "results": report.results()})
    return report


def _load(model: ModelFile, settings: Settings, folder: Path, n_parallel: int, n_ctx: int) -> Any:  # noqa: ANN401 - a Llama
    return ggml_moecache.load_model(
        model.path,
        capacity=settings.capacity,
        device=settings.device,
        log=folder,
        log_full="wait",  # a trace with holes is none
        n_seq_max=n_parallel,
        n_ctx=n_ctx,
        n_batch=settings.ubatch_tokens(n_parallel),
        n_ubatch=settings.ubatch_tokens(n_parallel),
        n_threads=settings.n_threads,
        n_threads_batch=settings.n_threads,
        seed=settings.seed,
        verbose=False,
    )


def _described(workload: Workload, settings: Settings, n_parallel: int, n_ctx: int) -> dict[str, Any]:
    """The field `benchmark` of run.json: everything that it takes to repeat the run."""
    prompts = workload.prompts
    return {
        "name": "moecache record",
        "workload": workload.name,
        "prompts": {
            "file": prompts.file,
            "sha256": prompts.sha256,
            "n_prompts": len(prompts.prompts),
            "n_left_out": prompts.n_left_out,
            "order": "shuffled by the seed" if workload.shuffled else "as in the file",
        },
        "limits": asdict(workload.limits),
        "parallel": n_parallel,
        "sampling": {
            **asdict(settings.sampling),
            "end_of_text": "never chosen",
            "seeds": "seed + number of the request",
        },
        "n_ubatch": settings.ubatch_tokens(n_parallel),
        "n_ctx": n_ctx,
    }


def _counted(folder: Path, n_requests: int) -> tuple[TokenCounts, Array]:
    """What the log holds, and int64[n_requests, 2]: prefill and decode tokens of each request.

    Raises MoeCacheError if it is malformed or absent, or has other requests.
    """
    if not (folder / "run.json").is_file():
        raise BackendError(f"{folder}: no log was written: no expert was computed on the device")
    by_request = np.zeros((n_requests, 2), dtype=np.int64)
    n_events = n_lost = 0
    for log in traces.logs_in(folder):  # one for each device of the model: they divide the layers, not the tokens
        trace = traces.read_trace(log)
        tokens = trace.tokens
        if len(tokens) and tokens.request.max() >= n_requests:
            raise BackendError(f"{log}: the log has more than the {n_requests} requests that were run")
        here = np.zeros_like(by_request)
        np.add.at(here, (tokens.request, tokens.phase), 1)
        by_request = np.maximum(by_request, here)
        n_events, n_lost = n_events + trace.n_events, n_lost + trace.n_lost
    prefill, decode = by_request.sum(axis=0).tolist()
    return TokenCounts(prefill, decode, n_events, n_lost), by_request


def _check_complete(folder: Path, counts: TokenCounts, found: Array, expected: list[tuple[int, int]]) -> None:
    """Each prompt is prefill, each generated token but the last decode. Raises BackendError."""
    if counts.n_lost:
        raise BackendError(f"{folder}: the log has lost {counts.n_lost} events")
    for request in np.flatnonzero((found != expected).any(axis=1))[:1].tolist():
        raise BackendError(
            f"{folder}: of request {request} the log holds {found[request, 0]} prefill and {found[request, 1]} decode "
            f"tokens, but {expected[request][0]} and {expected[request][1]} were computed"
        )


def _complete(folder: Path, model: ModelFile, benchmark: dict[str, Any]) -> None:
    """Add to run.json what is known at the end: the results, and the checksum if the run was too short for it."""
    path = folder / "run.json"
    metadata = json.loads(path.read_text(encoding="utf-8"))
    metadata["benchmark"] = benchmark
    if metadata["model"]["sha256"] is None:
        metadata["model"]["sha256"] = file_sha256(model.path)
    replace_run_json(path, metadata)
