"""Jobs on a Ray cluster: each in a process of its own, on whichever node has a processor for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import meshwright
from meshwright.errors import MeshwrightError
from meshwright.ray_cluster import CODE, ray_module
from meshwright.search.on_ray import LOST
from meshwright.service.answering import Reply, fault, problem_reply
from meshwright.service.lanes import LostWorkerError, Tell, TooSlowError, WorkerLane
from meshwright.service.worker import WorkerRole

READY, PROGRESS, SLOW, DIED, DONE = "ready", "told", "slow", "died", "done"
"""What a node sends: its version, once its worker can be asked; how far it is; it was too slow; it died; its reply."""


class NodeWorker:
    """An actor on a node, for one question: a worker as this machine's own, with the same limits, beside it."""

    def __init__(self, role: WorkerRole) -> None:
        self.role = role

    async def answer(self, verb: str, body: str, limit_s: float) -> AsyncIterator[tuple[str, bytes]]:
        """Answer a question.

        Args:
            verb: one that is served.
            body: the body as JSON.
            limit_s: the limit in seconds for the answer.

        Yields:
            What happens and its content as JSON; of a reply a line with its status and media type, then what it holds.
        """
        lane = WorkerLane(self.role, 1)
        await lane.open()
        yield READY, meshwright.__version__.encode()
        progresses: asyncio.Queue[Any] = asyncio.Queue()
        asking = asyncio.create_task(lane.ask(verb, json.loads(body), limit_s, progresses.put_nowait))
        asking.add_done_callback(lambda _: progresses.put_nowait(None))
        try:
            while (progress := await progresses.get()) is not None:
                yield PROGRESS, json.dumps(progress).encode()
            reply = await asking
            yield DONE, f"{reply.status} {reply.media_type}\n".encode() + reply.content
        except TooSlowError:
            yield SLOW, b""
        except LostWorkerError:
            yield DIED, b""
        finally:
            asking.cancel()
            await lane.close()


class ClusterLane:
    """The cluster that this process has joined, as a lane: asked as a `WorkerLane` is.

    Args:
        role: what its workers are for.
    """

    def __init__(self, role: WorkerRole) -> None:
        self.role = role
        self.waiting = self.busy = self.started = 0
        self._ray = ray = ray_module()
        # A worker that dies is not started again by Ray: the job goes back into the queue, and is counted there.
        self._actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(NodeWorker)
        self._lost = tuple(getattr(ray.exceptions, name) for name in (*LOST, "RaySystemError"))

    def places(self) -> int:
        """Processors of the cluster, which may grow; at least 1, for which an empty one starts a node."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    async def ask(self, verb: str, body: Mapping[str, Any], limit_s: float, tell: Tell | None = None) -> Reply:
        """The reply of a node; see `WorkerLane.ask`.

        Raises:
            TooSlowError: the answer took longer.
            LostWorkerError: its worker or its node died.
        """
        self.started += 1
        self.waiting += 1
        ready = False
        worker = self._actor.remote(self.role)
        try:
            async for reference in worker.answer.options(num_returns="streaming").remote(
                verb, json.dumps(body), limit_s
            ):
                what, content = await reference
                if what == READY:
                    if (theirs := content.decode()) != meshwright.__version__:
                        return problem_reply(_of_another_version(theirs), 503)
                    ready = True
                    self.waiting -= 1
                    self.busy += 1
                elif what == PROGRESS and tell is not None:
                    tell(json.loads(content))
                elif what == SLOW:
                    raise TooSlowError
                elif what == DONE:
                    return _reply(content)
            raise LostWorkerError
        except self._lost:
            raise LostWorkerError from None
        except self._ray.exceptions.RayError as error:
            return problem_reply(fault(error), 500)
        finally:
            if ready:
                self.busy -= 1
            else:
                self.waiting -= 1
            with contextlib.suppress(Exception):  # the cluster may be gone
                self._ray.kill(worker)


def _of_another_version(theirs: str) -> MeshwrightError:
    what = f"a node of the Ray cluster has meshwright {theirs[:40]}"
    why = f"the service has {meshwright.__version__}, and both must give the same answers"
    return MeshwrightError(what=what, why=why, fix="install the same version on all nodes", code=CODE)


def _reply(content: bytes) -> Reply:
    head, _, rest = content.partition(b"\n")
    status, _, media_type = head.decode().partition(" ")
    return Reply(status=int(status), content=rest, media_type=media_type)
