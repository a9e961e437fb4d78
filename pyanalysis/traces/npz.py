"""Routing decisions as a numpy archive: dense arrays, one row per token. The arrays are listed in traces/FORMAT.md.

Also reads archives of other projects' traces, which hold little more than `ids`.
"""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyanalysis.traces import metadata as run_json
from pyanalysis.traces.check import check_trace
from pyanalysis.traces.errors import TraceError
from pyanalysis.traces.log import Chunk, raise_problem
from pyanalysis.traces.staging import Staged
from pyanalysis.traces.trace import Trace, TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyanalysis.traces.log import OnProblem
    from pyanalysis.traces.metadata import Metadata
    from pyanalysis.traces.trace import Array

_DIMENSIONS = 3  # tokens, columns, top-k
_LEAST = {"ids": -1, "n_experts": 1, "phase": 0, "batch": -1, "request": 0, "token_index": 0, "layers": 0, "top1": -1}


class NpzReader:
    """See log.Reader. Memory: the arrays of the file, unpacked. Lines count events, from 1."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        try:
            if not zipfile.is_zipfile(path):  # np.load would advise to unpickle it
                self._refuse("is no numpy archive, or a truncated one")
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                self._arrays: dict[str, Array] = {name: archive[name] for name in archive.files}
        except TraceError:
            raise
        except OSError as error:
            raise TraceError(path, None, f"cannot be read: {error.strerror or error}") from None
        except Exception as error:  # noqa: BLE001 - zipfile and numpy raise many kinds on a damaged file
            raise TraceError(path, None, f"is no numpy archive, or a truncated one: {error}") from None
        self._check_shapes()
        self._check_values()
        self.metadata: Metadata | None = None
        if "run" in self._arrays:
            self.metadata = run_json.parse(path, str(self._arrays["run"]))
        else:
            self.metadata = self._own_metadata()
            self.notes.append("no run.json in the archive: model and settings are not known")
        n_holes = int((self._arrays["ids"][:, :, 0] < 0).sum())
        if n_holes and "n_lost" not in self._arrays:
            self.notes.append(f"{n_holes:,} events are not recorded (-1) and count as lost")

    def chunks(self, on_problem: OnProblem) -> Iterator[Chunk]:
        trace = self.trace(on_problem)
        lines = 0
        for table in trace.tables():
            yield Chunk(table, np.arange(lines + 1, lines + 1 + table.num_rows), lines / max(trace.n_events, 1))
            lines += table.num_rows

    def _refuse(self, reason: str) -> NoReturn:
        raise TraceError(self.path, None, reason)

    def _check_shapes(self) -> None:
        arrays = self._arrays
        for name in ("ids", "n_experts"):
            if name not in arrays:
                self._refuse(f"is no trace: it has no array {name}")
        ids = arrays["ids"]
        if ids.ndim != _DIMENSIONS or ids.dtype.kind not in "iu" or 0 in ids.shape[1:]:
            got = f"{ids.dtype}{list(ids.shape)}"
            self._refuse(f"ids must be whole numbers of shape [tokens, layers, top_k], got {got}")
        n_tokens, n_columns, _ = ids.shape
        if n_tokens == 0:
            self._refuse("is empty: ids has no token")
        wanted = {
            **dict.fromkeys(("phase", "batch", "request", "token_index"), (n_tokens,)),
            **dict.fromkeys(("layers", "families"), (n_columns,)),
            **dict.fromkeys(("n_experts", "n_lost", "complete", "context_id", "run"), ()),
            "weights": ids.shape,
            "top1": (n_tokens, n_columns),
        }
        for name, shape in wanted.items():
            if name in arrays and arrays[name].shape != shape:
                self._refuse(f"{name} must have shape {list(shape)}, got {list(arrays[name].shape)}")
        offsets = arrays.get("seq_offsets", np.array([0, n_tokens]))
        if offsets.ndim != 1 or (offsets[:1] != 0).any() or (offsets[-1:] != n_tokens).any() or len(offsets) == 0:
            self._refuse(f"seq_offsets must rise from 0 to {n_tokens}, the number of tokens")
        if (np.diff(offsets) < 0).any():
            self._refuse(f"seq_offsets must rise from 0 to {n_tokens}, the number of tokens")

    def _check_values(self) -> None:
        arrays = self._arrays
        for name, least in _LEAST.items():
            if name in arrays and (arrays[name].dtype.kind not in "iu" or (arrays[name] < least).any()):
                self._refuse(f"{name} must be whole numbers of at least {least}")
        if arrays["ids"].max() >= 2**31:
            self._refuse("ids must fit 32 bits")
        self._check_columns()
        self._check_ids()
        torn = (arrays["ids"][:, :, 1:] >= 0) & (arrays["ids"][:, :, :-1] < 0)
        if torn.any():
            place = np.argwhere(torn)[0].tolist()
            self._refuse(f"ids{place} is -1 (not recorded), but an id stands behind it")
        if "phase" in arrays and arrays["phase"].max() > 1:
            self._refuse("phase must be 0 (prefill) or 1 (decode)")
        if "weights" not in arrays:
            return
        with np.errstate(over="ignore"):
            weights = arrays["weights"].astype(np.float32)
        finite = np.isfinite(weights)
        bad = (arrays["ids"] >= 0) & ~finite & (finite.any(axis=2, keepdims=True) | np.isinf(weights))
        if bad.any():
            place = np.argwhere(bad)[0].tolist()
            self._refuse(f"weights{place} is not finite (NaN in all of an event: not recorded)")

    def _check_ids(self) -> None:
        """By their place in the array, which check_trace does not know; with a run.json the experts are per layer."""
        ids = self._arrays["ids"]
        n_experts = int(self._arrays["n_experts"])
        if {"run", "families"} & self._arrays.keys():
            return
        ordered = np.sort(ids, axis=2)
        if ((ordered[:, :, 1:] == ordered[:, :, :-1]) & (ordered[:, :, 1:] >= 0)).any():
            for end in range(1, ids.shape[2]):
                again = (ids[:, :, :end] == ids[:, :, end : end + 1]).any(axis=2) & (ids[:, :, end] >= 0)
                if again.any():
                    place = [*np.argwhere(again)[0].tolist(), end]
                    self._refuse(f"ids{place} is {ids[tuple(place)]}, which stands before it in the event")
        if ids.max() >= n_experts:
            place = np.argwhere(ids >= n_experts)[0].tolist()
            self._refuse(f"ids{place} is {ids[tuple(place)]}, out of range: n_experts is {n_experts}")

    def _check_columns(self) -> None:
        names = self._arrays.get("families", np.full(len(self._layers()), "exps")).tolist()
        columns = list(zip(self._layers().tolist(), names, strict=True))
        for index, column in enumerate(columns):
            if column in columns[:index]:
                self._refuse(f"layers has layer {column[0]} twice, in columns {columns.index(column)} and {index}")

    def _own_metadata(self) -> Metadata:
        metadata = run_json.blank(self.path.stem)
        metadata["model"].update(n_experts=int(self._arrays["n_experts"]), top_k=self._arrays["ids"].shape[2])
        metadata["model"]["moe_layers"] = self._layers().tolist()
        return metadata

    def _layers(self) -> Array:
        layers: Array = self._arrays.get("layers", np.arange(self._arrays["ids"].shape[1])).astype(np.int32)
        return layers

    def _token_columns(self) -> dict[str, Array]:
        arrays = self._arrays
        n = len(arrays["ids"])
        offsets = arrays.get("seq_offsets", np.array([0, n]))
        sequence = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return {
            "request": arrays.get("request", sequence).astype(np.int64),
            "token": arrays.get("token_index", np.arange(n) - offsets[sequence]).astype(np.int32),
            "batch": arrays.get("batch", np.full(n, -1)).astype(np.int64),
            "phase": arrays.get("phase", np.ones(n)).astype(np.uint8),
        }

    def trace(self, on_problem: OnProblem) -> Trace:
        """See log.WholeReader.

        The events: ubatch by ubatch, in each layer by layer; token by token where ubatches are not recorded.
        """
        del on_problem  # what an archive can have wrong is found when it is opened, or by check_trace
        arrays = self._arrays
        ids = arrays["ids"].astype(np.int32)
        n_columns = ids.shape[1]
        names = arrays.get("families", np.full(n_columns, "exps")).tolist()
        families = tuple(dict.fromkeys(names))
        tokens = self._token_columns()
        row, column = (a.ravel() for a in np.indices(ids.shape[:2]))
        recorded = ids[row, column, 0] >= 0
        row, column = row[recorded], column[recorded]
        if tokens["batch"].max() >= 0:
            order = np.lexsort((row, column, tokens["batch"][row]))
            row, column = row[order], column[order]
        # Without a count of its own, an archive says with -1 what it lacks.
        n_holes = int((~recorded).sum())
        n_lost = int(arrays.get("n_lost", np.array(n_holes)))
        first_batch = max(int(tokens["batch"].min()), 0)
        overflows = np.array([[len(row), first_batch, n_lost]] if n_lost else [], dtype=np.int64).reshape(-1, 3)
        assert self.metadata is not None  # noqa: S101 - set by __init__
        return Trace(
            path=self.path,
            metadata=self.metadata,
            run_id=self.metadata["run_id"],
            context_id=int(arrays.get("context_id", np.array(0))),
            families=families,
            **{name: values[row] for name, values in tokens.items()},
            layer=self._layers()[column],
            family=np.array([families.index(name) for name in names], dtype=np.uint8)[column],
            ids=ids[row, column],
            weights=arrays["weights"].astype(np.float32)[row, column] if "weights" in arrays else None,
            top1=arrays["top1"].astype(np.int64)[row, column] if "top1" in arrays else None,
            line=np.arange(1, len(row) + 1),
            overflows=overflows,
            n_lost=n_lost,
            complete=bool(arrays.get("complete", np.array(True))),
            notes=(),
        )


class NpzWriter:
    """See log.Writer. Holds the columns of the whole trace; cache fields, residency and unknown lines are left out."""

    def __init__(self, path: Path, *, force: bool = False) -> None:
        self._path = path
        self._staged = Staged(path, force=force)
        self._builder = TraceBuilder()
        self._n_lines = 0
        self.notes: list[str] = []
        self._n_left_out = 0
        self._end: dict[str, int] | None = None
        self._context_id = 0

    def write(self, table: pa.Table) -> None:
        self._builder.add(table, np.arange(self._n_lines + 1, self._n_lines + 1 + table.num_rows))
        self._n_lines += table.num_rows
        for record in table.filter(pc.equal(table["type"], "end")).to_pylist():
            self._end = record
        if table.num_rows:
            self._context_id = table["context_id"][0].as_py() or self._context_id
        plain = pc.is_in(table["type"], pa.array(["event", "overflow", "end"]))
        cached = pc.or_(pc.is_valid(table["resident_experts"]), pc.is_valid(table["rest"]))
        self._n_left_out += pc.sum(pc.or_(pc.invert(plain), cached)).as_py() or 0

    def finish(self, metadata: Metadata) -> None:
        columns = self._builder.columns()
        n_lost = int(columns["overflows"][:, 2].sum()) if self._end is None else self._end["lost_events"]
        trace = Trace(
            path=self._path,
            metadata=metadata,
            run_id=metadata["run_id"],
            context_id=self._context_id,
            n_lost=n_lost,
            complete=self._end is not None,
            notes=(),
            **columns,
        )
        if trace.n_events == 0:
            raise TraceError(self._path, None, "is not written: the trace has no event")
        check_trace(trace, raise_problem)
        if self._n_left_out:
            what = "cache fields, residency, unknown fields or types"
            self.notes.append(f"npz holds routing decisions only: {self._n_left_out:,} lines lose {what}")
        with self._staged.path.open("wb") as file:
            np.savez_compressed(file, **_dense(trace))
        self._staged.commit()

    def discard(self) -> None:
        self._staged.discard()


def _dense(trace: Trace) -> dict[str, Any]:
    tokens = trace.tokens
    column, columns = trace.columns
    shape = (len(tokens), len(columns))
    known = [trace.n_experts(int(layer), trace.families[family]) for layer, family in columns]
    arrays: dict[str, Any] = {
        "ids": np.full((*shape, trace.ids.shape[1]), -1, dtype=np.int32),
        "n_experts": trace.model["n_experts"] or max((n for n in known if n), default=int(trace.ids.max()) + 1),
        "layers": columns[:, 0].astype(np.int32),
        "families": np.array([trace.families[family] for family in columns[:, 1]]),
        "phase": tokens.phase,
        "batch": tokens.batch,
        "request": tokens.request,
        "token_index": tokens.token,
        "n_lost": trace.n_lost,
        "complete": trace.complete,
        "context_id": trace.context_id,
        "run": json.dumps(trace.metadata),
    }
    arrays["ids"][tokens.of_event, column] = trace.ids
    if trace.weights is not None:
        arrays["weights"] = np.full(arrays["ids"].shape, np.nan, dtype=np.float32)
        arrays["weights"][tokens.of_event, column] = trace.weights
    if trace.top1 is not None:
        arrays["top1"] = np.full(shape, -1, dtype=np.int64)
        arrays["top1"][tokens.of_event, column] = trace.top1
    return arrays
