"""Workers that wait to be asked: a lane for quick questions, one for searches, so that neither waits for the other."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from meshwright.service.answering import Reply
from meshwright.service.worker import WorkerRole, asked
from meshwright.service.worker_process import ENDS_IN_S, OpenQuestion, Tell, WorkerProcess

WAITING = 6.0
"""Factor on a question's limit by the clock: a worker that is nice waits for those that are not."""
SHORTEST_S = 0.05
"""Seconds between two looks at what a worker has used."""
STARTING_S = 60.0
"""A worker that has used so much processor time and is not ready is started again."""
AGAIN_S = 1.0
"""Seconds until another worker is started in place of one that never became ready."""


class TooSlowError(Exception):
    """A question was not answered within its time."""


class BusyError(Exception):
    """No worker was free within the time of a question, or too many wait already."""


class WorkerLane:
    """Workers of one role; questions wait for the first that is free."""

    def __init__(self, role: WorkerRole, count: int, *, most_waiting: int = 256) -> None:
        self.role, self.count, self.most_waiting = role, count, most_waiting
        self.started = 0
        self._free: list[WorkerProcess] = []
        self._line: deque[OpenQuestion] = deque()
        """Who waits, first come first."""
        self._workers: set[WorkerProcess] = set()
        self._closed = False
        self._one_ready = asyncio.Event()
        self._moved_s = time.monotonic()
        """When a worker last became free."""

    def start(self) -> None:
        """Start the workers; questions wait for the first that is ready."""
        for _ in range(self.count):
            self._start()

    async def open(self) -> None:
        """Start the workers, and wait until one is ready."""
        self.start()
        await self._one_ready.wait()

    @property
    def waiting(self) -> int:
        """Questions that wait for a worker."""
        return len(self._line)

    @property
    def busy(self) -> int:
        """Workers that answer."""
        return sum(worker.alive and worker.ready and worker.question is not None for worker in self._workers)

    @property
    def alive(self) -> int:
        """Workers that can be asked, or are."""
        return sum(worker.alive and worker.ready for worker in self._workers)

    def pids(self) -> list[int]:
        """The processes of its workers."""
        return sorted(worker.process.pid or 0 for worker in self._workers)

    async def close(self) -> None:
        """Kill the workers."""
        self._closed = True
        for worker in list(self._workers):
            worker.end()
            await asyncio.to_thread(worker.process.join, ENDS_IN_S)

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
        question = OpenQuestion(
            asked(verb, body, tells=tell is not None), limit_s, tell, asyncio.get_running_loop().create_future()
        )
        if self._free:
            self._give(self._free.pop(), question)
        elif len(self._line) < self.most_waiting:
            self._line.append(question)
            self._look_in(question, WAITING * limit_s)
        else:
            raise BusyError
        try:
            return await question.reply
        finally:
            self._forget(question)

    def _give(self, worker: WorkerProcess, question: OpenQuestion) -> None:
        """Let a free worker answer a question."""
        question.since_s = time.monotonic()
        worker.answer(question)
        self._look_in(question, question.limit_s)

    def _came_free(self, worker: WorkerProcess) -> None:
        """A worker can be asked, and is at once where somebody waits, before anything is done with its last reply: it
        idles while it has no question."""
        self._moved_s = time.monotonic()
        self._one_ready.set()
        while self._line:
            question = self._line.popleft()
            if not question.reply.done():
                self._give(worker, question)
                return
        self._free.append(worker)

    def _died(self, worker: WorkerProcess) -> None:
        """Another worker in place of one that is dead."""
        self._workers.discard(worker)
        if worker in self._free:
            self._free.remove(worker)
        if worker.ready:
            self._moved_s = time.monotonic()
        if not self._closed:
            asyncio.get_running_loop().call_later(0.0 if worker.ready else AGAIN_S, self._start)

    def _start(self) -> None:
        if self._closed:
            return
        starting = OpenQuestion(b"", STARTING_S, None, asyncio.get_running_loop().create_future())
        # Nobody else waits for it: that it failed is seen when the worker died.
        starting.reply.add_done_callback(lambda reply: reply.exception())
        self._workers.add(WorkerProcess(self.role, starting, self._came_free, self._died))
        self.started += 1
        self._look_in(starting, STARTING_S)

    def _look_in(self, question: OpenQuestion, after_s: float) -> None:
        if question.look is not None:
            question.look.cancel()
        question.look = asyncio.get_running_loop().call_later(max(after_s, SHORTEST_S), self._look, question)

    def _look(self, question: OpenQuestion) -> None:
        """Give a question up that has had its time; else look again when it may have."""
        if question.reply.done():
            return
        waited_s, used_s = time.monotonic() - question.since_s, question.used_s()
        if question.worker is None:
            left_s = WAITING * question.limit_s - min(waited_s, time.monotonic() - self._moved_s)
        else:
            spent_s = waited_s if used_s is None else used_s
            left_s = min(question.limit_s - spent_s, WAITING * question.limit_s - waited_s)
        if left_s > 0:
            self._look_in(question, left_s)
        else:
            question.reply.set_exception(BusyError() if question.worker is None else TooSlowError())
            self._forget(question)

    def _forget(self, question: OpenQuestion) -> None:
        """Nobody waits for a question any longer: a worker that still works on it is killed."""
        if question.look is not None:
            question.look.cancel()
        if question.worker is None:
            with contextlib.suppress(ValueError):
                self._line.remove(question)
        elif question.worker.question is question:
            question.worker.end()
