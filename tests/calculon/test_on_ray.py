"""A real Ray cluster of two node processes: what it finds is what one process finds, also when a node is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
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
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_health_check_period_ms": "1000"}
"""Nobody else can reach the cluster, no token is written into the home of whoever runs the tests, and a killed node is
missed soon."""
ENVIRONMENT = {**os.environ, **SETTINGS}


START_S = 150.0
"""Both nodes are up by then. Ray gives a node's agents about 20 s and the node 30 s to start, which no setting changes;
where other tests have the processors that may be too little, and the node is started again."""
STARTED, TOO_SLOW = "Ray runtime started", ("timed out during startup", "Timed out waiting for file")


@dataclass(slots=True)
class Node:
    """One node in its own process group, which can be killed whole."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait(self, deadline: float) -> bool:
        """Whether it has come up, by what it says itself: asking the cluster would take processors from it."""
        while self.process.poll() is None and time.monotonic() < deadline:
            if STARTED in self.log.read_text():
                return True
            time.sleep(0.2)
        return False


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def node(log: Path, *arguments: str) -> Node:
    own = ("--node-ip-address=127.0.0.1", "--num-cpus=1", "--object-store-memory=100000000", "--block")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [RAY, "start", *arguments, *own],
            env=ENVIRONMENT,
            start_new_session=True,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return Node(process, log)


def started(folder: Path, deadline: float, arguments: Callable[[], list[str]]) -> Node:
    """A node that is up, started again as often as time allows."""
    said = ""
    for attempt in count():
        one = node(folder / f"{attempt}.log", *arguments())
        if one.wait(deadline):
            return one
        kill(one)
        said = one.log.read_text() or said
        if time.monotonic() > deadline or not any(words in said for words in TOO_SLOW):
            break
    if time.monotonic() > deadline or any(words in said for words in TOO_SLOW):
        last = (said.strip().splitlines() or ["it said nothing"])[-1]
        pytest.skip(f"this machine is too busy: no Ray node came up within {START_S:.0f} s: {last}")
    pytest.fail(f"a Ray node does not start:\n{said}")


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


def kill(node: Node) -> None:
    """End a node and all its workers at once, as a power cut would."""
    if node.process.poll() is None:
        for one in below(node.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
    node.process.wait(30)


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[Node]]]:
    """Two nodes, of which a test may kill the second."""
    deadline = time.monotonic() + START_S
    # Ray's sockets lie deep below this folder, and the name of a socket may have 107 characters.
    place = tempfile.mkdtemp(prefix="ray")
    ports: list[int] = []

    def head() -> list[str]:
        ports.append(free_port())
        return ["--head", f"--port={ports[-1]}", "--include-dashboard=false", f"--temp-dir={place}"]

    nodes = [started(tmp_path_factory.mktemp("head"), deadline, head)]
    address = f"127.0.0.1:{ports[-1]}"
    try:
        nodes.append(started(tmp_path_factory.mktemp("second"), deadline, lambda: [f"--address={address}"]))
        yield address, nodes
    finally:
        for one in reversed(nodes):
            kill(one)
        shutil.rmtree(place, ignore_errors=True)


def start_workers() -> None:
    """One on every node: where starting it takes longer than all tasks, a node would never have any to do."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = [NodeAffinitySchedulingStrategy(one["NodeID"], soft=False) for one in ray.nodes()]
    ray.get([ray.remote(lambda: None).options(scheduling_strategy=one).remote() for one in there])


def busy(node: Node) -> bool:
    """Whether one of the node's workers has a task in hand, which Ray makes its name."""
    for one in below(node.process.pid):
        with contextlib.suppress(OSError):
            if b"ray::do_task" in Path(f"/proc/{one}/cmdline").read_bytes():
                return True
    return False


def design() -> Design:
    system = read_system("a100_80g")
    app = read_application("gpt3-175B")
    axes = full(system).pin("fused_activation", (True,)).pin("tensor_par_overlap", ("none", "ring"))
    for key in ("weight_offload", "activations_offload", "optimizer_offload"):
        axes = axes.pin(key, (False,))
    return Design(number=0, app=app, system=system, num_procs=64, batch=64, axes=axes)


def merged(parts: list[Partial], top: int) -> Partial:
    whole = Partial()
    for part in parts:
        whole.merge(part, top)
    return whole


def test_a_killed_node_changes_nothing_in_the_answer(cluster: tuple[str, list[Node]]) -> None:
    address, nodes = cluster
    asked = Asked(top=5)
    tasks = tasks_of(design(), 30_000)
    assert len(tasks) > 12
    expected = merged([part for _, part in run_here(tasks, asked)], asked.top)

    ended: list[int] = []
    over = threading.Event()

    def kill_when_busy() -> None:
        while not over.wait(0.02):
            if ended and busy(nodes[1]):
                kill(nodes[1])
                return

    with OnRay(address, on_end=ended.append) as runner:
        assert runner.nodes() == 2
        start_workers()
        killer = threading.Thread(target=kill_when_busy)
        killer.start()
        try:
            parts = dict(runner(tasks, asked))
        finally:
            over.set()
            killer.join()
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
    cluster: tuple[str, list[Node]],
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
