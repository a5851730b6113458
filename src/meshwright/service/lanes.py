"""Workers that wait to be asked: a lane for quick questions, one for searches, so that neither waits for the other."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from meshwright.service.answering import Reply
from meshwright.service.framing import framed, next_message
from meshwright.service.worker import DONE, PROGRESS, READY, WorkerRole, asked, progress_of, reply_of, used_s, work

Tell = Callable[[Any], None]
WAITING = 6.0
"""Factor on a question's limit by the clock: a worker that is nice waits for those that are not."""
SHORTEST_S = 0.05
"""Seconds between two looks at what a worker has used."""
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
STARTING_S = 60.0
"""A worker that has used so much processor time and is not ready is started again."""
Found = TypeVar("Found")


class TooSlowError(Exception):
    """A question was not answered within its time."""


class BusyError(Exception):
    """No worker was free within the time of a question, or too many wait already."""


class LostWorkerError(Exception):
    """The worker of a question died."""


class WorkerProcess:
    """One process, asked by this one."""

    def __init__(self, role: WorkerRole) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = socket.socketpair()
        self.process: BaseProcess = context.Process(target=work, args=(theirs, role, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.alive = True
        """Whether it can be asked."""
        self.used_s = 0.0
        """Processor time that it had used when it last said so: at its start, and with each reply."""
        self._reply: asyncio.Future[Reply] | None = None
        self._tell: Tell | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listening = asyncio.get_running_loop().create_task(self._listen(ours))

    def processor_s(self) -> float | None:
        """Processor time that the process has used; None where the system does not say."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / _TICKS

    async def ask(self, verb: str, body: Mapping[str, Any], tell: Tell | None = None) -> Reply:
        """The reply to a body.

        Raises:
            LostWorkerError: the process died.
        """
        if not self.alive or self._writer is None:
            raise LostWorkerError
        self._reply, self._tell = asyncio.get_running_loop().create_future(), tell
        self._writer.write(framed(asked(verb, body, tells=tell is not None)))
        return await self._reply

    def end(self) -> None:
        """Kill the process."""
        if not self.alive:
            return
        self.alive = False
        self.process.kill()
        self._listening.cancel()
        for waiting in (self.ready, self._reply):
            if waiting is not None and not waiting.done():
                waiting.set_exception(LostWorkerError())
                waiting.exception()

    async def _listen(self, connection: socket.socket) -> None:
        """Hear the process until it dies."""
        try:
            reader, self._writer = await asyncio.open_connection(sock=connection)
            while True:
                self._hear(await next_message(reader))
        except (EOFError, OSError):
            self.end()
        finally:
            if self._writer is not None:
                self._writer.close()

    def _hear(self, message: bytes) -> None:
        kind, content = message[:1], message[1:]
        if kind in (READY, DONE):
            self.used_s = used_s(content)
        if kind == READY and not self.ready.done():
            self.ready.set_result(None)
        elif kind == DONE and self._reply is not None and not self._reply.done():
            self._reply.set_result(reply_of(content))
        elif kind == PROGRESS and self._tell is not None:
            self._tell(progress_of(content))


class WorkerLane:
    """Workers of one role; questions wait for the first that is free."""

    def __init__(self, role: WorkerRole, count: int, *, most_waiting: int = 256) -> None:
        self.role, self.count, self.most_waiting = role, count, most_waiting
        self.waiting = self.busy = self.started = 0
        self.busy_s = 0.0
        self._free: list[WorkerProcess] = []
        self._line: deque[asyncio.Future[WorkerProcess]] = deque()
        """Who waits, first come first. A worker that comes free is handed to the first: were it only laid down, one who
        came since would take it, and those who wait would wait again, the longest the longest."""
        self._workers: set[WorkerProcess] = set()
        self._closed = False
        self._starting: set[asyncio.Task[None]] = set()
        self._moved_s = time.monotonic()
        """When a worker last became free."""

    def start(self) -> None:
        """Start the workers; questions wait for the first that is ready."""
        for _ in range(self.count):
            self._start()

    async def open(self) -> None:
        """Start the workers, and wait until one is ready."""
        self.start()
        self._lay_down(await self._taken())

    @property
    def alive(self) -> int:
        """Workers that can be asked, or are."""
        return sum(worker.alive and worker.ready.done() for worker in self._workers)

    def pids(self) -> list[int]:
        """The processes of its workers."""
        return sorted(worker.process.pid or 0 for worker in self._workers)

    async def close(self) -> None:
        """Kill the workers."""
        self._closed = True
        for task in self._starting:
            task.cancel()
        for worker in list(self._workers):
            worker.end()
            await asyncio.to_thread(worker.process.join, 5.0)

    async def ask(self, verb: str, body: Mapping[str, Any], limit_s: float, tell: Tell | None = None) -> Reply:
        """The reply of a worker.

        Args:
            verb: one that is served.
            body: the body as it was parsed.
            limit_s: the limit in seconds for the answer, processor seconds of its worker, and `WAITING` times as many
                by the clock. In line as long without any other question being answered: one that moves is waited in to
                its end.
            tell: called with the fields of a `SearchProgress` while the worker searches.

        Raises:
            BusyError: no worker was free in time.
            TooSlowError: the answer took longer; its worker was killed.
            LostWorkerError: its worker died.
        """
        worker = await self._next(limit_s)
        started = time.monotonic()
        self.busy += 1
        try:
            return await _within(limit_s, worker, worker.ask(verb, body, tell))
        except TooSlowError:
            worker.end()
            raise
        except asyncio.CancelledError:
            worker.end()
            raise
        finally:
            self.busy -= 1
            self.busy_s += time.monotonic() - started
            self._back(worker)

    async def _next(self, limit_s: float) -> WorkerProcess:
        if self.waiting >= self.most_waiting:
            raise BusyError
        self.waiting += 1
        try:
            while True:
                worker = await self._freed(WAITING * limit_s)
                if worker.alive:
                    return worker
                self._replace(worker)
        finally:
            self.waiting -= 1

    async def _freed(self, limit_s: float) -> WorkerProcess:
        patient_until_s = time.monotonic() + limit_s
        while True:
            try:
                async with asyncio.timeout(patient_until_s - time.monotonic()):
                    return await self._taken()
            except TimeoutError:
                if self._moved_s + limit_s <= time.monotonic():
                    raise BusyError from None
                patient_until_s = self._moved_s + limit_s

    async def _taken(self) -> WorkerProcess:
        """The worker that came free last, or the next one."""
        if self._free:
            return self._free.pop()
        place: asyncio.Future[WorkerProcess] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._lay_down(place.result())
            else:
                with contextlib.suppress(ValueError):  # a worker that came free since found it given up
                    self._line.remove(place)
            raise

    def _lay_down(self, worker: WorkerProcess) -> None:
        """A free worker, to the first in the line."""
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(worker)
                return
        self._free.append(worker)

    def _back(self, worker: WorkerProcess) -> None:
        self._moved_s = time.monotonic()
        if worker.alive:
            self._lay_down(worker)
        else:
            self._replace(worker)

    def _replace(self, worker: WorkerProcess) -> None:
        self._workers.discard(worker)
        if not self._closed:
            self._start()

    def _start(self) -> None:
        task = asyncio.get_running_loop().create_task(self._begin())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _begin(self) -> None:
        worker = WorkerProcess(self.role)
        self.started += 1
        self._workers.add(worker)
        try:
            await _within(STARTING_S, worker, asyncio.shield(worker.ready))
        except (TooSlowError, LostWorkerError):
            worker.end()
            self._workers.discard(worker)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1.0)
                self._replace(worker)
            return
        self._lay_down(worker)


async def _within(limit_s: float, worker: WorkerProcess, answering: Awaitable[Found]) -> Found:
    """What a worker answers, within so many of its processor seconds.

    Raises:
        TooSlowError: it takes more, or `WAITING` times as many seconds by the clock.
    """
    task, began_s, before_s = asyncio.ensure_future(answering), time.monotonic(), worker.used_s
    try:
        left_s = limit_s
        while not (await asyncio.wait({task}, timeout=max(left_s, SHORTEST_S)))[0]:
            waited_s, now_s = time.monotonic() - began_s, worker.processor_s()
            spent_s = waited_s if now_s is None else now_s - before_s
            left_s = min(limit_s - spent_s, WAITING * limit_s - waited_s)
            if left_s <= 0:
                raise TooSlowError
        return await task
    finally:
        task.cancel()
