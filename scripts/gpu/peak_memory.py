"""Peak of the device memory in use while something runs, as nvidia-smi tells it."""

from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

PERIOD_MS = 100


class PeakMemory:
    """`with PeakMemory() as peak: ...`; then `peak.mib`: most MiB in use at once, of all GPUs and processes together.

    None: nvidia-smi cannot be run. Sampled every 100 ms: a shorter peak is not seen.
    """

    def __init__(self) -> None:
        self.mib: int | None = None
        self._samples: dict[str, int] = {}

    def __enter__(self) -> Self:
        command = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits", f"-lms={PERIOD_MS}"]
        try:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return self
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if hasattr(self, "_reader"):
            self._process.terminate()
            self._reader.join()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        for line in self._process.stdout:
            gpu, _, used = line.partition(",")
            if used.strip().isdigit():
                self._samples[gpu] = int(used)
                self.mib = max(self.mib or 0, sum(self._samples.values()))
