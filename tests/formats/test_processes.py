"""How many processes a launcher starts on each node, as bash works it out there."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.formats.processes import processes_of_node, torchrun
from meshwright.library.clusters import resolve_gpus
from meshwright.planning.compose.islands import weakest_of
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import Workload
from tests.estimate.cases import DENSE


def job_on(gpus: str, devices: int | None = None) -> Job:
    """Data-parallel ranks on all devices of the groups, counted as one, or on the first of them."""
    cluster = resolve_gpus(gpus)
    seen = cluster.part(cluster.name, (weakest_of(cluster.groups, cluster.links),))
    ranks = devices or seen.devices
    plan = plan_of(PlanRow(dp=ranks, gbs=ranks), (DENSE.num_layers,))
    return Job(model=DENSE, cluster=seen, workload=Workload(seq_len=4096, global_batch=ranks), plan=plan)


def started(word: str, nodes: int) -> list[int]:
    """What bash makes of the word on each node."""
    lines = "".join(f"NODE_RANK={rank}; echo {word}\n" for rank in range(nodes))
    printed = subprocess.run(["bash", "-c", lines], check=True, capture_output=True, text=True).stdout
    return [int(line) for line in printed.split()]


@pytest.mark.parametrize(
    ("gpus", "devices", "each"),
    [
        ("8xH100,5xH200", None, [8, 5]),
        ("8xH100,5xH200", 12, [8, 4]),
        ("8xH100,5xH200", 8, [8]),
        ("2x8xH100,3x5xH200", None, [8, 8, 5, 5, 5]),
        ("2x8xH100,1x5xH200,2x4xA100-80", None, [8, 8, 5, 4, 4]),
        ("2x8xH100,1x8xH200", None, [8, 8, 8]),
    ],
)
def test_every_node_starts_as_many_processes_as_it_has_devices(gpus: str, devices: int | None, each: list[int]) -> None:
    word, nodes = processes_of_node(job_on(gpus, devices))
    if len(each) == 1:
        assert (word, nodes) == ("1", 8)  # nothing says where a node ends whose devices count as nodes
        return
    assert started(word, nodes) == each


def test_equal_nodes_are_told_a_number() -> None:
    assert processes_of_node(job_on("2x8xH100,1x8xH200")) == ("8", 3)
    assert torchrun(job_on("8xH100")) == "torchrun --nproc-per-node 8"


def test_unequal_nodes_are_one_line_for_all() -> None:
    line = torchrun(job_on("8xH100,5xH200"), port=6000)
    assert line.startswith("torchrun --nproc-per-node $((NODE_RANK < 1 ? 8 : 5)) --nnodes 2 --node-rank $NODE_RANK ")


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8)), min_size=1, max_size=4), st.data())
def test_the_first_devices_are_all_started_once(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    held = sum(nodes * each for nodes, each in runs)
    (group,) = resolve_gpus(f"{held}x1xH100").groups
    group = replace(group, unequal_nodes=tuple(runs))
    devices = data.draw(st.integers(1, held))
    found = group.first_unequal(devices)
    if found:
        assert sum(nodes * each for nodes, each in found) == devices
        assert len({each for _, each in found}) > 1
