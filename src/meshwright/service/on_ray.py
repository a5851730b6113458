"""Jobs on a Ray cluster: each in a process of its own, on whichever node has a processor for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any

import meshwright
from meshwright.errors import MeshwrightError
from meshwright.ray_cluster import CODE, ray_module
from meshwright.search.on_ray import LOST
from meshwright.service.answering import Reply, fault, problem_reply
from meshwright.service.lanes import STARTING_S, WAITING, TooSlowError, WorkerLane
from meshwright.service.worker import WorkerRole
from meshwright.service.worker_process import LostWorkerError, Tell

HERE, READY, PROGRESS, SLOW, DIED, DONE = "here", "ready", "told", "slow", "died", "done"
"""What a node sends: that it is still there; its version, once its worker can be asked; how far it is; it was too
slow; its worker died; its reply."""
BEAT_S = 10.0
"""A node that has nothing else to say says so often that it is still there."""
SILENT_S = 120.0
"""A node that has said nothing for so long is lost: Ray does not tell of every death, and its streams may never end."""
STARTS_S = 2 * WAITING * STARTING_S
"""A node whose worker is not ready by then, which is two starts that took their longest, is lost."""

Said = tuple[str, bytes]


class NodeWorker:
    """An actor on a node, for one question: a worker as this machine's own, with the same limits, beside it."""

    def __init__(self, role: WorkerRole) -> None:
        self.role = role

    async def answer(self, verb: str, body: str, limit_s: float) -> AsyncIterator[Said]:
        """Answer a question.

        Args:
            verb: one that is served.
            body: the body as JSON.
            limit_s: the limit in seconds for the answer.

        Yields:
            What happens and its content as JSON; of a reply a line with its status and media type, then what it holds.
        """
        lane = WorkerLane(self.role, 1)
        said: asyncio.Queue[Said | None] = asyncio.Queue()
        said.put_nowait((HERE, b""))
        asking = asyncio.create_task(_answered(lane, verb, json.loads(body), limit_s, said))
        asking.add_done_callback(lambda _: said.put_nowait(None))
        try:
            async for one in with_beats(said):
                yield one
            await asking
        finally:
            asking.cancel()
            await lane.close()


async def _answered(
    lane: WorkerLane, verb: str, body: Mapping[str, Any], limit_s: float, said: asyncio.Queue[Said | None]
) -> None:
    """Ask a lane that is not open yet, and say what happens."""

    def tell(progress: Any) -> None:
        said.put_nowait((PROGRESS, json.dumps(progress).encode()))

    try:
        async with asyncio.timeout(STARTS_S):
            await lane.open()
        said.put_nowait((READY, meshwright.__version__.encode()))
        reply = await lane.ask(verb, body, limit_s, tell)
        said.put_nowait((DONE, f"{reply.status} {reply.media_type}\n".encode() + reply.content))
    except TooSlowError:
        said.put_nowait((SLOW, b""))
    except (LostWorkerError, TimeoutError):
        said.put_nowait((DIED, b""))


async def with_beats(said: asyncio.Queue[Said | None], beat_s: float = BEAT_S) -> AsyncIterator[Said]:
    """What a queue brings until None comes, and that its node is still there whenever nothing has come for a while.

    Args:
        said: filled by another task.
        beat_s: seconds of silence after which `HERE` is said.
    """
    while True:
        try:
            async with asyncio.timeout(beat_s):
                one = await said.get()
        except TimeoutError:
            one = HERE, b""
        if one is None:
            return
        yield one


class ClusterLane:
    """The cluster that this process has joined, as a lane: asked as a `WorkerLane` is.

    Args:
        role: what its workers are for.
        silent_s: seconds after which a node that says nothing is lost.
    """

    def __init__(self, role: WorkerRole, *, silent_s: float = SILENT_S) -> None:
        self.role, self.silent_s = role, silent_s
        self.waiting = self.busy = self.started = 0
        self._ray = ray = ray_module()
        # A worker that dies is not started again by Ray: the job goes back into the queue, and is counted there.
        self._actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(NodeWorker)
        self._lost = tuple(getattr(ray.exceptions, name) for name in (*LOST, "RaySystemError"))

    def places(self) -> int:
        """Processors of the cluster, which may grow; at least 1, for which an empty one starts a node.

        A cluster that does not say has 1: whether it is lost is found by the next question.
        """
        try:
            return max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        except self._ray.exceptions.RayError:
            return 1

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
            stream = worker.answer.options(num_returns="streaming").remote(verb, json.dumps(body), limit_s)
            async for what, content in self._heard(stream):
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
        except (*self._lost, TimeoutError):
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

    async def _heard(self, stream: AsyncIterator[Awaitable[Said]]) -> AsyncIterator[Said]:
        """What a node says. It may wait for a processor as long as it takes, and is silent for `silent_s` at most then.

        Raises:
            TimeoutError: it was silent for longer.
            LostWorkerError: its stream is broken, which Ray asserts that none is.
        """
        limit_s = None
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    said = await (await anext(stream))
            except StopAsyncIteration:
                return
            except AssertionError:
                raise LostWorkerError from None
            limit_s = self.silent_s
            yield said


def _of_another_version(theirs: str) -> MeshwrightError:
    what = f"a node of the Ray cluster has meshwright {theirs[:40]}"
    why = f"the service has {meshwright.__version__}, and both must give the same answers"
    return MeshwrightError(what=what, why=why, fix="install the same version on all nodes", code=CODE)


def _reply(content: bytes) -> Reply:
    head, _, rest = content.partition(b"\n")
    status, _, media_type = head.decode().partition(" ")
    return Reply(status=int(status), content=rest, media_type=media_type)
