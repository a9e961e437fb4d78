"""One calibration: the measurements in their order, and the cost model they give.

Needs nothing but the standard library, so that it also runs on a machine where only the plugin was copied to:
`python3 -m pyanalysis.calibrate.calibration --help`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyanalysis.calibrate import measure
from pyanalysis.calibrate.costs import Measured, costs_of, details
from pyanalysis.calibrate.experts import Geometry, Layer, Store, read_geometry
from pyanalysis.calibrate.ggml import Ggml, GgmlError
from pyanalysis.calibrate.report import as_text
from pyanalysis.calibrate.spread import Spread
from pyanalysis.llama_bench import BenchError, repetitions_of_llama_bench

if TYPE_CHECKING:
    from collections.abc import Sequence

_MIB = 1 << 20
# Layers are loaded until this much: more than any CPU's last-level cache, so that misses read memory.
STORE_MIB = 4096
_DEVICE_SHARE = 0.5  # of the GPU's free memory for resident experts
_COPY_SIZES_BYTES = tuple(n * 1024 for n in (4, 16, 64, 256, 1024, 4096, 16384, 65536))
_DECODE_TOKENS = 64
_LLAMA_BENCH_OPTIONS = ("-fa", "off", "-lm", "none", "-ngl", "99", "-p", "0", "-n", str(_DECODE_TOKENS))


@dataclass
class Setup:
    """What is measured, with what. `llama_bin` holds llama-bench, `library_dir` llama.cpp's libraries."""

    llama_bin: Path
    library_dir: Path
    plugin: Path
    model: Path
    threads: Sequence[int] = ()  # CPU threads to measure; (): 1, 2, 4, ... and all
    repeats: int = 100
    store_mib: int = STORE_MIB


def thread_counts(n_cpus: int) -> list[int]:
    """1, 2, 4, ... below `n_cpus`, and `n_cpus` itself."""
    return [*(1 << i for i in range(n_cpus.bit_length()) if 1 << i < n_cpus), n_cpus]


def calibrate(setup: Setup) -> dict[str, Any]:
    """The cost model with its calibration, as JSON. Raises GgmlError."""
    ggml = Ggml(setup.library_dir)
    geometry = read_geometry(ggml, setup.model)
    n_cpus = len(os.sched_getaffinity(0))
    measured = _experts(ggml, geometry, setup, list(setup.threads) or thread_counts(n_cpus))
    if geometry.second_family:
        measured.missing["experts of the second family (chexps)"] = "a cost model is of one family"
    n_threads = measured.best_threads
    if ggml.gpu is None:
        measured.missing["decode"] = "there is no GPU"
    else:
        _decode(setup, n_threads, measured)
    costs = costs_of(measured, geometry, n_threads)
    machine = {
        "cpu": _cpu_name(),
        "n_cpus": n_cpus,
        "gpu": None if ggml.gpu is None else ggml.device_name(ggml.gpu),
    }
    gpu = machine["gpu"] or "no GPU"
    types = "/".join(sorted({m.type_name for layer in geometry.layers for m in layer.matrices.values()}))
    return {
        "format": {"name": "ggml_moecache cost model", "version": 1},
        "name": setup.model.stem,
        "description": f"{gpu}, {machine['cpu']}, {n_threads} CPU threads; {setup.model.name}: {len(geometry.layers)} "
        f"MoE layers of {geometry.layers[0].n_experts} experts, top-{geometry.top_k}, {types}",
        "sources": [f"All figures: measured by moecache calibrate, ggml {ggml.version}.", *costs.sources],
        "expert_bytes": geometry.mean_expert_bytes,
        **costs.values,
        "calibration": {
            "created": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "ggml_version": ggml.version,
            "machine": machine,
            "model": _described(geometry),
            "n_threads": n_threads,
            **details(measured),
        },
    }


