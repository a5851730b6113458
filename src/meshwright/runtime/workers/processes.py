"""Mesh workers as processes of this machine: each a fresh interpreter with its own JAX, on one end of a socket pair."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from mmap import mmap
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from meshwright.runtime.workers.crew import Answer, Failed, Gone
from meshwright.runtime.workers.worker import FOLDER

GRACE_S = 2.0
"""Time for a worker to end by itself when it is let go."""
HOST = "127.0.0.1"


class ProcessCrew:
    """One process per mesh; see `crew.Crew`."""

    host = HOST

    def __init__(self, environments: Sequence[dict[str, str]]) -> None:
        """Start the workers.

        Args:
            environments: what each adds to the environment of this process.
        """
        self._places = _Sockets(len(environments))
        # The driver's, as a worker that is killed while it connects cannot remove its own.
        self._folder = TemporaryDirectory(prefix="meshwright-", ignore_cleanup_errors=True)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        for mesh, environment in enumerate(environments):
            ours, its = socket.socketpair()
            # `-m` rather than multiprocessing's spawn: that would run the user's script again in every worker.
            command = [
                sys.executable,
                "-P",
                "-m",
                "meshwright.runtime.workers.processes",
                str(mesh),
                str(its.fileno()),
                str(self._places.number),
            ]
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment, FOLDER: self._folder.name},
                pass_fds=(its.fileno(), self._places.number),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            its.close()
            self._processes.append(process)
            self._connections.append(Connection(ours.detach()))

    def pids(self) -> list[int]:
        """Process of each mesh."""
        return [process.pid for process in self._processes]

    def call(self, mesh: int, name: str, *arguments: Any) -> None:
        """See `Crew`."""
        # A worker that is gone is found out by `answers`.
        with suppress(OSError):
            self._connections[mesh].send((name, arguments))

    def answers(self, meshes: Sequence[int], limit_s: float) -> list[tuple[int, Answer]]:
        """See `Crew`."""
        ready = wait([self._connections[mesh] for mesh in meshes], limit_s)
        found: list[tuple[int, Answer]] = []
        for mesh in [mesh for mesh in meshes if self._connections[mesh] in ready]:
            try:
                found.append((mesh, self._connections[mesh].recv()))
            except (EOFError, OSError):
                code = _ended(self._processes[mesh])
                found.append((mesh, Gone(f"its process {self._processes[mesh].pid} ended with code {code}")))
        return found

    def places(self) -> list[int]:
        """See `Crew`."""
        return self._places.read()

    def close(self, *, kill: bool) -> None:
        """See `Crew`."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            if kill:
                process.kill()
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._places.close()
        self._folder.cleanup()


class _Sockets:
    """The instruction each worker is at, in memory that outlives the worker."""

    _ONE = struct.Struct("<q")

    def __init__(self, meshes: int) -> None:
        self._meshes = meshes
        self._file = TemporaryFile(prefix="meshwright-")  # noqa: SIM115
        self._file.truncate(meshes * self._ONE.size)
        self.number = self._file.fileno()
        self._memory = mmap(self.number, meshes * self._ONE.size)

    def read(self) -> list[int]:
        return [self._ONE.unpack_from(self._memory, mesh * self._ONE.size)[0] for mesh in range(self._meshes)]

    def close(self) -> None:
        self._memory.close()
        self._file.close()

    @classmethod
    def writer(cls, number: int, mesh: int) -> Callable[[int], None]:
        memory = mmap(number, 0)
        at = mesh * cls._ONE.size

        def write(place: int) -> None:
            cls._ONE.pack_into(memory, at, place)

        return write


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    return process.returncode


def serve_driver(mesh: int, control: int, places: int) -> None:
    """Do what the driver asks until it closes its end.

    Args:
        mesh: the mesh of this worker.
        control: file of the worker's end of the socket pair.
        places: file of the memory that says where workers are.
    """
    # What libraries print there, as gloo does of whom it has met, would stand in the middle of the driver's answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    from meshwright.runtime.workers.worker import MeshWorker

    connection = Connection(control)
    worker = MeshWorker(mesh, _Sockets.writer(places, mesh))
    while True:
        try:
            name, arguments = connection.recv()
        except (EOFError, OSError):
            # Nothing here is worth the time an orderly end of JAX takes.
            os._exit(0)
        if name == "connect":
            arguments = (*arguments, control)
        try:
            answer = getattr(worker, name)(*arguments)
        except Exception as error:
            answer = Failed.of(error)
        connection.send(answer)


if __name__ == "__main__":
    serve_driver(*(int(word) for word in sys.argv[1:4]))
