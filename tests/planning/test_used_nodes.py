"""On which nodes a plan is started, and in which order."""

from __future__ import annotations

from dataclasses import replace

from meshwright.library.clusters import resolve_gpus
from meshwright.planning.used_nodes import on_used_nodes, used_nodes_note
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import Workload
from tests.estimate.cases import DENSE
from tests.estimate.mixed import CLUSTER, Stage, plan_of

NODE: LayerStrategy = PlanRow(tp=8, gbs=4).strategy()


def started(*firsts: int) -> Job:
    """A pipeline with a stage on the node that begins at each of these devices; 2 x H100, 2 x A100-80, 1 x V100-32."""
    layers = [12 - 2 * (len(firsts) - 1), *[2] * (len(firsts) - 1)]
    plan = plan_of(([Stage(first, NODE, held) for first, held in zip(firsts, layers, strict=True)], 1, 4))
    return Job(model=DENSE, cluster=CLUSTER, workload=Workload(seq_len=4096, global_batch=4), plan=plan)


def test_nodes_are_started_in_the_order_of_their_stages() -> None:
    assert used_nodes_note(started(16, 0)) == (
        "start its nodes in the order of the stages: node rank 0 is node 0 of A100-80, node rank 1 is node 0 of H100;"
        " the others idle"
    )
    everything = "node ranks 0-1 are nodes 0-1 of A100-80, node ranks 2-3 are nodes 0-1 of H100, node rank 4 is node 0"
    assert everything in (used_nodes_note(started(16, 24, 0, 8, 32)) or "")


def test_nodes_of_one_kind_need_no_order() -> None:
    assert used_nodes_note(started(8)) == (
        "start it on node 1 of H100 alone: nodes and ranks are counted from 0 there; the others idle"
    )


def test_launchers_of_one_node_take_devices_of_their_own() -> None:
    job = started(0)
    (first, *_) = job.cluster.groups
    seen = job.cluster.part("8 H100 + 8 H100-2", (replace(first, name="H100 + H100-2"),))
    note = used_nodes_note(replace(job, cluster=seen)) or ""
    assert note.startswith(
        "start one launcher for every 8 devices: node ranks go through H100, then H100-2; of several"
    )
    assert note.endswith("each sees its own devices alone (CUDA_VISIBLE_DEVICES)")


def test_launchers_of_unequal_nodes_are_one_for_each() -> None:
    job = started(0)
    (first, *_) = job.cluster.groups
    group = replace(first, name="H100 + H100-2", unequal_nodes=((1, 11), (1, 5)))
    seen = replace(job, cluster=job.cluster.part("11 H100 + 5 H100-2", (group,)))
    assert "CUDA_VISIBLE_DEVICES" in (used_nodes_note(seen) or "")
    plan = plan_of(([Stage(0, PlanRow(dp=16, gbs=16).strategy(), 12)], 1, 1))
    whole = replace(seen, plan=plan, workload=replace(seen.workload, global_batch=16))
    assert used_nodes_note(whole, each_node=True) == (
        "start one launcher on every node: node rank 0 has 11 devices (H100), node rank 1 has 5 devices (H100-2)"
    )


def test_a_plan_of_every_node_in_order_is_left_as_it_is() -> None:
    job = started(0, 8, 16, 24, 32)
    assert on_used_nodes(job) is job


def test_devices_are_counted_from_0_on_the_nodes_that_are_used() -> None:
    job = on_used_nodes(started(16, 0))
    assert [group.name for group in job.cluster.groups] == ["A100-80", "H100"]
    assert [group.nodes for group in job.cluster.groups] == [1, 1]
    assert [worker.devices for worker in job.plan.pipelines[0].workers] == [((0, 7),), ((8, 15),)]


def test_nodes_of_one_scale_up_domain_follow_each_other() -> None:
    cluster = resolve_gpus("144xGB200")
    plan = plan_of(([Stage(0, PlanRow(dp=144, gbs=144).strategy(), 12)], 1, 1))
    job = Job(model=DENSE, cluster=cluster, workload=Workload(seq_len=4096, global_batch=144), plan=plan)
    assert used_nodes_note(job) == (
        "start it on 18 nodes of each NVLink5 domain: node ranks go through one domain after the other"
    )
