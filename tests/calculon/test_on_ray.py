"""A real Ray cluster of two node processes: what it finds is what one process finds, also when a node is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.app.calculon_search import calculon_search
from meshwright.calculon.answer import Partial
from meshwright.calculon.axes import full
from meshwright.calculon.on_ray import OnRay, connect, ray_module
from meshwright.calculon.reading import read_application, read_system
from meshwright.calculon.sweep import Asked, Design, run_here, tasks_of
from meshwright.errors import InputError

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")

RAY = str(Path(sys.executable).parent / "ray")
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
"""Nobody else can reach the cluster, and no token is written into the home of whoever runs the tests."""
ENVIRONMENT = {**os.environ, **SETTINGS}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def node(*arguments: str) -> subprocess.Popen[bytes]:
    """One node in its own process group, which can be killed whole."""
    command = [RAY, "start", *arguments, "--num-cpus=1", "--object-store-memory=100000000", "--block"]
    return subprocess.Popen(
        command, env=ENVIRONMENT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def below(parent: int) -> list[int]:
    """A process and all that it started, and they in turn."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [parent]
    for one in found:
        found += [child for child, its in parents.items() if its == one]
    return found


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a node and all its workers at once, as a power cut would."""
    if process.poll() is None:
        for one in below(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
    process.wait(30)


def wait_for_nodes(address: str, count: int) -> None:
    script = (
        "import sys, ray, time; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')\n"
        "while sum(n['Alive'] for n in ray.nodes()) < int(sys.argv[2]): time.sleep(0.2)"
    )
    deadline = time.monotonic() + 300
    while True:
        left = max(5.0, deadline - time.monotonic())
        asked = subprocess.run(
            [sys.executable, "-c", script, address, str(count)], env=ENVIRONMENT, capture_output=True, timeout=left,
            check=False,
        )  # fmt: skip
        if asked.returncode == 0:
            return
        assert time.monotonic() < deadline, asked.stderr[-2000:].decode()
        time.sleep(1.0)


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Two nodes; the second may be killed by a test, and is started again."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    place = f"--temp-dir={tmp_path_factory.mktemp('ray')}"
    head = node("--head", f"--port={port}", "--include-dashboard=false", "--node-ip-address=127.0.0.1", place)
    nodes = [head]
    try:
        wait_for_nodes(address, 1)
        nodes.append(node(f"--address={address}", "--node-ip-address=127.0.0.1"))
        wait_for_nodes(address, 2)
        yield address, nodes
    finally:
        for process in reversed(nodes):
            kill(process)


def design() -> Design:
    system = read_system("a100_80g")
    app = read_application("gpt3-175B")
    axes = full(system).pin("fused_activation", (True,)).pin("tensor_par_overlap", ("none", "ring"))
    return Design(number=0, app=app, system=system, num_procs=64, batch=64, axes=axes)


def merged(parts: list[Partial], top: int) -> Partial:
    whole = Partial()
    for part in parts:
        whole.merge(part, top)
    return whole


def test_a_killed_node_changes_nothing_in_the_answer(cluster: tuple[str, list[subprocess.Popen[bytes]]]) -> None:
    address, nodes = cluster
    asked = Asked(top=5)
    tasks = tasks_of(design(), 200_000)
    assert len(tasks) > 12
    expected = merged([part for _, part in run_here(tasks, asked)], asked.top)

    ended: list[int] = []

    def kill_one(place: int) -> None:
        ended.append(place)
        if len(ended) == 4:
            kill(nodes[1])

    with OnRay(address, on_end=kill_one) as runner:
        assert runner.nodes() == 2
        parts = dict(runner(tasks, asked))
        assert runner.redone > 0, "the killed node was doing something"
        deadline = time.monotonic() + 90
        while runner.nodes() > 1 and time.monotonic() < deadline:
            time.sleep(0.5)
        assert runner.nodes() == 1
    assert sorted(parts) == list(range(len(tasks)))
    assert sorted(ended) == list(range(len(tasks)))
    found = merged(list(parts.values()), asked.top)
    assert found.best.number.tolist() == expected.best.number.tolist()
    assert found.front.number.tolist() == expected.front.number.tolist()
    assert (found.space, found.feasible, found.priced) == (expected.space, expected.feasible, expected.priced)


def test_a_search_on_the_cluster_is_the_search_of_one_process(
    cluster: tuple[str, list[subprocess.Popen[bytes]]],
) -> None:
    address, _ = cluster
    question = {"procs": 64, "batch": 64, "top": 5, "tp_overlap": False, "pin": "tensor_par=2,4,8"}
    alone = calculon_search("gpt3-175B", "a100_80g", **question).to_dict()
    there = calculon_search("gpt3-175B", "a100_80g", **question, ray=address).to_dict()
    assert there["best"] == alone["best"]
    assert there["pareto"] == alone["pareto"]
    assert {key: there["search"][key] for key in ("space", "feasible")} == {
        key: alone["search"][key] for key in ("space", "feasible")
    }


@pytest.mark.parametrize("kind", ["nobody", "not ray", "silent", "no address"])
def test_an_address_that_does_not_answer_is_refused_within_15_s(kind: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        if kind == "silent":
            listener.listen(8)
        if kind == "nobody":
            # An address of a network kept for documentation: packets to it are dropped.
            address = "198.51.100.7:6379"
        if kind == "no address":
            address = "head-node"
        started = time.monotonic()
        with pytest.raises(InputError) as caught:
            connect(ray_module(), address)
        assert time.monotonic() - started < 20.0
    assert caught.value.problems[0].field == "--ray"
    assert address in caught.value.problems[0].what
