"""Jobs while they run: taken from the queue, told of to those who listen, cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from meshwright.service.answering import fault, problem_reply
from meshwright.service.catalogue import VERSION
from meshwright.service.desk import Desk, lost, too_slow
from meshwright.service.job_queue import ENDED, MOST_ATTEMPTS, JobQueue, QueuedJob
from meshwright.service.lanes import BusyError, TooSlowError
from meshwright.service.worker_process import LostWorkerError

PING_S = 15.0
"""Seconds between words to a listener when nothing changes, so that the connection is kept."""


class Jobs:
    """The jobs of a service.

    Args:
        desk: the desk whose workers they run on.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.queue: JobQueue
        self._own: tempfile.TemporaryDirectory[str] | None = None
        self._giving: asyncio.Task[None] | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._progress: dict[str, Any] = {}
        self._changed = asyncio.Condition()
        self._telling: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the queue, and take jobs from it."""
        path = self.desk.settings.queue
        if path is None:
            self._own = tempfile.TemporaryDirectory(prefix="meshwright-jobs-")
            path = str(Path(self._own.name) / "jobs.db")
        self.queue = JobQueue(Path(path))
        self._giving = asyncio.create_task(self._give_out())

    async def close(self) -> None:
        """Stop; what runs goes back into the queue."""
        tasks = [task for task in (self._giving, *self._running.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.queue.close()
        if self._own is not None:
            self._own.cleanup()

    async def add(self, verb: str, body: Mapping[str, Any]) -> QueuedJob | None:
        """Accept a job; None where too many wait."""
        name = self.queue.add(verb, body)
        await self._tell()
        return None if name is None else self.queue.get(name)

    async def cancel(self, name: str) -> None:
        """Give a job up, and stop its worker."""
        self.queue.cancel(name)
        task = self._running.get(name)
        if task is not None:
            task.cancel()
        await self._tell()

    def state(self, job: QueuedJob) -> dict[str, Any]:
        """A job as callers see it."""
        address = f"/{VERSION}/jobs/{job.id}"
        ended = job.state in ENDED
        return {
            "schema": "meshwright.job/1",
            "id": job.id,
            "verb": job.verb,
            "state": job.state,
            "attempts": job.attempts,
            "created_s": job.created_s,
            "elapsed_s": (job.changed_s if ended else time.time()) - job.created_s,
            "progress": self._progress.get(job.id),
            "status": job.reply.status if job.reply else None,
            "links": {"self": address, "events": f"{address}/events", "answer": f"{address}/answer"},
        }

    async def events(self, name: str) -> AsyncIterator[bytes]:
        """The states of a job as server-sent events, until it has ended."""
        last = ""
        while (job := self.queue.get(name)) is not None:
            state = self.state(job)
            text = json.dumps({key: value for key, value in state.items() if key != "elapsed_s"})
            if text != last:
                last = text
                yield f"event: {job.state}\ndata: {json.dumps(state)}\n\n".encode()
            if job.state in ENDED:
                return
            try:
                async with asyncio.timeout(PING_S), self._changed:
                    await self._changed.wait()
            except TimeoutError:
                yield b": still there\n\n"

    async def _give_out(self) -> None:
        """Take jobs from the queue while there are places for them."""
        while True:
            job = self.queue.take() if len(self._running) < self.desk.job_places() else None
            if job is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0), self._changed:
                        await self._changed.wait()
                continue
            self._running[job.id] = asyncio.create_task(self._finish(job))
            await self._tell()

    async def _finish(self, job: QueuedJob) -> None:
        """Run a job to its end, or until it is cancelled."""
        limit_s = self.desk.settings.job_limit_s

        def said(progress: Any) -> None:
            self._progress[job.id] = progress
            telling = asyncio.create_task(self._tell())
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

        try:
            self.queue.finish(job.id, await self.desk.do_job(job, said))
        except TooSlowError:
            self.queue.finish(job.id, problem_reply(too_slow(job.verb, limit_s), 408))
        except BusyError:
            self.queue.put_back(job.id)
        except LostWorkerError:
            if job.attempts >= MOST_ATTEMPTS:
                self.queue.finish(job.id, problem_reply(lost(), 503))
            else:
                self.queue.put_back(job.id)
        except Exception as error:  # a job that nobody ends is waited for without end
            self.queue.finish(job.id, problem_reply(fault(error), 500))
        finally:
            self._running.pop(job.id, None)
            self._progress.pop(job.id, None)
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
