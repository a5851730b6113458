"""Plans on several kinds of devices: by hand, against homogeneous plans, and what always holds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
from hypothesis import given, settings

from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layers.item_costs import item_costs
from meshwright.estimate.layers.items import NONE, Item
from meshwright.estimate.layout import expand
from meshwright.estimate.memory import MEMORY_KINDS
from meshwright.estimate.needed_flop import model_flop_per_token
from meshwright.estimate.price import estimate_of, estimate_plan
from meshwright.estimate.pricer import PlanPricer
from meshwright.estimate.rows import strategy_columns
from meshwright.estimate.rules.plan_checks import check_plan
from meshwright.estimate.timeline import step_timeline
from meshwright.library.clusters import resolve_gpus
from meshwright.schedules import PLAN_SCHEDULES, SCHEDULES
from meshwright.specs import (
    ClusterSpec,
    LinkSpec,
    NodeGroup,
    PlanRow,
    Workload,
)
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.strategy import DataParallel, LayerStrategy, Tensor1D
from tests.estimate.cases import DENSE, MODELS, TIED
from tests.estimate.mixed import CLUSTER, MixedCase, Stage, mixed_cases, plan_of

BREAKDOWN_SLACK = 1e-9


@pytest.fixture
def no_shape_checks() -> Iterator[None]:
    """Checked shapes take ten times as long; the tests of single plans check them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def spread(tp: int = 1, dp: int = 1, zero: int = 0, **more: object) -> LayerStrategy:
    data = DataParallel(replicate=dp) if zero == 0 else DataParallel(shard=dp, zero=zero)
    return LayerStrategy(tensor=Tensor1D(degree=tp), data=data, **more)


def naive_one_f_one_b(forward_s: list[float], backward_s: list[float], way_s: list[float], m: int) -> float:
    """Each stage runs p - r forwards, then pairs, then the rest; a task waits for its worker and for its input."""
    p = len(forward_s)
    orders = []
    for stage in range(p):
        ahead = min(p - stage - 1, m)
        order = [("F", i) for i in range(ahead)]
        for i in range(m):
            order += [("F", i + ahead)] if i + ahead < m else []
            order.append(("B", i))
        orders.append(order)
    end: dict[tuple[str, int, int], float] = {}
    at, done = [0] * p, [0.0] * p
    while any(at[stage] < len(orders[stage]) for stage in range(p)):
        for stage in range(p):
            while at[stage] < len(orders[stage]):
                kind, i = orders[stage][at[stage]]
                if kind == "F":
                    needs = (("F", stage - 1, i), way_s[stage - 1]) if stage else None
                else:
                    needs = (("B", stage + 1, i), way_s[stage]) if stage < p - 1 else (("F", stage, i), 0.0)
                if needs is not None and needs[0] not in end:
                    break
                ready = end[needs[0]] + needs[1] if needs is not None else 0.0
                lasts = forward_s[stage] if kind == "F" else backward_s[stage]
                done[stage] = max(done[stage], ready) + lasts
                end[kind, stage, i] = done[stage]
                at[stage] += 1
    return max(done)


