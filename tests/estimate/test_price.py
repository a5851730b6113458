"""Plans that cannot be priced are refused in words; many rows are priced as each alone."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate import pricer
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.holdings import Holding, WorkerUpdates
from meshwright.estimate.layers.item_costs import ItemCosts, item_costs
from meshwright.estimate.layers.items import Item, items_of
from meshwright.estimate.layout import expand
from meshwright.estimate.memory import COMMUNICATOR_BYTES, TIGHT_SHARE, fits
from meshwright.estimate.needed_flop import model_flop_per_token
from meshwright.estimate.pipeline import PipelineColumns
from meshwright.estimate.price import estimate_plan, strategy_columns, weakest_basis
from meshwright.estimate.result import RANGE_BY_BASIS
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.specs import ModelSpec, PlanRow, Workload
from meshwright.specs.plan import ExecutionPlan, StrategyRun
from meshwright.specs.precision import precision
from meshwright.specs.strategy import LayerStrategy, Recompute
from tests.estimate.cases import DENSE, MIXED, MODELS, TIED, case, part

NONE, FULL = Recompute(), Recompute(kind="full")


def plan(**fields: object) -> ExecutionPlan:
    return expand(PlanRow(**fields), DENSE, 4096)


def test_what_does_not_belong_together_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        estimate_plan(plan(dp=16, gbs=16), TIED, resolve_gpus("8xH100"), Workload(seq_len=4096, global_batch=32))
    assert {problem.field for problem in caught.value.problems} == {"layers", "devices", "gbs"}
    assert all(problem.fix for problem in caught.value.problems)


def test_a_worker_on_two_kinds_of_nodes_is_refused() -> None:
    workload = Workload(seq_len=4096, global_batch=16)
    with pytest.raises(UnsupportedError, match="of the groups A100-80 and H100"):
        estimate_plan(plan(dp=16, gbs=16), DENSE, resolve_gpus("8xA100-80,8xH100"), workload)


@pytest.mark.parametrize(
    "other",
    [
        {"sharding": "z1"},
        {"sharding": "fsdp"},
        {"offload": "w"},
        {"tp": 1, "dp": 4, "mbs": 1},
        {"recompute": "full"},
        {"tp_overlap": "ring"},
    ],
    ids=str,
)
def test_layers_of_a_worker_may_differ_in_everything(other: dict[str, object]) -> None:
    """Half the layers one way, half another: between both in time, but for what passes between them, and in memory."""
    row = PlanRow(tp=2, dp=2, gbs=4, mbs=2)
    where, workload = resolve_gpus("4xH100"), Workload(seq_len=4096, global_batch=4)
    changed = replace(row, **other)
    one, two = (estimate_plan(expand(each, DENSE, 4096), DENSE, where, workload) for each in (row, changed))
    found = estimate_plan(halves(row.strategy(), changed.strategy(), row), DENSE, where, workload)
    parts = dict(found.breakdown_s)
    low, high = sorted((one.step_time_s, two.step_time_s))
    # Collectives of half the layers each start twice.
    assert low < found.step_time_s - parts["pp"] < high * (1 + 5e-3)
    assert (parts["pp"] > 0) == ("tp" in other)
    assert sum(parts.values()) == pytest.approx(found.step_time_s)
    for kind in ("weights", "gradients", "optimizer", "activations"):
        ends = sorted(dict(estimate.stages[0].memory_bytes)[kind] for estimate in (one, two))
        assert ends[0] * (1 - 1e-9) <= dict(found.stages[0].memory_bytes)[kind] <= ends[1] * (1 + 1e-9)


def test_two_layouts_that_cost_the_same_are_as_one() -> None:
    """One data rank shards nothing, whatever it is called: time and every kind of memory stay."""
    row = PlanRow(tp=4, gbs=4)
    where, workload = resolve_gpus("4xH100"), Workload(seq_len=4096, global_batch=4)
    apart = estimate_plan(halves(row.strategy(), replace(row, sharding="z1").strategy(), row), DENSE, where, workload)
    joint = estimate_plan(expand(row, DENSE, 4096), DENSE, where, workload)
    assert apart.step_time_s == pytest.approx(joint.step_time_s, rel=1e-9)
    kinds = dict(joint.stages[0].memory_bytes)
    # Each layout has process groups of its own.
    kinds["comm_buffers"] *= 2
    assert dict(apart.stages[0].memory_bytes) == pytest.approx(kinds, rel=1e-9)


@pytest.mark.parametrize(
    "row",
    [
        PlanRow(tp=2, cp=(("p2p", 2),), dp=2, pp=2, ep=4, gbs=8),
        PlanRow(tp=2, dp=1, ep=2, gbs=8),
        PlanRow(tp=2, dp=2, ep=2, etp=2, gbs=8),
        PlanRow(tp=1, dp=4, ep=4, gbs=8),
        PlanRow(tp=1, dp=8, ep=2, pp=2, gbs=8),
        PlanRow(tp=1, dp=1, pp=3, gbs=8),
        PlanRow(tp=4, dp=1, ep=2, etp=2, gbs=8),
        PlanRow(gbs=8),
    ],
    ids=lambda row: row.format(),
)
@pytest.mark.parametrize("model", ["gpt2-xl", "qwen3-30b-a3b"])
def test_buffers_are_those_of_the_groups_that_a_rank_shares_with_another(row: PlanRow, model: str) -> None:
    """Counted over the ranks of a worker."""
    one = spec(model)
    if not one.is_moe:
        row = replace(row, ep=1, etp=1)
    ranks = [(tp, cp, dp) for dp in range(row.dp) for cp in range(row.cp_degree) for tp in range(row.tp)]
    inside = row.ep * row.etp
    groups = [
        {number for number, (_, cp, dp) in enumerate(ranks) if (cp, dp) == (0, 0)},
        {number for number, (tp, _, dp) in enumerate(ranks) if (tp, dp) == (0, 0)},
        {number for number, (tp, _, _) in enumerate(ranks) if tp == 0},
        set(range(row.pp)),
    ]
    if one.is_moe:
        groups += [
            {number for number in range(len(ranks)) if number < row.etp},
            {number for number in range(len(ranks)) if number < inside and number % row.etp == 0},
            {number for number in range(len(ranks)) if number % inside == 0},
        ]
    shared = sum(len(group) > 1 for group in groups)
    where, workload = resolve_gpus(f"{len(ranks) * row.pp}xH100"), Workload(seq_len=1024, global_batch=8)
    stage = estimate_plan(expand(row, one, 1024), one, where, workload).stages[0]
    assert dict(stage.memory_bytes)["comm_buffers"] == shared * COMMUNICATOR_BYTES


@pytest.mark.parametrize("sharding", ["z1", "z3", "fsdp"])
def test_workers_hold_under_a_layout_what_they_hold_beside_all_others(
    sharding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[PipelineColumns, WorkerUpdates]] = []
    held = pricer.holding

    def noted(columns: PipelineColumns, updates: WorkerUpdates, places: np.ndarray) -> Holding:
        seen.append((columns, updates))
        return held(columns, updates, places)

    monkeypatch.setattr(pricer, "holding", noted)
    row = PlanRow(pp=3, dp=2, gbs=12, sharding=sharding)
    estimate_plan(expand(row, DENSE, 4096), DENSE, resolve_gpus("6xH100"), Workload(seq_len=4096, global_batch=12))
    ((columns, updates),) = seen
    whole = held(columns, updates, np.arange(3))
    for places in ([0], [2], [0, 1], [1, 2], [2, 0], [0, 1, 2]):
        part = held(columns, updates, np.array(places))
        for name in ("forward_s", "last_s", "meeting_s"):
            values = np.broadcast_to(getattr(whole.updates, name), (1, 3))
            assert np.broadcast_to(getattr(part.updates, name), (1, len(places))).tolist() == values[:, places].tolist()
        assert np.broadcast_to(part.communicators, (1, len(places))).tolist() == whole.communicators[:, places].tolist()


def halves(first: LayerStrategy, second: LayerStrategy, row: PlanRow) -> ExecutionPlan:
    """The plan of a row whose first six layers have one strategy and whose last six have another."""
    (pipeline,) = expand(row, DENSE, 4096).pipelines
    (worker,) = pipeline.workers
    (chunk,) = worker.chunks
    runs = (StrategyRun(layers=6, strategy=0), StrategyRun(layers=6, strategy=1))
    changed = replace(pipeline, workers=(replace(worker, chunks=(replace(chunk, runs=runs),)),))
    return ExecutionPlan(strategies=(first, second), pipelines=(changed,))


def test_micro_batches_of_several_sizes_are_refused() -> None:
    (pipeline,) = plan(dp=4, gbs=8).pipelines
    shaped = replace(pipeline, shapes=((1, 4096), (1, 2048)))
    strategy = PlanRow(dp=4).strategy()
    with pytest.raises(UnsupportedError, match="micro-batches of 2 shapes"):
        estimate_plan(
            ExecutionPlan(strategies=(strategy,), pipelines=(shaped,)),
            DENSE,
            resolve_gpus("4xH100"),
            Workload(seq_len=4096, global_batch=8),
        )


def test_a_format_the_device_lacks_is_refused() -> None:
    workload = Workload(seq_len=4096, global_batch=8, precision=precision("fp8"))
    with pytest.raises(UnsupportedError, match="A100-80 does not compute in fp8"):
        estimate_plan(plan(dp=8, gbs=8), DENSE, resolve_gpus("8xA100-80"), workload)


rows = st.builds(
    PlanRow,
    tp=st.sampled_from([1, 2, 4]),
    tp_overlap=st.sampled_from(["bulk", "ring"]),
    cp=st.sampled_from([(), (("p2p", 2),), (("a2a", 2), ("p2p", 2)), (("ag", 4),)]),
    ep=st.sampled_from([1, 2, 4]),
    etp=st.sampled_from([1, 2]),
    offload=st.sampled_from(["", "a", "w"]),
)


@settings(max_examples=settings.default.max_examples // 3)
@given(model=st.sampled_from(MODELS), many=st.lists(rows, min_size=2, max_size=4), mbs=st.integers(1, 3))
def test_many_rows_cost_what_each_costs_alone(model: ModelSpec, many: list[PlanRow], mbs: int) -> None:
    if not model.is_moe:
        many = [replace(row, ep=1, etp=1) for row in many]
    workload = Workload(seq_len=4096, global_batch=8)
    hardware = hardware_of(resolve_gpus("32xH100").groups[0], workload)
    items = items_of(model, (NONE, FULL))

    def costs(*picked: PlanRow) -> ItemCosts:
        columns = strategy_columns([row.strategy() for row in picked], mbs, workload)
        return item_costs(items, columns, model, hardware, workload)

    together, alone = costs(*many), [costs(row) for row in many]
    for item in fields(ItemCosts):
        each = np.concatenate([getattr(one, item.name) for one in alone])
        np.testing.assert_allclose(getattr(together, item.name), each, rtol=1e-12, atol=0)


def test_items_are_layers_by_mode_then_edges() -> None:
    items = items_of(MIXED, (NONE, FULL))
    assert [item.part for item in items] == 4 * ["layer"] + ["embedding", "head", "tie", "copy"] + 2 * ["mtp"]
    assert [item.recompute.kind for item in items[:4]] == ["none", "none", "full", "full"]
    assert items[0] == Item("layer", MIXED.kinds()[0], NONE)


@pytest.mark.parametrize("recompute", [NONE, FULL])
def test_autograd_issues_backward_quicker_than_modules_issue_forward(recompute: Recompute) -> None:
    """A micro-batch so small that only the host counts; what is repeated is issued as forward is."""
    model, workload = spec("gpt2"), Workload(seq_len=64, global_batch=1, software="megatron-lm")
    hardware = hardware_of(resolve_gpus("1xA100-80").groups[0], workload)
    columns = strategy_columns([PlanRow().strategy()], 1, workload)

    def layer(backward_issue: float) -> ItemCosts:
        driver = replace(hardware.software, backward_issue=backward_issue)
        items = (Item("layer", model.last_layer(), recompute),)
        return item_costs(items, columns, model, replace(hardware, software=driver), workload)

    alike, quicker = layer(1.0), layer(0.25)
    assert quicker.forward_s[0, 0] == alike.forward_s[0, 0]
    again_s = alike.forward_s[0, 0] if recompute == FULL else 0.0
    own_s = alike.backward_s[0, 0] - again_s
    assert quicker.backward_s[0, 0] == pytest.approx(again_s + 0.25 * own_s, rel=1e-9)


def test_repeating_the_experts_repeats_their_activation_too() -> None:
    workload = Workload(seq_len=4096, global_batch=8)
    hardware = hardware_of(resolve_gpus("8xH100").groups[0], workload)
    columns = strategy_columns([PlanRow(dp=8, ep=8).strategy()], 1, workload)

    def again(*modules: str) -> float:
        items = (Item("layer", MIXED.last_layer(), Recompute(kind="selective", modules=modules)),)
        return float(item_costs(items, columns, MIXED, hardware, workload).recompute_s[0, 0])

    assert again("moe") == again("moe", "moe_act") > again("moe_act") > 0
    assert again("moe", "core_attn") == pytest.approx(again("moe") + again("core_attn"))
    assert again("mlp") == 0


def test_a_shared_table_is_held_once_on_one_worker_and_twice_on_two() -> None:
    table = TIED.vocab * TIED.hidden * 2
    one, two = (case(TIED, "4xH100", pp=pp, dp=4 // pp, gbs=4).estimate() for pp in (1, 2))
    held = [sum(dict(stage.memory_bytes)["weights"] for stage in estimate.stages) for estimate in (one, two)]
    assert held[1] - held[0] == pytest.approx(table, rel=1e-9)
    assert part(two, "dp") > 0


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.5, "yes"), (1 - TIGHT_SHARE, "yes"), (0.95, "tight"), (1.0, "tight"), (1.01, "no")]
)
def test_verdicts(share: float, verdict: str) -> None:
    assert fits(share * 80e9, 80e9) == verdict


def test_ranges_follow_the_weakest_basis() -> None:
    group = resolve_gpus("8xH100").groups[0]
    assert weakest_basis(group) == "datasheet"
    guessed = replace(group, domains=tuple(replace(domain, basis="assumed") for domain in group.domains))
    assert weakest_basis(guessed) == "assumed"
    widths = [sum(RANGE_BY_BASIS[basis]) for basis in ("measured", "fitted", "datasheet", "assumed", "extrapolated")]
    assert widths == sorted(widths)


def test_model_flop_of_a_token() -> None:
    """6 N and half the square of attention three times: Llama-3-8B at 8192 needs 6 x 8.03e9 + 12 L h s / 2."""
    model = spec("llama-3-8b")
    expected = 6 * model.parameters + 3 * 4 * 32 * 4096 * (8192 + 1) / 2
    assert model_flop_per_token(model, 8192, training=True) == pytest.approx(expected, rel=1e-12)
    assert model_flop_per_token(model, 8192, training=False) == pytest.approx(expected / 3, rel=1e-12)


def test_experts_count_in_time_as_visited_not_as_held() -> None:
    wide = replace(MIXED.last_layer().mlp, experts=64)
    runs = (MIXED.runs[0], replace(MIXED.runs[1], layers=(replace(MIXED.last_layer(), mlp=wide),)))
    more = replace(MIXED, runs=runs)
    assert more.parameters > 2 * MIXED.parameters
    few, many = (model_flop_per_token(model, 4096, training=True) for model in (MIXED, more))
    assert many == pytest.approx(few, rel=0.01)  # the router is wider
