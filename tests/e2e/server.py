"""A llama-server on a free port, with or without the plugin, and requests to it."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.programs import SAME_KERNELS, start_environment
from tests.harness.environment import Build, reference_device

START_LIMIT_S = 120
REQUEST_LIMIT_S = 120


class ServerFailed(RuntimeError):
    """The server did not start or died; the message holds its last lines."""


@dataclass
class Server:
    """A running server; `log` and `status` are complete once the context manager has ended."""

    url: str
    log: str = ""
    status: dict[str, Any] | None = None

    def complete(self, prompt: str, n_predict: int) -> dict[str, Any]:
        """Greedy completion with the two likeliest tokens of every step; the response as decoded JSON."""
        body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "n_probs": 2, "cache_prompt": False}
        request = urllib.request.Request(
            f"{self.url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=REQUEST_LIMIT_S) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def complete_together(self, prompts: list[str], n_predict: int) -> list[dict[str, Any]]:
        """All prompts at once, each from a thread of its own."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.complete(prompt, n_predict), prompts))


@contextmanager
def running_server(
    build: Build, *arguments: str, capacity: str | None, environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """Start llama-server with the arguments, on MoECache0 if a capacity is given, and stop it at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    device = "MoECache0" if capacity is not None else reference_device() or "none"
    with tempfile.TemporaryDirectory(prefix="moecache-server-") as scratch:
        status_file, log_file = Path(scratch) / "status.json", Path(scratch) / "log"
        extra = {"GGML_MOECACHE_STATUS": str(status_file)} if capacity is not None else {}
        command = [
            str(build.llama_bin / "llama-server"),
            *("--host", "127.0.0.1", "--port", str(port), "-dev", device, *SAME_KERNELS),
            *arguments,
        ]
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                command,
                env=start_environment(build, capacity, extra | (environment or {})),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        server = Server(f"http://127.0.0.1:{port}")
        try:
            _wait_until_healthy(server.url, process, log_file)
            yield server
        finally:
            process.terminate()
            process.wait(timeout=60)
            server.log = log_file.read_text(errors="replace")
            if status_file.is_file():
                server.status = json.loads(status_file.read_text())


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log_file: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.05)
    raise ServerFailed(f"llama-server did not become healthy:\n{log_file.read_text(errors='replace')[-4000:]}")
