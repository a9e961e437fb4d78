"""A llama-server on a free port, with or without the plugin, and requests to it."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tests.e2e.programs import SAME_KERNELS, start_environment
from tests.harness.environment import Build, reference_device

HOST = "127.0.0.1"
START_LIMIT_S = 120
REQUEST_LIMIT_S = 120


class ServerFailed(RuntimeError):
    """The server did not start or died; the message holds its last lines."""


@dataclass
class Server:
    """A running server; `log` and `status` are complete once the context manager has ended."""

    port: int
    log: str = ""
    status: dict[str, Any] | None = None

    def complete(self, prompt: str, n_predict: int, *, cache_prompt: bool | None = False) -> dict[str, Any]:
        """Greedy completion with the two likeliest tokens of every step; the response as decoded JSON.

        `cache_prompt` None: as the server was told.
        """
        body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "n_probs": 2}
        if cache_prompt is not None:
            body["cache_prompt"] = cache_prompt
        connection = http.client.HTTPConnection(HOST, self.port, timeout=REQUEST_LIMIT_S)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        if response.status != HTTPStatus.OK:
            raise ServerFailed(f"/completion answered {response.status}: {text.decode(errors='replace')}")
        answer: dict[str, Any] = json.loads(text)
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
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    device = "MoECache0" if capacity is not None else reference_device() or "none"
    with tempfile.TemporaryDirectory(prefix="moecache-server-") as scratch:
        status_file, log_file = Path(scratch) / "status.json", Path(scratch) / "log"
        extra = {"GGML_MOECACHE_STATUS": str(status_file)} if capacity is not None else {}
        command = [
            str(build.llama_bin / "llama-server"),
            *("--host", HOST, "--port", str(port), "-dev", device, *SAME_KERNELS),
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
        server = Server(port)
        try:
            _wait_until_healthy(port, process, log_file)
            yield server
        finally:
            process.terminate()
            process.wait(timeout=60)
            server.log = log_file.read_text(errors="replace")
            if status_file.is_file():
                server.status = json.loads(status_file.read_text())


def _wait_until_healthy(port: int, process: subprocess.Popen[bytes], log_file: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        if _is_healthy(port):
            return
        time.sleep(0.05)
    raise ServerFailed(f"llama-server did not become healthy:\n{log_file.read_text(errors='replace')[-4000:]}")


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
