"""On two nodes of a Ray cluster: the example trains, and a run goes on when one of the nodes is killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

from meshwright.app.elastic import training_on
from meshwright.ray_cluster import ray_module
from meshwright.runtime.timings import this_machine
from meshwright.runtime.train import Recovery, Steps, train
from meshwright.runtime.training.run import Training
from meshwright.runtime.workers.on_ray import RayCrew
from meshwright.specs.row import PlanRow
from tests.ray_cluster import Node, below, kill, two_nodes

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[Node]]]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as found:
        yield found
    ray_module().shutdown()


def test_the_example_trains_on_two_nodes(cluster: tuple[str, list[Node]]) -> None:
    words = [sys.executable, str(EXAMPLE), "--steps", "2", "--backend", "ray", "--ray", cluster[0]]
    done = subprocess.run(words, env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = (float(value) for value in re.findall(r"loss (\S+)", done.stdout))
    assert second < first


def test_a_killed_node_costs_the_steps_since_the_checkpoint(cluster: tuple[str, list[Node]], tmp_path: Path) -> None:
    address, nodes = cluster
    row = PlanRow(pp=2, dp=2, mbs=2, gbs=8)
    there = Training(
        spec=None, row=row, stage_layers=(2, 2), seq_len=1, hidden=4, backend="ray", ray=address, timeout_s=60.0
    )
    losses: dict[int, float] = {}
    recoveries: list[Recovery] = []

    def on_step(number: int, loss: float, seconds: float, step: Any) -> None:
        losses[number] = loss
        if number == 1 and not recoveries:
            crew = step.lower(jax.eval_shape(there.initial), there.batch(0)).runtime.crew
            assert isinstance(crew, RayCrew)
            of_nodes = [set(below(one.process.pid)) for one in nodes]
            assert all(len(own & set(crew.pids())) == 1 for own in of_nodes)
            kill(nodes[1])

    again = partial(training_on, machine=this_machine())
    steps = Steps(count=3, folder=tmp_path / "state", every=1, plan_again=again)
    ended = train(there, jax.devices()[: row.devices], steps, on_step=on_step, on_recovery=recoveries.append)
    ended.step.close()
    # A busy cluster may place a worker on the dying node once more, and that one is lost too.
    assert [(one.step, one.resumed) for one in recoveries] in ([(2, 2)], [(2, 2), (2, 2)])
    assert recoveries[0].devices == 2
    alone: dict[int, float] = {}
    here = Training(spec=None, row=row, stage_layers=(2, 2), seq_len=1, hidden=4)
    train(here, jax.devices(), Steps(count=3), on_step=lambda number, loss, *_: alone.update({number: loss}))
    assert losses == pytest.approx(alone, abs=1e-5)
