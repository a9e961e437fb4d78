"""The measurements: misses on the CPU, hits on the GPU, copies between them. Times in ns.

Needs nothing but the standard library, so that it also runs on a machine where only the plugin was copied to.
"""

from __future__ import annotations

import ctypes
import functools
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyanalysis.calibrate.event import EventGraph
from pyanalysis.calibrate.ggml import TYPE_I8, CpuBackend, GgmlError
from pyanalysis.calibrate.spread import Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyanalysis.calibrate.experts import Store
    from pyanalysis.calibrate.ggml import Ggml

_WARM_UP = 3  # runs that are not counted: pages are touched, threads and CUDA graphs are made
_EVENTS_PER_GPU_GRAPH = 64  # one event is too short to time beside a launch; the GPU runs such a graph back to back
_COPIES_AT_ONCE = 16
_COPIES_BESIDE = 4  # at most this many experts are copied beside one event's misses
_SEED = 1


def _timed(work: Callable[[], object]) -> int:
    begin = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - begin


def _checked(status: int) -> None:
    if status != 0:
        raise GgmlError(f"GGML could not compute an event (status {status})")


def _compute(ggml: Ggml, backend: int, graph: EventGraph) -> None:
    _checked(ggml.ggml_backend_graph_compute(backend, graph.graph))


def cpu_misses(ggml: Ggml, store: Store, n_threads: int, most: int, n_events: int) -> dict[int, Spread]:
    """Time of one event by its number of misses, 1 to `most`: GGML's kernels on the store, as the plugin runs them.

    Every event takes other experts of another layer, so that its weights come from memory as in a large model (where
    the store is larger than the CPU's cache).
    """
    generator = random.Random(_SEED)  # noqa: S311 - repeatable is what it must be
    cpu = CpuBackend(ggml, n_threads)
    times: dict[int, Spread] = {}
    try:
        for n_misses in range(1, most + 1):
            graphs = [EventGraph(ggml, cpu.address, store, [i], n_misses) for i in range(len(store.layers))]
            try:
                values = []
                for event in range(_WARM_UP + n_events):
                    graph = graphs[event % len(graphs)]
                    graph.choose(generator)
                    values.append(_timed(functools.partial(_compute, ggml, cpu.address, graph)))
                times[n_misses] = Spread.of(values[_WARM_UP:])
            finally:
                for graph in graphs:
                    graph.close()
    finally:
        cpu.close()
    return times


def gpu_hits(ggml: Ggml, backend: int, store: Store, most: int, n_repeats: int) -> dict[int, Spread]:
    """Time of one event by its number of hits, 1 to `most`: of a graph of 64 events, launched at once, a 64th."""
    generator = random.Random(_SEED)  # noqa: S311
    layers = [i % len(store.layers) for i in range(_EVENTS_PER_GPU_GRAPH)]
    times = {}
    for n_hits in range(1, most + 1):
        graph = EventGraph(ggml, backend, store, layers, n_hits)

        def run(graph: EventGraph = graph) -> None:
            _checked(ggml.ggml_backend_graph_compute_async(backend, graph.graph))
            ggml.ggml_backend_synchronize(backend)

        try:
            values = []
            for _ in range(_WARM_UP + n_repeats):
                graph.choose(generator)
                ggml.ggml_backend_synchronize(backend)
                values.append(_timed(run) / len(layers))
            times[n_hits] = Spread.of(values[_WARM_UP:])
        finally:
            graph.close()
    return times


@dataclass(frozen=True)
class CopyTimes:
    """Of one copy of `n_bytes`: `alone_ns` until it is known to be complete, `queued_ns` behind others on the queue."""

    n_bytes: int
    pinned: bool
    alone_ns: Spread
    queued_ns: Spread


def copies(ggml: Ggml, backend: int, sizes_bytes: Sequence[int], n_repeats: int) -> list[CopyTimes]:
    """Host to device copies by size, from pinned memory (none if pinning fails) and from ordinary memory."""
    most = max(sizes_bytes)
    pinned_type = ggml.pinned_type()
    device_type = ggml.ggml_backend_dev_buffer_type(ggml.gpu)
    context = ggml.context(1)
    buffers = [ggml.allocate(device_type, most + 4096)]
    try:
        target = ggml.ggml_new_tensor_3d(context, TYPE_I8, most, 1, 1)
        _checked(ggml.ggml_backend_tensor_alloc(buffers[0], target, ggml.ggml_backend_buffer_get_base(buffers[0])))
        ordinary = ctypes.create_string_buffer(most)
        sources = [(False, ctypes.addressof(ordinary))]
        if pinned_type is not None:
            buffers.append(ggml.allocate(pinned_type, most))
            if ggml.is_pinned(buffers[1]):
                ctypes.memset(ggml.ggml_backend_buffer_get_base(buffers[1]), 1, most)
                sources.insert(0, (True, ggml.ggml_backend_buffer_get_base(buffers[1])))
        return [
            _copy_times(ggml, backend, target, source, n_bytes, pinned=pinned, n_repeats=n_repeats)
            for pinned, source in sources
            for n_bytes in sorted(sizes_bytes)
        ]
    finally:
        for buffer in buffers:
            ggml.ggml_backend_buffer_free(buffer)
        ggml.ggml_free(context)


