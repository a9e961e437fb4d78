"""A sweep on a Dask cluster: the same results as on this machine, in the same order.

One task is one policy at all capacities over one trace, so that what a policy shares across capacities stays shared.
Workers need this package, of the same version.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import ggml_moecache
from ggml_moecache.errors import BackendError, MissingDependencyError, MoeCacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyanalysis.simulation.result import SimulationResult
    from pyanalysis.traces import Trace

_CONNECT_S = 20
_CLOSE_S = 5


def sweep_on_cluster(
    address: str,
    traces: Sequence[Trace],
    policies: Sequence[str],
    capacities: Sequence[Any],
    *,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,  # noqa: ANN401 - those of sweep()
) -> list[SimulationResult]:
    """What pyanalysis.sweep(traces, policies, capacities, **options) returns, computed by a cluster's workers.

    traces, policies, capacities   lists; the options are those of sweep()
    address  of the Dask scheduler, such as tcp://host:8786
    Raises MissingDependencyError without the extra `distributed`, ConfigError for what sweep() refuses, BackendError if
    the scheduler does not answer, has no workers, or a worker has another version of this package.
    """
    try:
        import distributed  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise MissingDependencyError(
            "--scheduler needs the extra 'distributed': pip install 'ggml-moecache[distributed]'"
        ) from None
    client = _connect(distributed, address)
    try:
        _check_versions(client, address)
        options.pop("workers", None)  # a worker uses the threads of its task
        futures = []
        for trace in traces:
            [shared] = client.scatter([trace], hash=False, broadcast=False)
            futures += [
                client.submit(_task, shared, policy, list(capacities), options, pure=False) for policy in policies
            ]
        with client.as_current():
            _wait(distributed, futures, len(capacities), progress)
        return [result for part in client.gather(futures) for result in part]
    except MoeCacheError:
        raise
    except Exception as error:  # noqa: BLE001 - of Dask: a worker that was killed, a scheduler that has gone
        raise BackendError(f"the Dask cluster at '{address}' failed: {type(error).__name__}: {error}") from None
    finally:
        with contextlib.suppress(Exception):  # a scheduler that has gone is no second error
            client.close(timeout=_CLOSE_S)


def _task(trace: Trace, policy: str, capacities: list[Any], options: dict[str, Any]) -> list[SimulationResult]:
    from pyanalysis.simulation import sweep  # noqa: PLC0415 - runs on a worker

    return sweep([trace], [policy], capacities, workers=1, **options)


def _connect(distributed: Any, address: str) -> Any:  # noqa: ANN401 - untyped package
    try:
        client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
    except Exception as error:  # noqa: BLE001 - Dask raises many kinds for an address; it has closed the client itself
        raise BackendError(f"no Dask scheduler answers at '{address}': {error}") from None
    if not client.scheduler_info()["workers"]:
        client.close()
        raise BackendError(f"the Dask scheduler at '{address}' has no workers: start some with dask worker {address}")
    return client


def _version() -> str:
    return ggml_moecache.__version__


def _check_versions(client: Any, address: str) -> None:  # noqa: ANN401 - untyped package
    try:
        found = client.run(_version)
    except ImportError as error:
        raise BackendError(f"a worker of '{address}' cannot import this package: {error}") from None
    for worker, version in found.items():
        if version != ggml_moecache.__version__:
            raise BackendError(f"worker {worker} has ggml-moecache {version}, this is {ggml_moecache.__version__}")


def _wait(
    distributed: Any,  # noqa: ANN401 - untyped package
    futures: list[Any],
    n_capacities: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    done = 0
    for future in distributed.as_completed(futures):
        if future.status == "error":
            raise future.exception()
        done += n_capacities
        if progress:
            progress(done, n_capacities * len(futures))
