"""Where questions arrive: each goes to the lane of its kind, and comes back as a reply."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from meshwright.errors import MeshwrightError
from meshwright.service.answering import Reply, problem_reply
from meshwright.service.catalogue import VERSION, is_quick
from meshwright.service.job_queue import QueuedJob
from meshwright.service.lanes import BusyError, TooSlowError, WorkerLane
from meshwright.service.on_ray import ClusterLane
from meshwright.service.settings import Settings
from meshwright.service.worker import NICENESS, WorkerRole
from meshwright.service.worker_process import LostWorkerError, Tell

MOST_QUICK = 2
"""Workers of quick questions, fewer where there are fewer processors."""
ATTEMPTS = 3
"""A question whose workers die so often is given up."""


class Desk:
    """The lanes of a service."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        memory = int(settings.memory_limit_bytes)
        self.quick = WorkerLane(WorkerRole(memory_bytes=memory), min(MOST_QUICK, os.cpu_count() or 1))
        searching = WorkerRole(warm="plan", nice=NICENESS, memory_bytes=memory)
        self.searches = WorkerLane(searching, settings.workers)
        self.cluster = None if settings.ray is None else ClusterLane(searching)

    @property
    def lanes(self) -> dict[str, WorkerLane | ClusterLane]:
        """The lanes by name."""
        own: dict[str, WorkerLane | ClusterLane] = {"quick": self.quick, "search": self.searches}
        return own if self.cluster is None else {**own, "ray": self.cluster}

    def job_places(self) -> int:
        """Jobs that may run at once: one worker of this machine is left to requests that wait for their answer."""
        return self.cluster.places() if self.cluster else max(1, self.settings.workers - 1)

    async def do_job(self, job: QueuedJob, tell: Tell) -> Reply:
        """The reply to a job; see `WorkerLane.ask`."""
        lane = self.cluster or self.searches
        return await lane.ask(job.verb, job.body, self.settings.job_limit_s, tell)

    async def open(self) -> None:
        """Start the workers, and wait until quick questions are answered; searches wait for theirs."""
        await self.quick.open()
        self.searches.start()

    async def close(self) -> None:
        """End the workers."""
        await self.quick.close()
        await self.searches.close()

    async def ask(self, verb: str, body: Mapping[str, Any], *, limit_s: float = 0.0) -> Reply:
        """The reply to a question, within its time.

        Args:
            verb: one that is served.
            body: the body as it was parsed.
            limit_s: the limit in seconds of its time; that of a request unless it is given.
        """
        lane = self.quick if is_quick(verb, body) else self.searches
        limit_s = limit_s or self.settings.time_limit_s
        for _ in range(ATTEMPTS):
            try:
                return await lane.ask(verb, body, limit_s)
            except LostWorkerError:
                continue
            except BusyError:
                return problem_reply(_busy(), 503)
            except TooSlowError:
                return problem_reply(too_slow(verb, limit_s), 408)
        return problem_reply(lost(), 503)


def too_slow(verb: str, limit_s: float) -> MeshwrightError:
    """The error of a question that was not answered in its time."""
    what, why = f"{verb} took longer than {limit_s:g} s", "that is the service's limit for one request"
    fix = f'ask it as a job: POST /{VERSION}/jobs {{"verb": "{verb}", ...}}'
    return MeshwrightError(what=what, why=why, fix=fix, code="MW272")


def _busy() -> MeshwrightError:
    fix = f"ask again later, or as a job: POST /{VERSION}/jobs"
    return MeshwrightError(what="all workers are busy", why="others asked first", fix=fix, code="MW273")


def lost() -> MeshwrightError:
    """The error of a question whose workers died."""
    why = f"its process was killed {ATTEMPTS} times, as a system does that runs out of memory"
    fix = "ask for fewer devices, or give the service more memory"
    return MeshwrightError(what="the worker was lost", why=why, fix=fix, code="MW274")
