"""What a change of plan moves, against a count of every parameter of every device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.fields.job import JobFields
from meshwright.planning.compose.moved_state import MovedState, _bytes_by_layer, _intervals, moved_state
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import ContextParallel, DataParallel, ExpertParallel, LayerStrategy
from tests.estimate.mixed import Stage
from tests.estimate.mixed import plan_of as several

CELLS = 48
"""Parts a layer is counted in: every degree below divides it."""
INPUTS = job_inputs(JobFields(model="llama-3-8b", gpus="2x4xH100", global_batch=24))
MODEL, WORKLOAD, CLUSTER = INPUTS.model, INPUTS.workload, INPUTS.cluster
ROWS = {
    "dp8": PlanRow(dp=8, gbs=24),
    "tp2.dp4.z1": PlanRow(tp=2, dp=4, sharding="z1", gbs=24),
    "tp4.pp2": PlanRow(tp=4, pp=2, dp=1, gbs=24),
    "tp2.pp2.dp2.z3": PlanRow(tp=2, pp=2, dp=2, sharding="z3", gbs=24),
    "pp4.dp2.fsdp": PlanRow(pp=4, dp=2, sharding="fsdp", gbs=24),
}


def made(row: PlanRow) -> ExecutionPlan:
    base = MODEL.num_layers // row.pp
    return plan_of(row, [base] * row.pp)


def moved(before: str, after: str, number: list[int] | None = None) -> MovedState:
    numbers = np.array(number if number is not None else range(8))
    return moved_state(MODEL, WORKLOAD, made(ROWS[before]), made(ROWS[after]), CLUSTER, numbers)


def cells_of(row: PlanRow, optimizer: bool) -> dict[int, list[set[int]]]:
    """Cells of each layer, embedding and head that each device holds, counted one by one."""
    held: dict[int, list[set[int]]] = {}
    layers = MODEL.num_layers
    for device in range(8):
        stage, rank = divmod(device, 8 // row.pp)
        tp, data = rank % row.tp, rank // row.tp
        mine = set(range(CELLS * tp // row.tp, CELLS * (tp + 1) // row.tp))
        sharded = row.sharding in ("z3", "fsdp") or (optimizer and row.sharding == "z1")
        if sharded:
            width = CELLS // row.tp // row.dp
            first = CELLS * tp // row.tp + data * width
            mine = set(range(first, first + width))
        own = [mine if layer * row.pp // layers == stage else set() for layer in range(layers)]
        held[device] = [*own, mine if stage == 0 else set(), mine if stage == row.pp - 1 else set()]
    return held


@pytest.mark.parametrize("before", ROWS)
@pytest.mark.parametrize("after", ROWS)
@pytest.mark.parametrize("lost", [(), (0,), (4, 5, 6, 7)])
def test_every_byte_is_counted_once(before: str, after: str, lost: tuple[int, ...]) -> None:
    number = [-1 if device in lost else device for device in range(8)]
    found = moved(before, after, number)
    weights = WORKLOAD.precision.bytes_of("weights")
    states = WORKLOAD.precision.bytes_of("master") + 2 * WORKLOAD.precision.bytes_of("moments")
    parameters = [layer.parameters(MODEL.hidden) for layer in MODEL.layers()]
    parameters += [MODEL.embedding_parameters, MODEL.head_parameters]
    expected = dict.fromkeys(("kept", "inside nodes of H100", "between nodes of H100", "lost"), 0.0)
    for optimizer, width in ((False, weights), (True, states)):
        had, wants = cells_of(ROWS[before], optimizer), cells_of(ROWS[after], optimizer)
        left = {device: cells for device, cells in had.items() if device not in lost}
        for device, layers in wants.items():
            for layer, cells in enumerate(layers):
                own = left[device][layer] if device in left else set()
                near = set().union(*(c[layer] for d, c in left.items() if d // 4 == device // 4))
                far = set().union(*(c[layer] for c in left.values()))
                each = parameters[layer] * width / CELLS
                expected["kept"] += each * len(cells & own)
                expected["inside nodes of H100"] += each * len((cells & near) - own)
                expected["between nodes of H100"] += each * len((cells & far) - near)
                expected["lost"] += each * len(cells - far)
    flows = {flow.link: flow.size_bytes for flow in found.flows}
    assert found.kept_bytes == pytest.approx(expected["kept"], rel=1e-6, abs=1)
    assert found.lost_bytes == pytest.approx(expected["lost"], rel=1e-6, abs=1)
    for link in ("inside nodes of H100", "between nodes of H100"):
        assert flows.get(link, 0.0) == pytest.approx(expected[link], rel=1e-6, abs=1)


def test_no_change_moves_nothing() -> None:
    same = moved("tp2.dp4.z1", "tp2.dp4.z1")
    assert (same.moved_bytes, same.lost_bytes, same.time_s) == (0, 0, 0)
    assert same.kept_bytes > 0


def test_the_slowest_receiver_sets_the_time() -> None:
    # The second node starts from nothing: each of its devices receives all weights and states over the fabric.
    found = moved("dp8", "dp8", [0, 1, 2, 3, -1, -1, -1, -1])
    outer = CLUSTER.groups[0].domains[-1]
    each = found.moved_bytes / 4
    assert found.time_s == pytest.approx(each / (outer.bandwidth_bytes_per_s * outer.efficiency))


def test_experts_are_held_by_expert_ranks() -> None:
    inputs = job_inputs(JobFields(model="mixtral-8x7b", gpus="2x4xH100", global_batch=24))
    row = PlanRow(dp=8, ep=8, sharding="z1", gbs=24)
    one = plan_of(row, [inputs.model.num_layers])
    other = plan_of(replace(row, ep=4), [inputs.model.num_layers])
    same = moved_state(inputs.model, inputs.workload, one, one, inputs.cluster, np.arange(8))
    fewer = moved_state(inputs.model, inputs.workload, one, other, inputs.cluster, np.arange(8))
    assert same.moved_bytes == 0
    weights = inputs.workload.precision.bytes_of("weights")
    mlp = next(inputs.model.layers()).mlp
    experts = mlp.experts * mlp.expert_parameters(inputs.model.hidden) * inputs.model.num_layers
    # Of a quarter of the experts' weights, devices 0, 3, 4 and 7 at most hold half already.
    assert experts * weights / 8 * 8 <= fewer.moved_bytes


@pytest.mark.parametrize(
    ("kind", "data", "width"),
    [
        (0, DataParallel(shard=2, replicate=2, zero=1), 1 / 1),  # weights, which zero 1 does not shard
        (1, DataParallel(shard=2, replicate=2, zero=1), 1 / 4),  # over data times context ranks
        (0, DataParallel(shard=2, replicate=2, zero=3), 1 / 4),
        (1, DataParallel(shard=1, replicate=4, zero=1), 1 / 2),
        (1, DataParallel(shard=8, replicate=1, zero=1), 1 / 8),  # never more parts than ranks
        (2, DataParallel(shard=2, replicate=2, zero=1), 1 / 2),  # expert weights: over expert ranks alone
        (3, DataParallel(shard=2, replicate=2, zero=1), 1 / 8),
        (2, DataParallel(shard=2, replicate=2, zero=3), 1 / 8),
    ],
)
def test_a_device_holds_its_part_of_what_is_sharded(kind: int, data: DataParallel, width: float) -> None:
    worker = made(ROWS["dp8"]).pipelines[0].workers[0]
    context = (ContextParallel(kind="ring", degree=2),)
    strategy = LayerStrategy(context=context, data=data, expert=ExpertParallel(ep=2))
    held = _intervals(worker, strategy, kind)
    assert np.allclose(held.stop - held.start, width)
    covered, times = np.unique(np.round(held.start / width), return_counts=True)
    assert list(covered) == list(range(round(1 / width)))
    assert set(times) == {round(8 * width)}


def joint(shares: tuple[int, int], zero: int) -> ExecutionPlan:
    """Two pipelines of unlike ranks that hold one state together."""
    own = [LayerStrategy(data=DataParallel(shard=ranks, zero=zero, across=8)) for ranks in shares]
    layers = MODEL.num_layers
    return several(([Stage(0, own[0], layers)], 3, 1), ([Stage(shares[0], own[1], layers)], 3, 1))


@pytest.mark.parametrize("zero", [1, 3])
def test_a_state_that_all_ranks_hold_stays_where_they_are_whatever_their_pipelines(zero: int) -> None:
    numbers = np.arange(8)
    found = moved_state(MODEL, WORKLOAD, joint((6, 2), zero), joint((4, 4), zero), CLUSTER, numbers)
    assert found.flows == ()
    alone = made(PlanRow(dp=8, sharding=f"z{zero}", gbs=24))
    assert moved_state(MODEL, WORKLOAD, joint((6, 2), zero), alone, CLUSTER, numbers).flows == ()


THREE_KINDS = job_inputs(JobFields(model="gpt2", gpus="4xH100,4xA100-80,4xL40S", global_batch=24))


def received_by_others(left: set[int], speeds: dict[tuple[str, str], float]) -> tuple[dict[str, float], float]:
    """Copies of the whole state over each link, and seconds per copy, where only some groups of 12 ranks keep it."""
    model, recipe = THREE_KINDS.model, THREE_KINDS.workload.precision
    links = tuple(
        replace(link, bandwidth_bytes_per_s=speeds.get(link.between, link.bandwidth_bytes_per_s))
        for link in THREE_KINDS.cluster.links
    )
    plan = plan_of(PlanRow(dp=12, gbs=24), [model.num_layers])
    numbers = np.array([device if device // 4 in left else -1 for device in range(12)])
    cluster = replace(THREE_KINDS.cluster, links=links)
    found = moved_state(model, THREE_KINDS.workload, plan, plan, cluster, numbers)
    states = recipe.bytes_of("weights") + recipe.bytes_of("master") + 2 * recipe.bytes_of("moments")
    parameters = sum(layer.parameters(model.hidden) for layer in model.layers())
    whole = states * (parameters + model.embedding_parameters + model.head_parameters)
    assert found.kept_bytes == pytest.approx(4 * len(left) * whole)
    return {flow.link: flow.size_bytes / whole for flow in found.flows}, found.time_s / whole


def test_groups_that_start_empty_receive_over_their_own_links() -> None:
    """Four devices of a group receive a copy each; the slower link, of 12.5 GB/s, sets the time."""
    flows, time_s = received_by_others({0}, {})
    assert flows == pytest.approx({"H100 - A100-80": 4, "H100 - L40S": 4})
    assert time_s == pytest.approx(1 / 12.5e9)
    flows, _ = received_by_others({2}, {})
    assert flows == pytest.approx({"H100 - L40S": 4, "A100-80 - L40S": 4})


def test_a_group_receives_from_the_quicker_of_two_that_have_it() -> None:
    flows, time_s = received_by_others({0, 1}, {("A100-80", "L40S"): 20e9})
    assert flows == pytest.approx({"A100-80 - L40S": 4})
    assert time_s == pytest.approx(1 / 20e9)


def test_bytes_of_experts_and_of_what_is_not_are_apart() -> None:
    """Mixtral: 8 experts of 3 x 4096 x 14336; queries and output 4096^2, keys and values 4096 x 1024, norms, router.

    Weights in bf16; a copy and two moments in fp32 are 12 bytes of state.
    """
    inputs = job_inputs(JobFields(model="mixtral-8x7b", gpus="8xH100", global_batch=24))
    experts = 8 * 3 * 4096 * 14336
    dense = 2 * 4096**2 + 2 * 4096 * 1024 + 2 * 4096 + 8 * 4096
    first, *_ = _bytes_by_layer(inputs.model, inputs.workload)
    assert first == pytest.approx((2 * dense, 12 * dense, 2 * experts, 12 * experts))
