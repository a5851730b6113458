"""`serve --ray`: jobs on the nodes of a real cluster, whose workers may die under them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import meshwright
import meshwright.service.on_ray as on_ray_module
from meshwright.app.verbs import python_verb
from meshwright.errors import UnsupportedError
from meshwright.service.job_queue import ENDED
from meshwright.service.on_ray import ClusterLane, with_beats
from meshwright.service.worker import WorkerRole
from meshwright.service.worker_process import LostWorkerError
from tests.ray_cluster import Node, below, two_nodes
from tests.service import test_service
from tests.service.conftest import Service, started, stop
from tests.service.test_service import LONG, PLAN, SECONDS

ray = pytest.importorskip("ray")
until = partial(test_service.until, limit_s=600.0)
"""Each question starts a process of Ray's and one behind it that is nice: on a busy machine that takes minutes."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[Node]]]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as found:
        yield found


@pytest.fixture(scope="module")
def on_ray(cluster: tuple[str, list[Node]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = started(tmp_path_factory.mktemp("on-ray"), "--ray", cluster[0], "--workers", "1")
    yield found
    stop(found)


def job_processes(nodes: list[Node]) -> list[int]:
    """Processes that answer jobs: those that an actor of the service started."""
    found = []
    for one in (process for node in nodes for process in below(node.process.pid)):
        with contextlib.suppress(OSError):
            if b"NodeWorker" in Path(f"/proc/{one}/cmdline").read_bytes():
                found += below(one)[1:]
    return found


def metrics(service: Service) -> str:
    return service.ask("GET", "/metrics").content.decode()


def ended(service: Service, job: str) -> bool:
    return service.client.job(job)["state"] in ENDED


def answer(service: Service, job: str) -> Any:
    """The answer of a job, for which no test waits without end."""
    until(lambda: ended(service, job))
    return service.client.wait(job)


def test_a_job_of_the_cluster_is_answered_as_here(on_ray: Service) -> None:
    found = answer(on_ray, on_ray.client.start("plan", **PLAN))
    own = python_verb("plan")(**PLAN).to_dict()
    assert {**found, "timing": None} == {**own, "timing": None}


def test_errors_of_the_cluster_are_those_of_here(on_ray: Service) -> None:
    asked = {"model": "gpt2", "gpus": "1xGTX"}
    refused = on_ray.client.start("plan", **asked)
    with pytest.raises(UnsupportedError) as here:
        python_verb("plan")(**asked)
    with pytest.raises(UnsupportedError) as there:
        answer(on_ray, refused)
    assert there.value.to_dict() == here.value.to_dict()


def test_as_many_jobs_run_as_the_cluster_has_processors(on_ray: Service) -> None:
    jobs = [on_ray.client.start("plan", **LONG, top=number) for number in (1, 2, 3)]
    until(lambda: 'meshwright_busy{lane="ray"} 2.0' in metrics(on_ray))
    assert [on_ray.client.job(job)["state"] for job in jobs] == ["running", "running", "queued"]
    for job in jobs:
        assert on_ray.client.cancel(job)["state"] == "cancelled"
    until(lambda: 'meshwright_busy{lane="ray"} 0.0' in metrics(on_ray))


def test_a_job_outlives_its_worker_and_says_how_far_it_is(on_ray: Service, cluster: tuple[str, list[Node]]) -> None:
    job = on_ray.client.start("plan", **SECONDS)
    until(lambda: 'meshwright_busy{lane="ray"} 1.0' in metrics(on_ray))
    for one in job_processes(cluster[1]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    with ThreadPoolExecutor(1) as beside:
        listening = beside.submit(lambda: list(on_ray.client.events(job)))
        until(lambda: ended(on_ray, job))
        states = listening.result(60.0)
    assert (states[-1]["state"], states[-1]["attempts"]) == ("done", 2)
    assert any(state["progress"] for state in states)
    until(lambda: not job_processes(cluster[1]))


def test_a_cluster_that_does_not_answer_is_said_before_anybody_asks(capsys: pytest.CaptureFixture[str]) -> None:
    from meshwright.cli import main

    assert main(["serve", "--ray", "127.0.0.1:1"]) == 2
    assert "the Ray address '127.0.0.1:1' does not answer" in capsys.readouterr().err


class Nodes:
    """In place of Ray: every node says the same, then breaks, goes silent or ends."""

    exceptions = ray.exceptions

    def __init__(self, *said: tuple[str, bytes], then: BaseException | None = None) -> None:
        self.said, self.then = said, then
        self.killed = 0

    def remote(self, **options: int) -> Callable[[type], Any]:
        return lambda actor: SimpleNamespace(remote=lambda role: self)

    @property
    def answer(self) -> Any:
        return SimpleNamespace(options=lambda **given: SimpleNamespace(remote=lambda *asked: self.stream()))

    async def stream(self) -> AsyncIterator[Awaitable[tuple[str, bytes]]]:
        for one in self.said:
            yield asyncio.sleep(0.0, one)
        if self.then is not None:
            raise self.then
        await asyncio.sleep(3600.0)

    def kill(self, worker: object) -> None:
        self.killed += 1

    def cluster_resources(self) -> dict[str, float]:
        raise ray.exceptions.RaySystemError("no answer")


def lane_of(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> ClusterLane:
    monkeypatch.setattr(on_ray_module, "ray_module", lambda: nodes)
    return ClusterLane(WorkerRole(), silent_s=0.1)


@pytest.mark.parametrize("last", [(), ((on_ray_module.DIED, b""),)])
@pytest.mark.parametrize(
    "then", [None, AssertionError("of Ray's stream"), ray.exceptions.ActorDiedError()], ids=["silent", "broken", "dead"]
)
@pytest.mark.parametrize("ready", [True, False])
def test_a_node_of_which_nothing_comes_is_lost(
    last: tuple[tuple[str, bytes], ...], then: BaseException | None, ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [(on_ray_module.HERE, b""), (on_ray_module.READY, meshwright.__version__.encode())]
    nodes = Nodes(*said[: 1 + ready], *last, then=then)
    lane = lane_of(nodes, monkeypatch)
    with pytest.raises(LostWorkerError):
        asyncio.run(asyncio.wait_for(lane.ask("plan", {}, 1.0), 60.0))
    assert (lane.waiting, lane.busy, nodes.killed) == (0, 0, 1)


def test_a_node_that_says_it_is_there_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Nodes):
        async def stream(self) -> AsyncIterator[Awaitable[tuple[str, bytes]]]:
            for _ in range(8):
                yield asyncio.sleep(0.05, (on_ray_module.HERE, b""))
            yield asyncio.sleep(0.0, (on_ray_module.DONE, b"200 application/json\n{}"))

    reply = asyncio.run(lane_of(Slow(), monkeypatch).ask("plan", {}, 1.0))
    assert (reply.status, reply.content) == (200, b"{}")


def test_a_node_with_nothing_to_say_says_that_it_is_there() -> None:
    async def heard() -> list[tuple[str, bytes]]:
        said: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue()
        heard = []
        async for one in with_beats(said, beat_s=0.01):
            heard.append(one)
            if len(heard) == 3:
                said.put_nowait((on_ray_module.DONE, b"reply"))
                said.put_nowait(None)
        return heard

    assert asyncio.run(heard()) == [(on_ray_module.HERE, b"")] * 3 + [(on_ray_module.DONE, b"reply")]


def test_a_cluster_that_does_not_say_how_large_it_is_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lane_of(Nodes(), monkeypatch).places() == 1
