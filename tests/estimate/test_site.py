"""One ZeRO group over unlike devices: what each kind holds, and that collectives run at the slowest link."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.errors import UnsupportedError
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import resolve
from meshwright.specs import ClusterSpec, Workload
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.strategy import DataParallel, LayerStrategy, Tensor1D
from tests.estimate.mixed import Stage, plan_of

MODEL = resolve("gpt2-xl")
LAYERS = MODEL.num_layers


def sharded(ranks: int, across: int, zero: int = 3) -> LayerStrategy:
    return LayerStrategy(data=DataParallel(shard=ranks, zero=zero, across=across))


def joint(each: int = 4, *, micro_batches: tuple[int, int] = (2, 1), count: int = 3, zero: int = 3) -> ExecutionPlan:
    own = [Stage(first, sharded(each, 2 * each, zero), LAYERS) for first in (0, each)]
    return plan_of(([own[0]], micro_batches[0], count), ([own[1]], micro_batches[1], count))


def apart(zero: int = 3) -> ExecutionPlan:
    own = [Stage(first, sharded(4, 0, zero), LAYERS) for first in (0, 4)]
    return plan_of(([own[0]], 2, 3), ([own[1]], 1, 3))


def priced(plan: ExecutionPlan, cluster: ClusterSpec, seq_len: int = 1024) -> StepEstimate:
    return estimate_plan(plan, MODEL, cluster, Workload(seq_len=seq_len, global_batch=plan.global_batch))


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_states_are_shared_by_all_ranks(zero: int) -> None:
    cluster = resolve_gpus("4xH100,4xA100-80")
    together, alone = (priced(plan, cluster).stages for plan in (joint(zero=zero), apart(zero)))
    for one, other in zip(together, alone, strict=True):
        held, before = dict(one.memory_bytes), dict(other.memory_bytes)
        assert held["optimizer"] == pytest.approx(before["optimizer"] / 2)
        assert held["gradients"] == pytest.approx(before["gradients"] / (2 if zero > 1 else 1))
        assert held["weights"] == pytest.approx(before["weights"] / (2 if zero > 2 else 1))
        assert held["activations"] == pytest.approx(before["activations"])


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_two_groups_of_one_kind_cost_what_one_group_of_both_does(zero: int) -> None:
    """The same ranks, links and work, said once as two pipelines and once as one."""
    whole = resolve_gpus("2x4xH100")
    (group,) = whole.groups
    outer = group.domains[-1]
    half = replace(group, nodes=1, domains=tuple(replace(domain, size=4) for domain in group.domains[:1]))
    fabric = replace(outer, size=4)
    first, second = (replace(half, name=name, domains=(*half.domains, fabric)) for name in ("one", "other"))
    link = replace(
        resolve_gpus("4xH100,4xA100-80").links[0],
        between=("one", "other"),
        bandwidth_bytes_per_s=outer.bandwidth_bytes_per_s,
        latency_s=outer.latency_s,
        efficiency=outer.efficiency,
    )
    two = replace(whole, groups=(first, second), links=(link,))
    plan = plan_of(([Stage(0, sharded(8, 0, zero), LAYERS)], 2, 3))
    both, one = priced(joint(micro_batches=(2, 2), zero=zero), two), priced(plan, whole)
    assert both.step_time_s == pytest.approx(one.step_time_s, rel=1e-6)


def test_idle_devices_of_a_node_leave_the_others_its_links() -> None:
    """Four of five devices of a node are as near each other as four of four."""
    full, idle = (priced(joint(), resolve_gpus(gpus)) for gpus in ("4xH100,4xA100-80", "4xH100,5xA100-80"))
    assert idle.step_time_s == pytest.approx(full.step_time_s)


def test_a_worker_that_straddles_two_nodes_has_only_some_of_its_links_inside() -> None:
    """4 tensor ranks on devices 4 to 7 of 16 share a node; on 6 to 9 they meet over the fabric."""
    strategy = LayerStrategy(tensor=Tensor1D(degree=4, sequence_parallel=True))
    inside, across = (
        dict(priced(plan_of(([Stage(first, strategy, LAYERS)], 1, 4)), resolve_gpus("16xH100")).breakdown_s)["tp"]
        for first in (4, 6)
    )
    assert across > 2 * inside


def test_collectives_run_at_the_slowest_link() -> None:
    cluster = resolve_gpus("4xH100,4xA100-80")
    (link,) = cluster.links
    slow = replace(cluster, links=(replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / 4),))
    quick_dp, slow_dp = (dict(priced(joint(), one).breakdown_s)["dp"] for one in (cluster, slow))
    assert slow_dp > 2 * quick_dp


def test_the_step_is_that_of_the_slowest_member() -> None:
    cluster = resolve_gpus("4xH100,4xA100-80")
    level, by_speed = (priced(joint(micro_batches=own), cluster, 4096) for own in ((2, 2), (3, 1)))
    assert level.stages[1].busy_s > 1.5 * level.stages[0].busy_s
    assert by_speed.step_time_s < level.step_time_s


def test_every_gather_and_scatter_crosses_the_link() -> None:
    cluster = resolve_gpus("4xH100,4xA100-80")
    crossed = {zero: priced(joint(zero=zero), cluster).traffic[0].gradient_bytes for zero in (1, 2, 3)}
    parameters = MODEL.parameters
    share = 2 * 7 / 8 / 2 * 2  # both ways between two groups, seven eighths of the model each
    assert crossed[1] == pytest.approx(share * parameters * (4 + 2), rel=0.01)
    assert crossed[2] == pytest.approx(share * parameters * (3 * 4 + 2), rel=0.01)
    assert crossed[3] == pytest.approx(share * parameters * 3 * (4 + 2 * 2), rel=0.01)


def test_sequences_of_several_lengths_are_refused() -> None:
    plan = joint()
    workload = Workload(seq_len=1024, global_batch=plan.global_batch, sequence_lengths=((256, 0.5), (1024, 0.5)))
    with pytest.raises(UnsupportedError, match="several lengths"):
        estimate_plan(plan, MODEL, resolve_gpus("4xH100,4xA100-80"), workload)


@pytest.mark.parametrize(("each", "near"), [((8, 8), 8), ((8, 6), 6), ((4, 5), 4)])
def test_the_node_with_the_fewest_ranks_says_how_many_links_are_used_at_once(each: tuple[int, int], near: int) -> None:
    """Six ranks of a node reach eight of another over six links, as many as six of it."""

    def exposed_s(*ranks: int) -> float:
        own = [Stage(first, sharded(count, sum(ranks), 1), LAYERS) for first, count in zip((0, 8), ranks, strict=True)]
        return dict(priced(plan_of(*(([one], 1, 1) for one in own)), resolve_gpus("8xH100,8xH800")).breakdown_s)["dp"]

    assert exposed_s(*each) == pytest.approx(exposed_s(near, near), rel=0.1)


def test_pipelines_beside_each_other_are_neighbours() -> None:
    """Four ranks of a node in one pipeline or in two, of three and of one, reach the others alike."""
    whole, parted = (
        priced(
            plan_of(
                *(
                    ([Stage(first, sharded(ranks, 8, 1), LAYERS)], 1, 1)
                    for first, ranks in zip((0, *range(ranks_of[0], 5)), (*ranks_of, 4), strict=False)
                )
            ),
            resolve_gpus("4xH100,4xA100-80"),
        )
        for ranks_of in ((4,), (3, 1))
    )
    assert parted.step_time_s == pytest.approx(whole.step_time_s)
