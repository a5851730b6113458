"""A process that answers questions one after the other, within a limit of memory, in a folder of its own."""

from __future__ import annotations

import gc
import json
import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.interruptions import end_with
from meshwright.records import fields_of as fields_of_record
from meshwright.search.watching import SearchProgress, seldom, watched
from meshwright.service.answering import Reply, reply_to
from meshwright.service.confined import Confinement
from meshwright.service.framing import framed, receive

READY, PROGRESS, DONE = b"r", b"t", b"d"
"""First bytes of what a worker sends: it can be asked; how far it is; the reply."""
_HEAD = struct.Struct("!Hd")
"""Head of a reply: its status, and the processor seconds that the worker has used in all."""
TOLD_S = 0.2
"""Seconds between two messages of how far a search is."""
MANY_OBJECTS = 50_000
"""New ones after which Python looks for cycles."""
NICENESS = 10
"""Niceness of workers that search: a tenth of the weight of one that answers quick questions, so that estimates come
first where processors are few, and searches still end."""
_WARM: dict[str, dict[str, Any]] = {
    "estimate": {"model": "llama-3.1-8b", "gpus": "8xH100", "plan": "tp2.mbs1.z1"},
    "plan": {"model": "llama-3.1-8b", "gpus": "2xH100", "top": 1},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRole:
    """What a worker is for."""

    warm: str = "estimate"
    """The verb it answers once before it is asked, so that everything is loaded."""
    nice: int = 0
    memory_bytes: int | None = None
    """Above what it has when it is ready; None for no limit."""


def work(connection: socket.socket, role: WorkerRole, parent: int | None = None) -> None:
    """Answer questions until the other end is closed, or the parent ends while one is answered.

    Args:
        connection: questions come in, replies and how far they are go out.
        role: what the worker is for.
        parent: the process that asks, where it is another one.
    """

    def tell(progress: SearchProgress) -> None:
        connection.sendall(framed(PROGRESS + json.dumps(fields_of_record(progress)).encode()))

    if parent is not None:
        end_with(parent)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="meshwright-") as name:
        folder = Path(name).resolve()
        os.chdir(folder)
        sys.path[:] = [place for place in sys.path if place]
        sys.stdin = open(os.devnull)  # noqa: SIM115
        confinement = Confinement(folder)
        reply_to(role.warm, _WARM[role.warm], folder)
        # What is loaded stays; looking through it for cycles costs estimates some percent.
        gc.freeze()
        gc.set_threshold(MANY_OBJECTS, *gc.get_threshold()[1:])
        if role.memory_bytes:
            _limit(role.memory_bytes)
        if role.nice:
            os.nice(role.nice)
        try:
            connection.sendall(framed(READY + _packed(Reply(status=0, content=b""))))
            while True:
                verb, body, tells = json.loads(receive(connection))
                with confinement.shut(), watched(seldom(tell, TOLD_S) if tells else None):
                    reply = reply_to(verb, body, folder)
                connection.sendall(framed(DONE + _packed(reply)))
        except (EOFError, OSError, KeyboardInterrupt):
            return


def asked(verb: str, body: Mapping[str, Any], *, tells: bool) -> bytes:
    """A question as a worker receives it.

    Args:
        verb: one that is served.
        body: the body as it was parsed.
        tells: whether a search tells how far it is.
    """
    return json.dumps([verb, body, tells]).encode()


def progress_of(content: bytes) -> dict[str, Any]:
    """The fields of a `SearchProgress` that a worker sent."""
    found: dict[str, Any] = json.loads(content)
    return found


def reply_of(content: bytes) -> Reply:
    """The reply that a worker sent: numbers and text, as nothing that answers strangers may hand objects on."""
    media_type, _, rest = content[_HEAD.size :].partition(b"\n")
    return Reply(status=_HEAD.unpack_from(content)[0], content=rest, media_type=media_type.decode())


def used_s(content: bytes) -> float:
    """The processor seconds that a worker had used when it sent a reply, or that it can be asked."""
    found: float = _HEAD.unpack_from(content)[1]
    return found


def _packed(reply: Reply) -> bytes:
    return _HEAD.pack(reply.status, time.process_time()) + reply.media_type.encode() + b"\n" + reply.content


def _limit(more_bytes: int) -> None:
    """Let this process have so much more memory than it has."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    most = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
