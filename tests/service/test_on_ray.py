"""`serve --ray`: jobs on the nodes of a real cluster, whose workers may die under them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.app.verbs import python_verb
from meshwright.errors import UnsupportedError
from tests.ray_cluster import Node, below, two_nodes
from tests.service.conftest import Service, started, stop
from tests.service.test_service import LONG, PLAN, SECONDS, until

pytest.importorskip("ray")


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


def test_a_job_of_the_cluster_is_answered_as_here(on_ray: Service) -> None:
    found = on_ray.client.wait(on_ray.client.start("plan", **PLAN))
    own = python_verb("plan")(**PLAN).to_dict()
    assert {**found, "timing": None} == {**own, "timing": None}


def test_errors_of_the_cluster_are_those_of_here(on_ray: Service) -> None:
    asked = {"model": "gpt2", "gpus": "1xGTX"}
    refused = on_ray.client.start("plan", **asked)
    with pytest.raises(UnsupportedError) as here:
        python_verb("plan")(**asked)
    with pytest.raises(UnsupportedError) as there:
        on_ray.client.wait(refused)
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
    states = list(on_ray.client.events(job))
    assert (states[-1]["state"], states[-1]["attempts"]) == ("done", 2)
    assert any(state["progress"] for state in states)
    until(lambda: not job_processes(cluster[1]))


def test_a_cluster_that_does_not_answer_is_said_before_anybody_asks(capsys: pytest.CaptureFixture[str]) -> None:
    from meshwright.cli import main

    assert main(["serve", "--ray", "127.0.0.1:1"]) == 2
    assert "the Ray address '127.0.0.1:1' does not answer" in capsys.readouterr().err
