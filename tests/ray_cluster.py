"""A real Ray cluster of two node processes of this machine, of which tests may kill the second."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

RAY = str(Path(sys.executable).parent / "ray")
ENVIRONMENT = {**os.environ, "RAY_health_check_period_ms": "1000"}
"""A killed node is missed soon."""

START_S = 150.0
"""Both nodes are up by then. Ray gives a node's agents about 20 s and the node 30 s to start, which no setting changes;
where other tests have the processors that may be too little, and the node is started again."""
STARTED, TOO_SLOW = "Ray runtime started", ("timed out during startup", "Timed out waiting for file")


@dataclass(slots=True)
class Node:
    """One node in its own process group, which can be killed whole."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait(self, deadline: float) -> bool:
        """Whether it has come up, by what it says itself: asking the cluster would take processors from it."""
        while self.process.poll() is None and time.monotonic() < deadline:
            if STARTED in self.log.read_text():
                return True
            time.sleep(0.2)
        return False


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def node(log: Path, *arguments: str) -> Node:
    own = ("--node-ip-address=127.0.0.1", "--num-cpus=1", "--object-store-memory=100000000", "--block")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [RAY, "start", *arguments, *own],
            env=ENVIRONMENT,
            start_new_session=True,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return Node(process, log)


def started(folder: Path, deadline: float, arguments: Callable[[], list[str]]) -> Node:
    """A node that is up, started again as often as time allows."""
    said = ""
    for attempt in count():
        one = node(folder / f"{attempt}.log", *arguments())
        if one.wait(deadline):
            return one
        kill(one)
        said = one.log.read_text() or said
        if time.monotonic() > deadline or not any(words in said for words in TOO_SLOW):
            break
    if time.monotonic() > deadline or any(words in said for words in TOO_SLOW):
        last = (said.strip().splitlines() or ["it said nothing"])[-1]
        pytest.skip(f"this machine is too busy: no Ray node came up within {START_S:.0f} s: {last}")
    pytest.fail(f"a Ray node does not start:\n{said}")


def below(parent: int) -> list[int]:
    """A process and all that it started, and they in turn."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [parent]
    for one in found:
        found += [child for child, its in parents.items() if its == one]
    return found


def kill(node: Node) -> None:
    """End a node and all its workers at once, as a power cut would."""
    if node.process.poll() is None:
        for one in below(node.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
    node.process.wait(30)


@contextlib.contextmanager
def two_nodes(logs: Path) -> Iterator[tuple[str, list[Node]]]:
    """Address and nodes of a cluster, gone afterwards."""
    deadline = time.monotonic() + START_S
    # Ray's sockets lie deep below this folder, and the name of a socket may have 107 characters.
    place = tempfile.mkdtemp(prefix="ray")
    ports: list[int] = []

    def head() -> list[str]:
        ports.append(free_port())
        return ["--head", f"--port={ports[-1]}", "--include-dashboard=false", f"--temp-dir={place}"]

    nodes = [started(folder(logs / "head"), deadline, head)]
    address = f"127.0.0.1:{ports[-1]}"
    try:
        nodes.append(started(folder(logs / "second"), deadline, lambda: [f"--address={address}"]))
        yield address, nodes
    finally:
        for one in reversed(nodes):
            kill(one)
        shutil.rmtree(place, ignore_errors=True)


def folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path