def test_two_stages_on_two_kinds_as_by_hand() -> None:
    """Two tensor ranks of H100 hold 8 layers, two of A100 the other 4; 5 micro-batches of 2 sequences."""
    where = resolve_gpus("1x2xH100,1x2xA100-80")
    plan = plan_of(([Stage(0, spread(tp=2), 8), Stage(2, spread(tp=2), 4)], 2, 5))
    workload = Workload(seq_len=4096, global_batch=10)
    found = estimate_plan(plan, DENSE, where, workload)

    forward, backward, parameters, update = [], [], [], []
    layer, embedding, head = Item("layer", DENSE.kinds()[0], NONE), Item("embedding"), Item("head")
    for group, layers, edge in zip(where.groups, (8, 4), (embedding, head), strict=True):
        hardware = hardware_of(group, workload)
        costs = item_costs((layer, edge), strategy_columns([spread(tp=2)], 2, workload), DENSE, hardware, workload)
        counts = np.array([layers, 1])
        forward.append(float(costs.forward_s[0] @ counts))
        backward.append(float(costs.backward_s[0] @ counts))
        parameters.append(float(costs.dense_parameters[0] @ counts))
        # bf16 with Adam: gradient zeroed, checked and read twice, main copy and two moments read and written, weights
        # written.
        driver = hardware.software
        touched = (driver.gradient_touches + 2) * 4 + 2 * (4 + 8) + 2
        streamed = hardware.memory_bytes_per_s * hardware.efficiency.memory_fraction
        tensors = float(costs.dense_tensors[0] @ counts)
        update.append(parameters[-1] * touched / streamed + tensors * driver.tensor_s + driver.step_s)
    (link,) = where.links
    node = where.groups[0].device.node
    assert node is not None
    sent = 2 * 4096 * DENSE.hidden * 2 / 2
    share = hardware_of(where.groups[0], workload).software.link_share
    efficiency = min(g.device.node.fabric_efficiency for g in where.groups if g.device.node) * share
    way = 7e-6 + link.latency_s + sent / (link.bandwidth_bytes_per_s * efficiency)
    expected = naive_one_f_one_b(forward, backward, [way], 5) + max(update)
    assert found.step_time_s == pytest.approx(expected, rel=1e-9)
    assert [stage.group for stage in found.stages] == ["H100", "A100-80"]
    states = [dict(stage.memory_bytes) for stage in found.stages]
    assert [kinds["weights"] for kinds in states] == pytest.approx([2 * count for count in parameters])
    assert [kinds["optimizer"] for kinds in states] == pytest.approx([12 * count for count in parameters])
    peak = sum(2 * dict(group.device.peak_flop_per_s)["bf16"] for group in where.groups)
    useful = model_flop_per_token(DENSE, 4096, training=True) * 10 * 4096
    assert found.mfu == pytest.approx(useful / (peak * found.step_time_s))


