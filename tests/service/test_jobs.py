"""Jobs end whatever happens to them: nobody waits for one without end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.service.answering import Reply
from meshwright.service.job_queue import DONE, ENDED, FAILED, MOST_ATTEMPTS, QueuedJob
from meshwright.service.jobs import Jobs
from meshwright.service.lanes import BusyError, TooSlowError
from meshwright.service.worker_process import LostWorkerError


class Desk:
    """In place of the desk: the first attempt at each job ends in an error, the next ones with an answer."""

    def __init__(self, queue: Path, error: Exception, *, always: bool) -> None:
        self.settings = SimpleNamespace(queue=str(queue), job_limit_s=1.0)
        self.error, self.always = error, always
        self.asked: list[str] = []

    def job_places(self) -> int:
        return 1

    async def do_job(self, job: QueuedJob, tell: object) -> Reply:
        first = job.id not in self.asked
        self.asked.append(job.id)
        if first or self.always:
            raise self.error
        return Reply(status=200, content=b"{}")


def ends(folder: Path, error: Exception, *, always: bool) -> list[tuple[str, int | None, int]]:
    """State, status and attempts of two jobs, one after the other."""

    async def both() -> list[tuple[str, int | None, int]]:
        desk: Any = Desk(folder / "jobs.db", error, always=always)
        jobs = Jobs(desk)
        await jobs.open()
        names = []
        for number in (1, 2):
            job = await jobs.add("plan", {"number": number})
            assert job is not None
            names.append(job.id)
        while not all(found.state in ENDED for found in map(jobs.queue.get, names) if found):
            await asyncio.sleep(0.01)
        found = [
            (job.state, job.reply.status if job.reply else None, job.attempts)
            for job in map(jobs.queue.get, names)
            if job
        ]
        await jobs.close()
        return found

    return asyncio.run(asyncio.wait_for(both(), 60.0))


@pytest.mark.parametrize("error", [LostWorkerError(), BusyError()])
def test_a_job_whose_worker_is_lost_or_busy_is_taken_again(error: Exception, tmp_path: Path) -> None:
    assert ends(tmp_path, error, always=False) == [(DONE, 200, 2)] * 2


@pytest.mark.parametrize(
    ("error", "status", "attempts"),
    [(LostWorkerError(), 503, MOST_ATTEMPTS), (TooSlowError(), 408, 1), (AssertionError("of a library"), 500, 1)],
)
def test_a_job_that_never_succeeds_fails(error: Exception, status: int, attempts: int, tmp_path: Path) -> None:
    assert ends(tmp_path, error, always=True) == [(FAILED, status, attempts)] * 2