def _copy_times(
    ggml: Ggml, backend: int, target: int, source: int, n_bytes: int, *, pinned: bool, n_repeats: int
) -> CopyTimes:
    def copy(n: int) -> None:
        for _ in range(n):
            ggml.ggml_backend_tensor_set_async(backend, target, source, 0, n_bytes)
        ggml.ggml_backend_synchronize(backend)

    alone = [_timed(lambda: copy(1)) for _ in range(_WARM_UP + n_repeats)][_WARM_UP:]
    queued = [_timed(lambda: copy(_COPIES_AT_ONCE)) / _COPIES_AT_ONCE for _ in range(_WARM_UP + n_repeats)][_WARM_UP:]
    return CopyTimes(n_bytes, pinned, Spread.of(alone), Spread.of(queued))


def copies_beside_misses(  # noqa: PLR0917 - all of it is needed
    ggml: Ggml, backend: int, host: Store, device: Store, n_threads: int, n_misses: int, n_events: int
) -> dict[int, Spread]:
    """Time of an event of `n_misses` by the copies handed over right before it, 0 to 4 whole experts.

    From the first copy's handing over to the end of the CPU's work; the copies run on beside it, and are waited for
    before the next event, outside of what is timed. REQUIRES: a pinned host store; `device` holds its first layers.
    """
    generator = random.Random(_SEED)  # noqa: S311
    cpu = CpuBackend(ggml, n_threads)
    graphs: list[EventGraph] = []
    times: dict[int, list[float]] = {n: [] for n in range(_COPIES_BESIDE + 1)}
    try:
        graphs += [EventGraph(ggml, cpu.address, host, [i], n_misses) for i in range(len(host.layers))]
        for event in range(_WARM_UP + n_events):
            for n_copies, found in times.items():  # in turn, so that a drift of the machine meets all of them
                graph = graphs[(event * len(times) + n_copies) % len(graphs)]
                graph.choose(generator)
                work = _expert_parts(ggml, host, device, generator, n_copies)

                def run(work: list[tuple[int, int, int, int]] = work, graph: EventGraph = graph) -> None:
                    for tensor, source, offset, n_bytes in work:
                        ggml.ggml_backend_tensor_set_async(backend, tensor, source, offset, n_bytes)
                    _compute(ggml, cpu.address, graph)

                took = _timed(run)
                ggml.ggml_backend_synchronize(backend)
                if event >= _WARM_UP:
                    found.append(took)
    finally:
        for graph in graphs:
            graph.close()
        cpu.close()
    return {n: Spread.of(found) for n, found in times.items()}


def _expert_parts(
    ggml: Ggml, host: Store, device: Store, generator: random.Random, n_experts: int
) -> list[tuple[int, int, int, int]]:
    """(tensor, source address, offset, bytes) of the matrices of randomly chosen experts."""
    parts = []
    for _ in range(n_experts):
        at = generator.randrange(len(device.layers))
        layer = device.layers[at]
        expert = generator.randrange(layer.n_experts)
        for role, matrix in layer.matrices.items():
            offset = expert * matrix.expert_bytes
            source = ggml.ggml_get_data(host.tensors[at][role]) + offset
            parts.append((device.tensors[at][role], source, offset, matrix.expert_bytes))
    return parts


def expert_copies(ggml: Ggml, backend: int, host: Store, device: Store, n_repeats: int) -> tuple[Spread, Spread]:
    """(time on the queue, bytes) of the copy of one whole expert, its matrices one by one, from the store.

    16 experts are enqueued at once. REQUIRES: both stores hold the same layers.
    """
    generator = random.Random(_SEED)  # noqa: S311
    times, sizes = [], []
    for _ in range(_WARM_UP + n_repeats):
        work = _expert_parts(ggml, host, device, generator, _COPIES_AT_ONCE)

        def run(work: list[tuple[int, int, int, int]] = work) -> None:
            for tensor, source, offset, n_bytes in work:
                ggml.ggml_backend_tensor_set_async(backend, tensor, source, offset, n_bytes)
            ggml.ggml_backend_synchronize(backend)

        times.append(_timed(run) / _COPIES_AT_ONCE)
        sizes.append(sum(n_bytes for *_, n_bytes in work) / _COPIES_AT_ONCE)
    return Spread.of(times[_WARM_UP:]), Spread.of(sizes[_WARM_UP:])