def split(cluster: ClusterSpec, nodes: int) -> ClusterSpec:
    """A group cut in two equal ones, joined by what joins its nodes."""
    (group,) = cluster.groups
    outer = group.domains[-1]
    halves = []
    for name, count in (("one", nodes), ("two", group.nodes - nodes)):
        size = count * group.devices_per_node
        domains = tuple(replace(d, size=min(d.size, size)) for d in group.domains)
        halves.append(replace(group, name=name, nodes=count, domains=domains))
    link = LinkSpec(
        between=("one", "two"), bandwidth_bytes_per_s=outer.bandwidth_bytes_per_s, latency_s=outer.latency_s
    )
    return ClusterSpec(name="halves", groups=tuple(halves), links=(link,))


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize(
    "row",
    [
        PlanRow(tp=8, pp=4, gbs=8, mbs=1),
        PlanRow(tp=4, dp=2, pp=4, gbs=16, sharding="z1"),
        PlanRow(tp=2, dp=4, pp=4, gbs=16, sharding="fsdp", recompute="full"),
        PlanRow(tp=2, dp=8, pp=2, gbs=32, sharding="z2"),
        PlanRow(tp=4, dp=2, pp=4, vpp=2, gbs=16, schedule="interleaved"),
        PlanRow(tp=2, cp=(("p2p", 2),), dp=2, pp=4, gbs=16, schedule="zb-h1"),
    ],
    ids=lambda row: row.format(),
)
def test_a_group_cut_in_two_prices_the_same(model: object, row: PlanRow) -> None:
    """Stages that fill nodes cross the same links whether their nodes are one group or two."""
    where = resolve_gpus("32xH100")
    plan = expand(row, model, 4096)
    workload = Workload(seq_len=4096, global_batch=row.gbs)
    one = estimate_plan(plan, model, where, workload)
    two = estimate_plan(plan, model, split(where, 2), workload)
    assert two.step_time_s == pytest.approx(one.step_time_s, rel=1e-9)
    assert dict(two.breakdown_s) == pytest.approx(dict(one.breakdown_s), rel=1e-9, abs=1e-12)
    assert [s.peak_memory_bytes for s in two.stages] == pytest.approx([s.peak_memory_bytes for s in one.stages])
    assert (two.mfu, two.hfu, two.price_per_step) == pytest.approx((one.mfu, one.hfu, one.price_per_step))


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize(("tp", "pp"), [(8, 1), (8, 2), (4, 2), (2, 1)])
def test_two_pipelines_are_twice_the_data_degree(model: object, tp: int, pp: int) -> None:
    """Replicated states: the same tasks, and gradients that cross the same links."""
    where, gbs = resolve_gpus("32xH100"), 16
    workload = Workload(seq_len=4096, global_batch=gbs)
    wide = expand(PlanRow(tp=tp, pp=pp, dp=2, gbs=gbs), model, 4096)
    (one,) = expand(PlanRow(tp=tp, pp=pp, dp=1, gbs=gbs // 2), model, 4096).pipelines
    # Twins of a stage stand side by side, as the two data ranks of it do.
    twins = tuple(
        replace(
            one,
            workers=tuple(
                replace(worker, devices=((2 * tp * r + tp * k, 2 * tp * r + tp * (k + 1) - 1),))
                for r, worker in enumerate(one.workers)
            ),
        )
        for k in range(2)
    )
    strategies = expand(PlanRow(tp=tp, pp=pp, gbs=gbs), model, 4096).strategies
    apart = estimate_plan(ExecutionPlan(strategies=strategies, pipelines=twins), model, where, workload)
    joint = estimate_plan(wide, model, where, workload)
    ours, theirs = dict(apart.breakdown_s), dict(joint.breakdown_s)
    for name in ("compute", "tp", "optimizer", "host"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-9)
    assert ours["dp"] == pytest.approx(theirs["dp"], rel=1e-6)
    assert apart.step_time_s == pytest.approx(joint.step_time_s, rel=1e-6)


def test_sharded_twins_pay_for_a_sum_between_them() -> None:
    """ZeRO-1 inside each pipeline: scattering over 4 ranks and summing shards over 2 costs little more than over 8."""
    where, workload = resolve_gpus("16xH100"), Workload(seq_len=4096, global_batch=16)
    joint = estimate_plan(plan_of(([Stage(0, spread(tp=2, dp=8, zero=1), 12)], 1, 2)), DENSE, where, workload)
    half = spread(tp=2, dp=4, zero=1)
    apart = estimate_plan(plan_of(([Stage(0, half, 12)], 1, 2), ([Stage(8, half, 12)], 1, 2)), DENSE, where, workload)
    alone = estimate_plan(plan_of(([Stage(0, half, 12)], 1, 2)), DENSE, where, Workload(seq_len=4096, global_batch=8))
    assert dict(alone.breakdown_s)["dp"] < dict(apart.breakdown_s)["dp"] < 3 * dict(joint.breakdown_s)["dp"]
    assert dict(apart.breakdown_s)["compute"] == pytest.approx(dict(joint.breakdown_s)["compute"], rel=1e-9)
    # Each pipeline keeps all optimizer states of its own.
    assert dict(apart.stages[0].memory_bytes)["optimizer"] == pytest.approx(
        2 * dict(joint.stages[0].memory_bytes)["optimizer"]
    )


def test_the_narrower_partner_sets_the_pace_of_the_sum() -> None:
    where = resolve_gpus("16xH100,16xA100-80")
    wide, narrow = spread(tp=8), spread(tp=2)

    def sync_s(*stages: Stage) -> float:
        plan = plan_of(*(([stage], 1, 1) for stage in stages))
        found = estimate_plan(plan, TIED, where, Workload(seq_len=4096, global_batch=plan.global_batch))
        return dict(found.breakdown_s)["dp"]

    equal = sync_s(Stage(0, wide, 10), Stage(16, wide, 10))
    unequal = sync_s(Stage(0, wide, 10), Stage(16, narrow, 10))
    assert equal < unequal
    # A quarter of the ranks send four times as much each, behind a backward that takes longer and hides more of it.
    assert 2.5 * equal < unequal < 4.5 * equal


@pytest.mark.usefixtures("no_shape_checks")
@settings(max_examples=25, deadline=None)
@given(mixed_cases())
def test_parts_sum_and_stages_say_where_they_stand(case: MixedCase) -> None:
    found = case.estimate()
    parts = dict(found.breakdown_s)
    assert sum(parts.values()) == pytest.approx(found.step_time_s, rel=BREAKDOWN_SLACK)
    assert min(parts.values()) >= 0
    assert found.step_time_low_s < found.step_time_s < found.step_time_high_s
    assert 0 < found.mfu <= found.hfu <= 1
    groups = {group.name: group for group in case.cluster.groups}
    workers = [(k, place, w) for k, p in enumerate(case.plan.pipelines) for place, w in enumerate(p.workers)]
    for stage, (pipeline, place, worker) in zip(found.stages, workers, strict=True):
        assert (stage.pipeline, stage.stage, stage.devices) == (pipeline, place, worker.num_devices)
        assert _group_of(case.cluster, worker.devices[0][0]) is groups[stage.group]
        assert stage.capacity_bytes == groups[stage.group].device.memory_bytes
        assert tuple(kind for kind, _ in stage.memory_bytes) == MEMORY_KINDS
        assert sum(size for _, size in stage.memory_bytes) == pytest.approx(stage.peak_memory_bytes)
        strategy = case.plan.strategies[worker.chunks[0].runs[0].strategy]
        assert (stage.tp, stage.cp, stage.ep, stage.dp) == (strategy.tp, strategy.cp, strategy.expert.ep, strategy.dp)
        assert stage.busy_s <= found.step_time_s * (1 + BREAKDOWN_SLACK)
    price = sum(stage.devices * (groups[stage.group].price_per_hour or 0.0) for stage in found.stages)
    if all(groups[stage.group].price_per_hour for stage in found.stages):
        assert found.price_per_step == pytest.approx(price * found.step_time_s / 3600)


def _group_of(cluster: ClusterSpec, device: int) -> NodeGroup:
    for group in cluster.groups:
        if device < group.devices:
            return group
        device -= group.devices
    raise AssertionError(device)


@pytest.mark.usefixtures("no_shape_checks")
def test_a_pricer_that_knows_other_plans_says_the_same() -> None:
    """Cached rows, pipelines and rings are those of the plan asked for."""
    found: list[MixedCase] = []

    @settings(max_examples=25, deadline=None)
    @given(mixed_cases())
    def collect(case: MixedCase) -> None:
        found.append(replace(case, model=MODELS[2]) if case.plan.num_layers == MODELS[2].num_layers else case)

    collect()
    random.Random(5).shuffle(found)
    pricers: dict[tuple[str, int], PlanPricer] = {}
    for case in found:
        known = pricers.setdefault(
            (case.model.name, case.plan.global_batch), PlanPricer(case.model, case.cluster, case.workload)
        )
        assert estimate_of(case.plan, known) == case.estimate()


@pytest.mark.usefixtures("no_shape_checks")
@settings(max_examples=10, deadline=None)
@given(mixed_cases())
def test_slower_links_between_groups_never_help(case: MixedCase) -> None:
    slower = tuple(
        replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / 3, latency_s=3 * link.latency_s)
        for link in case.cluster.links
    )
    worse = replace(case, cluster=replace(case.cluster, links=slower))
    assert case.estimate().step_time_s <= worse.estimate().step_time_s * (1 + BREAKDOWN_SLACK)


@pytest.mark.usefixtures("no_shape_checks")
@settings(max_examples=10, deadline=None)
@given(mixed_cases())
def test_links_that_nobody_names_are_the_slower_fabric(case: MixedCase) -> None:
    silent = replace(case, cluster=replace(case.cluster, links=()))
    assert silent.estimate() == case.estimate()


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("name", PLAN_SCHEDULES)
def test_any_schedule_of_one_direction_runs_over_two_kinds(name: str) -> None:
    """Two pipelines of four stages, two on each kind; those in both directions are refused with the reason."""
    schedule = SCHEDULES[name]
    row = PlanRow(
        tp=2,
        pp=4,
        vpp=2 if schedule.problems(4, 8, 1) else 1,
        gbs=8,
        schedule=name,
        recompute="full" if schedule.recomputes_in_tasks else "none",
    )
    alone = expand(row, DENSE, 2048)
    pipelines = []
    for firsts in ((0, 2, 8, 10), (4, 6, 12, 14)):
        workers = zip(alone.pipelines[0].workers, firsts, strict=True)
        moved = tuple(replace(worker, devices=((first, first + 1),)) for worker, first in workers)
        pipelines.append(replace(alone.pipelines[0], workers=moved))
    plan = ExecutionPlan(strategies=alone.strategies, pipelines=tuple(pipelines))
    where, workload = resolve_gpus("8xH100,8xA100-80"), Workload(seq_len=2048, global_batch=16)
    if schedule.placement(4, 1).chains > 1:
        with pytest.raises(UnsupportedError, match=f"schedule {name} over the groups H100 and A100-80"):
            estimate_plan(plan, DENSE, where, workload)
        return
    found = estimate_plan(plan, DENSE, where, workload)
    parts = dict(found.breakdown_s)
    assert sum(parts.values()) == pytest.approx(found.step_time_s, rel=BREAKDOWN_SLACK)
    assert min(parts.values()) >= 0
    step = step_timeline(plan, DENSE, where, workload)
    if schedule.flushes:
        assert max(phase.end_s for phase in step.phases) == pytest.approx(found.step_time_s, rel=1e-12)
    # Stages on the slower device are busier, layer for layer.
    per_layer = {"H100": 0.0, "A100-80": np.inf}
    for stage in found.stages[1:3]:
        per_layer[stage.group] = stage.busy_s / sum(last - first + 1 for first, last in stage.layers)
    assert per_layer["H100"] < per_layer["A100-80"]


def test_a_stage_of_another_data_degree_takes_its_part_of_each_micro_batch() -> None:
    """Four sequences pass each stage; on the second, four ranks take one each."""
    plan = plan_of(([Stage(0, spread(tp=2, dp=2), 6), Stage(16, spread(tp=2, dp=4), 6)], 2, 4))
    found = estimate_plan(plan, DENSE, CLUSTER, Workload(seq_len=4096, global_batch=16))
    assert [stage.mbs for stage in found.stages] == [2, 1]


def test_whole_sequences_are_gathered_where_degrees_differ() -> None:
    """Tensor ranks without sequence parallelism need all of what each received a part of."""

    def moved_s(second: LayerStrategy) -> float:
        plan = plan_of(([Stage(0, spread(tp=4), 6), Stage(4, second, 6)], 1, 4))
        return dict(estimate_plan(plan, DENSE, CLUSTER, Workload(seq_len=4096, global_batch=4)).breakdown_s)["pp"]

    cut = moved_s(LayerStrategy(tensor=Tensor1D(degree=2, sequence_parallel=True)))
    whole = moved_s(LayerStrategy(tensor=Tensor1D(degree=2, sequence_parallel=False)))
    assert 0 < cut < whole


def test_what_cannot_be_is_said() -> None:
    workload = Workload(seq_len=4096, global_batch=4)
    astride = plan_of(([Stage(12, spread(tp=8), 12)], 1, 4))
    with pytest.raises(UnsupportedError, match="of the groups H100 and A100-80"):
        estimate_plan(astride, DENSE, CLUSTER, workload)
    beyond = plan_of(([Stage(38, spread(tp=4), 12)], 1, 4))
    with pytest.raises(InputError, match="uses 42 devices, the cluster has 40"):
        check_plan(beyond, DENSE, CLUSTER, workload)
    dark = replace(CLUSTER, links=(replace(CLUSTER.links[0], bandwidth_bytes_per_s=0.0), *CLUSTER.links[1:]))
    across = plan_of(([Stage(0, spread(tp=8), 6), Stage(16, spread(tp=8), 6)], 1, 4))
    with pytest.raises(InputError, match="between H100 and A100-80 has no bandwidth"):
        estimate_plan(across, DENSE, dark, workload)
