"""Services as users start them: a process, a port, HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meshwright.client import Client
from meshwright.service.worker import NICENESS

CANARY = "canary-4f1c9a"
"""Content of a file that no request may see."""


@dataclass(frozen=True)
class Answered:
    """What came back."""

    status: int
    content: bytes
    headers: dict[str, str]

    @property
    def data(self) -> Any:
        return json.loads(self.content)


@dataclass(frozen=True)
class Service:
    """A service under test."""

    url: str
    process: subprocess.Popen[str]
    folder: Path

    @property
    def client(self) -> Client:
        return Client(self.url)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answered:
        """One request; a body that is no bytes goes as JSON."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=240) as response:
                return Answered(response.status, response.read(), dict(response.headers))
        except urllib.error.HTTPError as error:
            with error:
                return Answered(error.code, error.read(), dict(error.headers))

    def children(self) -> list[int]:
        """Processes that it started, those that ended and were not asked for included."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(child) for child in found.split()]

    def searchers(self) -> list[int]:
        """Processes that search: they are nicer than the service."""
        own = os.getpriority(os.PRIO_PROCESS, self.process.pid)
        return [child for child in self.children() if os.getpriority(os.PRIO_PROCESS, child) >= own + NICENESS]


def started(folder: Path, *options: str, **environment: str) -> Service:
    """A service that runs; `stop` ends it."""
    command = [sys.executable, "-m", "meshwright", "serve", "--json", "--quiet", "--port", str(free_port()), *options]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert process.stdout is not None
    line = ""
    while not line.rstrip().endswith("}"):
        read = process.stdout.readline()
        assert read, f"the service ended with {process.wait(60)}"
        line += read
    found = Service(json.loads(line)["url"], process, folder)
    # A service answers quick questions before those that search are ready.
    while found.ask("GET", "/healthz").status != 200:
        time.sleep(0.05)
    return found


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop(service: Service) -> None:
    service.process.send_signal(signal.SIGINT)
    assert service.process.wait(120) == 0
    assert service.process.stdout is not None
    service.process.stdout.close()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One of two searching workers, in a folder with a file that nobody may read."""
    folder = tmp_path_factory.mktemp("service")
    for name in ("canary.json", "canary.sh", "canary.toml", "gpt2"):
        (folder / name).write_text(f'{{"{CANARY}": 1}}\n')
    found = started(folder, "--workers", "2", "--queue", str(folder / "jobs.db"))
    yield found
    stop(found)
