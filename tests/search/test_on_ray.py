"""A real Ray cluster of two node processes: what it finds is what one process finds, also when a node is killed."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright import ray_cluster
from meshwright.app.verbs import python_verb
from meshwright.calculon.answer import SearchGoal
from meshwright.calculon.axes import full
from meshwright.calculon.reading import read_application, read_system
from meshwright.calculon.space import ExecutionSpace
from meshwright.calculon.sweep import Design, design_parts
from meshwright.errors import InputError
from meshwright.ray_cluster import connect, ray_module
from meshwright.search.incumbents import SearchedPart
from meshwright.search.on_ray import OnRay
from meshwright.search.tasks import run_here
from tests.ray_cluster import Node, below, kill, two_nodes

pytest.importorskip("ray")
calculon_search = python_verb("calculon search")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[Node]]]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as found:
        yield found


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
    return Design(number=0, space=ExecutionSpace(app, system, 64, 64, axes))


def merged(parts: list[SearchedPart], top: int) -> SearchedPart:
    whole = SearchedPart()
    for part in parts:
        whole.merge(part, top)
    return whole


def test_a_killed_node_changes_nothing_in_the_answer(cluster: tuple[str, list[Node]]) -> None:
    address, nodes = cluster
    goal = SearchGoal(top=5)
    tasks = design_parts(design(), goal, 30_000)
    assert len(tasks) > 12
    expected = merged([part for _, part in run_here(tasks)], goal.top)

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
            parts = dict(runner(tasks))
        finally:
            over.set()
            killer.join()
        assert runner.redone > 0, "the killed node was doing something"
        deadline = time.monotonic() + 240
        while runner.nodes() > 1 and time.monotonic() < deadline:
            time.sleep(0.5)
        assert runner.nodes() == 1
    assert sorted(parts) == list(range(len(tasks)))
    assert sorted(ended) == list(range(len(tasks)))
    found = merged(list(parts.values()), goal.top)
    assert found.best.number.tolist() == expected.best.number.tolist()
    assert found.front.number.tolist() == expected.front.number.tolist()
    assert found.counts == expected.counts


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
def test_an_address_that_does_not_answer_is_refused_in_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_cluster.ANSWER_S == 15.0
    monkeypatch.setattr(ray_cluster, "ANSWER_S", 2.0)
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
        assert time.monotonic() - started < 15.0
    assert caught.value.problems[0].field == "--ray"
    assert address in caught.value.problems[0].what


def test_ray_starts_elsewhere_where_the_name_of_its_folder_is_too_long_for_a_socket(tmp_path: Path) -> None:
    long = tmp_path / ("long" * 30)
    long.mkdir()
    start = [sys.executable, "-c", "import sys; from meshwright.cli import main; sys.exit(main())"]
    words = ["gpt3-175B", "a100_80g", "--procs", "64", "--batch", "64", "--pin", "pipeline_par=8", "--ray", "local"]
    ran = subprocess.run(
        [*start, "calculon", "search", *words, "--json"],
        env=os.environ | {"RAY_TMPDIR": str(long)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:]
    assert json.loads(ran.stdout)["timing"]["ray_nodes"] == 1
