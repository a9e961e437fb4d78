"""Runs the GPU's part of a calibration on the stand-in device, in a process of its own: python -m ... LLAMA_BIN OUT.

The environment names the plugin (GGML_BACKEND_PATH) and allows the stand-in. Its memory counts as pinned here.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from pyanalysis.calibrate import calibration, measure
from pyanalysis.calibrate.costs import Measured, details
from pyanalysis.calibrate.experts import Store, read_geometry
from pyanalysis.calibrate.ggml import Ggml


class StandIn(Ggml):
    def __init__(self, library_dir: Path) -> None:
        super().__init__(library_dir)
        assert self.gpu is None  # a device of this project is never taken for a GPU
        devices = [self.ggml_backend_dev_get(i) for i in range(self.ggml_backend_dev_count())]
        self.gpu = next(d for d in devices if self.ggml_backend_dev_name(d) == b"MoECache0")

    def pinned_type(self) -> int | None:
        return self.ggml_backend_dev_buffer_type(self.cpu)


def main() -> None:
    llama_bin, model, out = map(Path, sys.argv[1:])
    ggml = StandIn(llama_bin)
    geometry = read_geometry(ggml, model)
    measured = Measured({1: {1: measure.Spread.of([1.0])}})
    backend = ggml.backend(ggml.gpu)
    with contextlib.closing(Store.load(ggml, geometry.sample(1 << 22), ggml.pinned_type())) as store:
        calibration._copies(ggml, backend, 4, measured)
        calibration._hits(ggml, ggml.gpu, backend, store, geometry.top_k, 4, measured)
    ggml.ggml_backend_free(backend)
    out.write_text(json.dumps(details(measured)))


if __name__ == "__main__":
    main()