def write(path: Path, cost: dict[str, Any]) -> None:
    """Write the file as a whole. Raises OSError; what was at `path` then stays."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_text(json.dumps(cost, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _described(geometry: Geometry) -> dict[str, Any]:
    sizes = Counter(layer.expert_bytes for layer in geometry.layers)
    return {
        "file": geometry.path.name,
        "architecture": geometry.architecture,
        "n_moe_layers": len(geometry.layers),
        "n_experts": geometry.layers[0].n_experts,
        "top_k": geometry.top_k,
        "layers_by_expert_bytes": {str(size): n for size, n in sorted(sizes.items())},
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown CPU"


# --- the measurements in their order --------------------------------------------------------------------------------


def _experts(ggml: Ggml, geometry: Geometry, setup: Setup, threads: list[int]) -> Measured:
    layers = geometry.sample(setup.store_mib * _MIB)
    host_type = ggml.pinned_type() or ggml.ggml_backend_dev_buffer_type(ggml.cpu)
    _say(f"reading {len(layers)} of {len(geometry.layers)} layers of experts")
    with contextlib.closing(Store.load(ggml, layers, host_type)) as store:
        cpu = {}
        for n_threads in threads:
            _say(f"1 to {geometry.top_k} misses on {n_threads} CPU threads")
            cpu[n_threads] = measure.cpu_misses(ggml, store, n_threads, geometry.top_k, setup.repeats)
        measured = Measured(cpu)
        if ggml.gpu is None:
            measured.missing |= dict.fromkeys(("hits", "copies"), "there is no GPU")
        else:
            backend = ggml.backend(ggml.gpu)
            try:
                _copies(ggml, backend, setup.repeats, measured)
                _hits(ggml, ggml.gpu, backend, store, geometry.top_k, setup.repeats, measured)
            finally:
                ggml.ggml_backend_free(backend)
    return measured


def _copies(ggml: Ggml, backend: int, repeats: int, measured: Measured) -> None:
    _say("copies to the device")
    try:
        measured.copies = measure.copies(ggml, backend, _COPY_SIZES_BYTES, repeats)
        if not any(copy.pinned for copy in measured.copies):
            measured.missing["copies"] = "memory could not be pinned"
    except GgmlError as error:
        measured.missing["copies"] = str(error)


def _hits(  # noqa: PLR0917 - all of it is needed
    ggml: Ggml, gpu: int, backend: int, store: Store, top_k: int, repeats: int, measured: Measured
) -> None:
    """Hits, and the copy of an expert from the store, with as many layers resident as half of the free memory holds."""
    room = int(ggml.free_bytes(gpu) * _DEVICE_SHARE)
    layers: list[Layer] = []
    for layer in store.layers:
        room -= layer.size_bytes
        if room < 0 and layers:
            break
        layers.append(layer)
    try:
        device = Store.load(ggml, layers, ggml.ggml_backend_dev_buffer_type(gpu))
    except GgmlError as error:
        measured.missing["hits"] = str(error)
        return
    with contextlib.closing(device):
        _say(f"1 to {top_k} hits, {len(layers)} layers resident")
        measured.hits = measure.gpu_hits(ggml, backend, device, top_k, repeats)
        if store.pinned:
            measured.expert_copy = measure.expert_copies(ggml, backend, store, device, repeats)
            _say("copies beside misses")
            measured.beside = measure.copies_beside_misses(
                ggml, backend, store, device, measured.best_threads, max(1, top_k // 2), repeats
            )
        else:
            measured.missing["copies"] = "the store could not be pinned"


def _decode(setup: Setup, n_threads: int, measured: Measured) -> None:
    """Decode with everything resident and with nothing, by stock llama-bench on the MoECache device."""
    for capacity in ("all", "0"):
        _say(f"decode at capacity {capacity}")
        variables = {
            "GGML_BACKEND_PATH": str(setup.plugin),
            "GGML_MOECACHE_CAPACITY": capacity,
            "MOECACHE_REQUIRE": "1",
        }
        options = ["-m", str(setup.model), "-dev", "MoECache0", *_LLAMA_BENCH_OPTIONS, "-t", str(n_threads), "-r", "5"]
        try:
            speeds = repetitions_of_llama_bench(setup.llama_bin, options, variables)
        except (BenchError, OSError) as error:
            measured.missing[f"decode at capacity {capacity}"] = (str(error).strip().splitlines() or ["no reason"])[-1]
            continue
        measured.decode[capacity] = Spread.of([1e9 / value for value in speeds[f"tg{_DECODE_TOKENS}"]])


def _say(text: str) -> None:
    print(f"calibrate: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """For a machine where the package is not installed: all paths by hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bin", type=Path, required=True, help="folder of llama-bench and llama.cpp's libraries")
    parser.add_argument("--plugin", type=Path, required=True, help="libggml-moecache.so")
    parser.add_argument("-m", "--model", type=Path, required=True, help="a MoE model, GGUF")
    parser.add_argument("-o", "--out", type=Path, required=True, help="cost model to write, JSON")
    parser.add_argument("-t", "--threads", help="CPU threads, by comma (default: 1, 2, 4, ... and all)")
    parser.add_argument("--repeats", type=int, default=Setup.repeats, help="per figure (default: %(default)s)")
    given = parser.parse_args()
    threads = [int(n) for n in given.threads.split(",")] if given.threads else ()
    setup = Setup(given.llama_bin, given.llama_bin, given.plugin, given.model, threads, given.repeats)
    try:
        cost = calibrate(setup)
    except GgmlError as error:
        raise SystemExit(f"error: {error}") from None
    write(given.out, cost)
    print(as_text(cost))
    return 0


if __name__ == "__main__":
    sys.exit(main())
