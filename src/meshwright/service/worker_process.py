"""One worker as the service sees it: a process, the question that it answers, and what it says."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from meshwright.service.answering import Reply
from meshwright.service.framing import Messages, framed
from meshwright.service.worker import DONE, PROGRESS, READY, WorkerRole, progress_of, reply_of, used_s, work

Tell = Callable[[Any], None]
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

ENDS_IN_S = 5.0
"""Longest wait for a process that was killed."""


class LostWorkerError(Exception):
    """The worker of a question died."""


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """A question that waits for a worker, or for its reply."""

    content: bytes
    """What a worker receives; nothing where it answers unasked, that it is ready."""
    limit_s: float
    tell: Tell | None
    reply: asyncio.Future[Reply]
    since_s: float = field(default_factory=time.monotonic)
    """When it was asked, then when its worker got it, on the monotonic clock."""
    worker: WorkerProcess | None = None
    """The worker that has it; None while it waits for one."""
    before_s: float = 0.0
    """Processor time that the worker had used before it."""
    look: asyncio.TimerHandle | None = None
    """When it is next looked at whether it has had its time."""

    def used_s(self) -> float | None:
        """Processor time that its worker has used for it; None where the system does not say, or no worker has it."""
        used_s = None if self.worker is None else self.worker.processor_s()
        return None if used_s is None else used_s - self.before_s


class WorkerProcess(asyncio.Protocol):
    """One process, asked by this one.

    Args:
        role: what it is for.
        starting: is answered once it can be asked.
        came_free: called whenever it can be asked, before the reply that it gave is looked at.
        died: called once, when it is dead.
    """

    def __init__(
        self,
        role: WorkerRole,
        starting: OpenQuestion,
        came_free: Callable[[WorkerProcess], None],
        died: Callable[[WorkerProcess], None],
    ) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = socket.socketpair()
        self.process: BaseProcess = context.Process(target=work, args=(theirs, role, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()
        self.alive, self.ready = True, False
        self.question: OpenQuestion | None = starting
        """What it answers."""
        starting.worker = self
        self._came_free, self._died = came_free, died
        self._used_s = 0.0
        """Processor time that it had used when it last said so: at its start, and with each reply."""
        self._heard = Messages()
        self._transport: asyncio.WriteTransport | None = None
        loop = asyncio.get_running_loop()
        self._connecting = loop.create_task(loop.create_connection(lambda: self, sock=ours))

    def processor_s(self) -> float | None:
        """Processor time that the process has used; None where the system does not say."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def answer(self, question: OpenQuestion) -> None:
        """Send it a question, where it has none."""
        assert self._transport is not None
        self.question, question.worker, question.before_s = question, self, self._used_s
        self._transport.write(framed(question.content))

    def end(self) -> None:
        """Kill the process; its question is lost."""
        if not self.alive:
            return
        self.alive = False
        self.process.kill()
        # Unless somebody waits for its end, it stays in the system's table of processes.
        asyncio.get_running_loop().run_in_executor(None, self.process.join, ENDS_IN_S)
        if self._transport is not None:
            self._transport.close()
        question, self.question = self.question, None
        if question is not None and not question.reply.done():
            question.reply.set_exception(LostWorkerError())
        self._died(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport to write to: of `asyncio.Protocol`."""
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is none of asyncio's classes
        if not self.alive:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The process died: of `asyncio.Protocol`."""
        self.end()

    def data_received(self, data: bytes) -> None:
        """Hear the process: of `asyncio.Protocol`."""
        for message in self._heard.with_more(data):
            self._hear(message[:1], message[1:])

    def _hear(self, kind: bytes, content: bytes) -> None:
        question = self.question
        if kind == PROGRESS:
            if question is not None and question.tell is not None:
                question.tell(progress_of(content))
            return
        assert kind in (READY, DONE)
        self._used_s, self.ready, self.question = used_s(content), True, None
        if self.alive:
            self._came_free(self)
        if question is not None and not question.reply.done():
            question.reply.set_result(reply_of(content))
