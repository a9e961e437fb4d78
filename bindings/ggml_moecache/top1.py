"""Recording the column `top1_token` of the routing log through llama.cpp's eval callback (traces/FORMAT.md, top1)."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ggml_moecache import _plugin
from ggml_moecache._graph_node import Node, NodeReader
from ggml_moecache.errors import BackendError
from ggml_moecache.routing import run_metadata

if TYPE_CHECKING:
    from ggml_moecache.logit_lens import LogitLens

Rows = npt.NDArray[np.int64]

_HIDDEN = re.compile(r"l_out-(\d+)")  # llama.cpp's name of the residual stream behind a layer
_OUTPUT_ROWS = "out_ids"  # of the input that holds the rows whose logits are wanted


class Top1Recorder:
    """The eval callback of one context, and the file beside its routing log.

    llama.cpp asks for each node of a graph, in order, whether its values are wanted, and computes up to a wanted one
    before it shows it. When the hidden state behind a layer is shown, the plugin has counted and logged that layer's
    MoE block, so its count of ubatches names the one that runs.

    Used by the thread that computes; `close` when nothing is computed any more. An error must not leave the callback
    (llama.cpp would skip the rest of the graph): it is said once on stderr, and recording ends.
    """

    def __init__(self, lens: LogitLens, layers: frozenset[int], every: int, folder: Path) -> None:
        """`layers`: those with experts; `every`: of the tokens of the context, counted as they are computed."""
        self.context_id: int | None = None  # known once the context is there
        self._lens = lens
        self._layers = layers
        self._every = every
        self._folder = folder
        self._reader = NodeReader()
        self._log: _Top1File | None = None
        self._stopped = False
        # Of the ubatch that runs:
        self._last_layer = sys.maxsize  # a ubatch goes up through the layers
        self._n_tokens = 0
        self._first_token = 0  # number of its first token among those of the context
        self._batch_id: int | None = None  # not asked for yet
        self._output_rows: tuple[int, Rows] | None = None  # tokens before, and which of them the next layer sees
        self._wanted: Rows = np.empty(0, np.int64)  # rows of the node that was asked for

    def on_node(self, address: int, ask: bool, _user: object) -> bool:
        """llama.cpp's ggml_backend_sched_eval_callback. Answers True to `ask` if values of the node are wanted."""
        if self._stopped:
            return not ask
        try:
            node = Node.from_address(address)
            if ask:
                return self._is_wanted(node)
            self._record(node)
        except OSError as error:
            self._stop(f"{self._folder}: {error.strerror or error}")
        except BackendError as error:
            self._stop(str(error))
        except Exception as error:  # noqa: BLE001 - see above: nothing may leave a callback
            self._stop(f"{type(error).__name__}: {error}")
        return not ask

    def close(self) -> None:
        """Write the end record."""
        self._stopped = True
        if self._log is not None:
            try:
                self._log.close()
            except OSError as error:
                self._stop(f"{self._folder}: {error.strerror or error}")

    @staticmethod
    def say_no_timings() -> None:
        """In the place of llama.cpp's timings."""
        print("moecache: top1_token is recorded: this run gives no timings", file=sys.stderr)

    def _stop(self, why: str) -> None:
        self._stopped = True
        self._log = None
        print(f"moecache: log_file: {why}; no more top1 tokens are recorded", file=sys.stderr)

    # --- which rows -------------------------------------------------------------------------------------------------

    def _is_wanted(self, node: Node) -> bool:
        name = node.name
        if name.startswith("result_"):  # behind the last layer
            self._output_rows = None
            return False
        if (match := _HIDDEN.fullmatch(name)) is None:
            self._see_output_rows(node)
            return False
        layer = int(match[1])
        before, self._output_rows = self._output_rows, None
        if layer not in self._layers:
            return False
        n_rows = int(node.ne[1])
        narrowed = before is not None and len(before[1]) == n_rows
        if layer <= self._last_layer:
            self._begin_ubatch(before[0] if before is not None and narrowed else n_rows)
        self._last_layer = layer
        tokens = before[1] if before is not None and narrowed else np.arange(n_rows, dtype=np.int64)
        if not narrowed and n_rows not in (0, self._n_tokens):
            raise BackendError(f"{name} has {n_rows} rows, the ubatch has {self._n_tokens} tokens")
        self._wanted = np.flatnonzero((self._first_token + tokens) % self._every == 0)
        return len(self._wanted) > 0

    def _see_output_rows(self, node: Node) -> None:
        ids, source = node.source(1), node.source(0)
        if ids is not None and source is not None and _OUTPUT_ROWS in ids.name and int(node.ne[1]) == int(ids.ne[0]):
            rows = self._reader.rows(ids, np.zeros(1, np.int64))[0].astype(np.int64)
            self._output_rows = (int(source.ne[1]), rows)

    def _begin_ubatch(self, n_tokens: int) -> None:
        # What was computed while the plugin has counted no ubatch was a warm-up: no tokens of the log.
        if self._log is not None or self._n_graphs() > 0:
            self._first_token += self._n_tokens
        self._n_tokens = n_tokens
        self._batch_id = None

    # --- what is in them --------------------------------------------------------------------------------------------

    def _record(self, node: Node) -> None:
        if self._log is None:
            if self._n_graphs() == 0:  # a warm-up, or the experts of this layer are elsewhere
                return
            self._log = _Top1File(self._folder, self.context_id)
        if self._last_layer not in self._log.layers:
            return
        if int(node.ne[0]) != self._lens.n_embd or node.ne[2] * node.ne[3] != 1:
            raise BackendError(
                f"{node.name} has the shape {list(node.ne)}: it is no hidden state of {self._lens.n_embd}"
            )
        if self._batch_id is None:
            self._batch_id = self._n_graphs() - 1
        tokens = self._lens.top1(self._reader.rows(node, self._wanted))
        self._log.write(self._batch_id, self._last_layer, self._wanted, tokens)

    def _n_graphs(self) -> int:
        """Ubatches of this context that the plugin has counted, the running one once a block of the store has run."""
        contexts = _plugin.status_json()["contexts"]
        return next((int(c["n_graphs"]) for c in contexts if c["context_id"] == self.context_id), 0)


class _Top1File:
    """The file beside a routing log. One line per ubatch and layer, each written at once."""

    def __init__(self, folder: Path, context_id: int | None) -> None:
        try:
            run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise BackendError(f"{folder} has no run.json: the log itself could not be opened") from None
        context = next((c for c in run["contexts"] if c["context_id"] == context_id), None)
        if context is None or run["run_id"] != run_metadata()["run_id"]:
            raise BackendError(f"{folder} holds the log of another run")
        self._head = {"run_id": run["run_id"], "context_id": context_id}
        self.layers = frozenset((context["model"] or run["model"])["moe_layers"])
        path = folder / f"{Path(context['file']).stem}.top1.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._n_tokens = 0

    def write(self, batch_id: int, layer: int, rows: Rows, tokens: Rows) -> None:
        place = {"batch_id": batch_id, "layer_id": layer}
        self._line({"type": "top1", **self._head, **place, "rows": rows.tolist(), "tokens": tokens.tolist()})
        self._n_tokens += len(tokens)

    def _line(self, record: dict[str, Any]) -> None:
        text = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        while text:
            text = text[os.write(self._file, text) :]

    def close(self) -> None:
        try:
            self._line({"type": "end", **self._head, "n_tokens": self._n_tokens})
        finally:
            os.close(self._file)
