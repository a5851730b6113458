"""Rows of degrees: those that devices, batch and rules leave, each as the strategy that its plan states."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.estimate.rows import fetched_share, strategy_columns
from meshwright.estimate.rules.legality import row_problems
from meshwright.library.devices import device
from meshwright.planning.count_bound import least_of_count_s
from meshwright.planning.size import nodes_of
from meshwright.search.axes import ways, ways_of
from meshwright.search.grid import COLUMNS, Grid, grid_degrees
from meshwright.search.legal_rows import build_grid, context_levels, grid_parts, most_offload
from meshwright.search.space import Space, usual_overlaps
from meshwright.search.table import divisors
from meshwright.specs import ModelSpec, MoeMlp, PlanRow, Workload
from meshwright.specs.row import offload_of
from meshwright.strategies import CONTEXTS
from meshwright.strategies.columns import OVERLAPS
from tests.search.spaces import DENSE, MOE, LayerRun, model

EXPERTS = MoeMlp(experts=4, top_k=1, ffn_hidden=1024, gated=True, shared_ffn_hidden=512)
MODEL = model(LayerRun(layers=(replace(MOE, mlp=EXPERTS),), repeats=4))
WORKLOAD = Workload(global_batch=8, seq_len=2048)
DEVICES = 16


def grid(*pins: tuple[str, tuple[object, ...]]) -> Grid:
    return build_grid(MODEL, WORKLOAD, DEVICES, Space(pins=pins))


def row(found: Grid, at: int) -> PlanRow:
    """A row as a plan states it, weights sharded over data ranks."""
    single: dict[str, Any] = {name: int(getattr(found, name)[at]) for name in ("tp", "ep", "etp", "pp", "dp", "mbs")}
    overlap = OVERLAPS[int(found.overlap[at])]
    return PlanRow(
        **single,
        cp=found.levels(at),
        tp_overlap=overlap,
        sharding="z3",
        gbs=WORKLOAD.global_batch,
        offload=found.offload,
    )


@pytest.mark.parametrize("offload", ["", "w", "a", "wao"])
def test_rows_are_the_strategies_that_their_plans_state(offload: str) -> None:
    found = replace(grid(), offload=offload)
    found = found.take(found.way == 0)
    assert found.rows > 100
    columns = found.strategies(WORKLOAD)
    strategies = [row(found, at).strategy() for at in range(found.rows)]
    known = strategy_columns(strategies, found.mbs.astype(float), WORKLOAD)
    for name in ("tp", "sp", "tp_overlap", "context", "ep", "etp", "mbs", "offload_activations", "ep_chunks"):
        assert np.array_equal(getattr(columns, name), getattr(known, name)), name
    shares = [offload_of(offload).weights * fetched_share(strategy) for strategy in strategies]
    assert columns.offload_weights == pytest.approx(shares, rel=1e-12)


def test_a_section_holds_its_part_of_a_micro_batch() -> None:
    found = grid()
    assert np.array_equal(found.strategies(WORKLOAD).mbs, found.mbs)
    assert found.strategies(WORKLOAD, 4).mbs * 4 == pytest.approx(found.mbs)


def test_rows_use_all_devices_and_share_the_batch_out() -> None:
    found = grid()
    assert np.all(found.tp * found.cp * found.pp * found.dp == DEVICES)
    assert np.all(found.dp * found.mbs * found.m == WORKLOAD.global_batch)
    assert found.pp.max() == 4
    assert np.all(EXPERTS.experts % found.ep == 0)
    assert np.all(found.tp * found.cp * found.dp % (found.ep * found.etp) == 0)


def test_pinned_axes_hold_their_values_alone() -> None:
    found = grid(("tp", (2,)), ("pp", (1, 2)), ("mbs", (1,)))
    assert set(found.tp.tolist()) == {2}
    assert set(found.pp.tolist()) == {1, 2}
    assert set(found.mbs.tolist()) == {1}
    every = grid()
    kept = (every.tp == 2) & np.isin(every.pp, (1, 2)) & (every.mbs == 1)
    assert found.rows == int(kept.sum())


@pytest.mark.parametrize(
    ("number", "known"), [(1, [1]), (16, [1, 2, 4, 8, 16]), (36, [1, 2, 3, 4, 6, 9, 12, 18, 36]), (7, [1, 7])]
)
def test_divisors_ascend_and_are_each_there_once(number: int, known: list[int]) -> None:
    assert divisors(number) == known


def test_kinds_of_context_behind_one_that_is_not_allowed_are_tried() -> None:
    assert context_levels(4, Space(pins=(("cp_kind", ("ag",)),))) == [(1, 1, 4, 1, 1, 1)]
    assert context_levels(4, Space(pins=(("cp_kind", ("ag", "a2a+p2p")),))) == [(1, 1, 4, 1, 1, 1), (2, 2, 1, 1, 1, 1)]


DENSE_MODEL = model(LayerRun(layers=(DENSE,), repeats=3))
TWO_KINDS = model(
    LayerRun(layers=(DENSE,), repeats=1),
    LayerRun(layers=(replace(MOE, mlp=replace(EXPERTS, experts=6)), replace(MOE, mlp=EXPERTS)), repeats=2),
)
"""One layer without experts, two of 4 and two of 6."""


def ways_through(cp: int) -> list[dict[str, int]]:
    """Context groups of a degree: one kind alone, or two with whole numbers above 1 between them."""
    if cp == 1:
        return [{}]
    alone = [{kind: cp} for kind in ("a2a", "p2p", "ag")]
    return alone + [{"a2a": inner, "p2p": cp // inner} for inner in range(2, cp) if cp % inner == 0]


def written_out(
    spec: ModelSpec, workload: Workload, devices: int, ways: list[int], tensor: str = "1d", **kept: tuple[object, ...]
) -> Counter[tuple[object, ...]]:
    """Every row by trying all whole numbers, each asked of the rules of plans."""
    moes = [layer.mlp for layer in spec.kinds() if layer.mlp.kind == "moe"]
    eps = [n for n in range(1, devices + 1) if all(moe.experts % n == 0 for moe in moes)] if moes else [1]
    etps = [n for n in range(1, devices + 1) if all(moe.ffn_hidden % n == 0 for moe in moes)] if moes else [1]
    whole = range(1, devices + 1)
    found: Counter[tuple[object, ...]] = Counter()
    for tp, cp, pp, dp in itertools.product(whole, repeat=4):
        if tp * cp * pp * dp != devices or (tensor != "1d" and tp == 1):
            continue
        for mbs, levels, ep, etp in itertools.product(range(1, workload.global_batch + 1), ways_through(cp), eps, etps):
            row = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "mbs": mbs, "ep": ep, "etp": etp}
            if workload.global_batch % (dp * mbs) or any(row[axis] not in values for axis, values in kept.items()):
                continue
            plan = PlanRow(
                **row | {"cp": tuple(levels.items())},
                tensor=tensor,
                gbs=workload.global_batch,
            )
            if row_problems(plan, spec, workload.seq_len, devices):
                continue
            overlaps = usual_overlaps(tensor) if tp > 1 else ("bulk",)
            for overlap, way in itertools.product(overlaps, ways if ep > 1 else [0]):
                found[
                    tp, overlap, tuple(levels.items()), ep, etp, pp, dp, mbs, workload.global_batch // (dp * mbs), way
                ] += 1
    return found


def said(found: Grid) -> Counter[tuple[object, ...]]:
    """The rows of a grid."""
    return Counter(
        (
            int(found.tp[at]),
            OVERLAPS[int(found.overlap[at])],
            found.levels(at),
            int(found.ep[at]),
            int(found.etp[at]),
            int(found.pp[at]),
            int(found.dp[at]),
            int(found.mbs[at]),
            int(found.m[at]),
            int(found.way[at]),
        )
        for at in range(found.rows)
    )


@pytest.mark.parametrize("spec", [DENSE_MODEL, MODEL, TWO_KINDS], ids=["dense", "experts", "two kinds"])
@pytest.mark.parametrize(("devices", "batch"), [(1, 4), (8, 12), (12, 6)])
def test_the_grid_is_every_legal_row_once(spec: ModelSpec, devices: int, batch: int) -> None:
    some = [0, 1, len(ways()) - 1]
    workload = replace(WORKLOAD, global_batch=batch)
    found = said(build_grid(spec, workload, devices, Space(), np.array(some)))
    known = written_out(spec, workload, devices, some)
    assert known
    assert found == known


@pytest.mark.parametrize(
    "kept",
    [
        {"cp": (2, 4), "dp": (1, 2)},
        {"tp": (4, 3, 8)},
        {"pp": (3,)},
        {"ep": (2,), "etp": (1, 4)},
        {"mbs": (2, 3)},
        {"dp": (5,)},
        {"tp": (16,)},
    ],
    ids=str,
)
def test_pins_leave_the_rows_that_hold_them(kept: dict[str, tuple[object, ...]]) -> None:
    """Also where nothing is left: a degree that no row has, or more devices than there are."""
    workload = replace(WORKLOAD, global_batch=12)
    for devices in (8, 12):
        found = build_grid(MODEL, workload, devices, Space(pins=tuple(kept.items())), np.array([0, 1]))
        assert said(found) == written_out(MODEL, workload, devices, [0, 1], **kept)
        assert found.context.shape == (found.rows, len(CONTEXTS))


@pytest.mark.parametrize("tensor", ["2d", "3d"])
def test_rows_of_another_tensor_strategy_all_have_tensor_groups(tensor: str) -> None:
    for devices in (4, 8, 16):
        found = build_grid(DENSE_MODEL, WORKLOAD, devices, Space(pins=(("tensor", (tensor,)),)), np.array([0]))
        assert found.tensor == tensor
        assert said(found) == written_out(DENSE_MODEL, WORKLOAD, devices, [0], tensor)


def test_a_pinned_overlap_holds_plans_to_tensor_groups_unless_it_is_that_of_one_rank() -> None:
    every, rings = grid(), grid(("tp_overlap", ("ring",)))
    assert said(rings) == Counter({row: n for row, n in said(every).items() if row[1] == "ring"})
    plain = grid(("tp_overlap", ("bulk",)))
    assert said(plain) == Counter({row: n for row, n in said(every).items() if row[1] == "bulk"})


def test_halves_are_of_whole_sequences_and_of_dense_layers() -> None:
    pins = (("tp_overlap", ("bulk", "ring", "halves")),)
    found = build_grid(DENSE_MODEL, WORKLOAD, 8, Space(pins=pins))
    halved = found.overlap == OVERLAPS.index("halves")
    rings = found.overlap == OVERLAPS.index("ring")
    assert halved.sum() == (rings & (found.mbs % 2 == 0)).sum() > 0
    assert (found.mbs[halved] % 2 == 0).all()
    assert (grid(*pins).overlap != OVERLAPS.index("halves")).all()


@pytest.mark.parametrize(
    ("axis", "value", "neutral"),
    [
        ("dispatcher", "move-experts", "alltoall"),
        ("ep_overlap", "paired-wgrad", "none"),
        ("ep_order", "first", "shared"),
    ],
)
def test_what_is_pinned_of_exchanges_leaves_rows_that_exchange(axis: str, value: str, neutral: str) -> None:
    """A plan with all experts on every rank has no dispatcher, so it is no answer where one is asked for."""
    held, either = grid((axis, (value,))), grid((axis, (neutral, value)))
    assert held.rows
    assert held.ep.min() > 1
    assert either.ep.min() == 1


def test_experts_that_move_are_tried_with_nothing_beside_and_in_no_order() -> None:
    pins = (("dispatcher", ("move-experts",)), ("ep_overlap", ("none", "paired")), ("ep_order", ("shared", "first")))
    numbers = ways_of(Space(pins=pins), None).tolist()
    assert [ways()[number] for number in numbers] == [("move-experts", "none", "kept", "shared")]


def test_lengths_that_no_context_group_divides_are_left_out() -> None:
    odd = replace(WORKLOAD, seq_len=2050)
    found = build_grid(DENSE_MODEL, odd, 8, Space(), np.array([0]))
    assert said(found) == written_out(DENSE_MODEL, odd, 8, [0])
    assert found.cp.max() <= 2


def test_two_levels_of_context_are_left_out_where_they_are_not_wanted() -> None:
    assert [levels[:3] for levels in context_levels(8, Space()) if sum(n > 1 for n in levels) == 2] == [
        (2, 4, 1),
        (4, 2, 1),
    ]
    alone = context_levels(8, Space(), hierarchical=False)
    assert alone == [levels for levels in context_levels(8, Space()) if sum(n > 1 for n in levels) == 1]
    assert len(alone) == 3


@pytest.mark.parametrize("alone", [False, True])
def test_rows_in_several_ways_stand_one_after_the_other(alone: bool) -> None:
    plain = grid().take(np.arange(0, grid().rows, 7))
    ways = np.array([3, 0, 5])
    found = plain.in_ways(ways, alone=alone)
    known = [
        (*(getattr(plain, name)[at].tolist() for name in COLUMNS if name != "way"), way)
        for at in range(plain.rows)
        for way in (ways.tolist() if alone or plain.ep[at] > 1 else [0])
    ]
    rows = zip(*(getattr(found, name).tolist() for name in COLUMNS if name != "way"), found.way.tolist(), strict=True)
    assert list(rows) == known


def test_rows_that_are_checked_in_parts_are_those_checked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = grid()
    for together in (1, 40, 1 << 30):
        monkeypatch.setattr("meshwright.search.legal_rows.CHECKED_TOGETHER", together)
        for name in COLUMNS:
            assert np.array_equal(getattr(grid(), name), getattr(at_once, name)), name


def test_rows_given_in_parts_are_those_given_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = grid()
    monkeypatch.setattr("meshwright.search.legal_rows.CHECKED_TOGETHER", 8)
    monkeypatch.setattr("meshwright.search.legal_rows.BOUNDED_TOGETHER", 100)
    parts = list(grid_parts(MODEL, WORKLOAD, DEVICES, Space()))
    assert len(parts) > 10
    assert all(0 < part.rows < 200 for part in parts)
    together: Counter[tuple[object, ...]] = Counter()
    for part in parts:
        together += said(part)
    assert together == said(whole)


def test_a_device_count_without_legal_rows_has_no_parts() -> None:
    assert not list(grid_parts(MODEL, WORKLOAD, DEVICES, Space(pins=(("mbs", (3,)),))))


def test_the_least_time_of_parts_is_that_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    group = nodes_of(device("H100"), 2).groups[0]
    whole = least_of_count_s.__wrapped__(MODEL, group, WORKLOAD, Space())
    monkeypatch.setattr("meshwright.search.legal_rows.BOUNDED_TOGETHER", 100)
    monkeypatch.setattr("meshwright.search.legal_rows.CHECKED_TOGETHER", 8)
    assert least_of_count_s.__wrapped__(MODEL, group, WORKLOAD, Space()) == whole


def test_a_row_is_the_plan_that_its_columns_say() -> None:
    found = grid().in_ways(np.arange(len(ways())))
    # Of all rows at once: each is worked out from columns of a million.
    cp, first, paired = found.cp, found.first, found.paired
    for at in range(0, found.rows, 97):
        plan = found.plan_row(at, pp=int(found.pp[at]), gbs=WORKLOAD.global_batch)
        how, beside, hot, order = ways()[int(found.way[at])]
        assert (plan.dispatcher, plan.ep_overlap, plan.hot_experts, plan.prioritised) == (
            how,
            beside,
            hot,
            order == "first",
        )
        assert (plan.tp, plan.cp_degree, plan.ep, plan.etp, plan.dp, plan.mbs) == tuple(
            int(column[at]) for column in (found.tp, cp, found.ep, found.etp, found.dp, found.mbs)
        )
        assert plan.devices == DEVICES
        assert bool(first[at]) == plan.prioritised
        assert bool(paired[at]) == beside.startswith("paired")
        assert plan.tp_overlap == OVERLAPS[int(found.overlap[at])]


def test_what_legality_reads_is_what_a_plan_of_a_row_says() -> None:
    found = grid()
    degrees = grid_degrees(found)
    assert set(np.concatenate([degrees["sp"], degrees["vpp"]]).tolist()) == {1}
    for name in ("tp", "cp", "ep", "etp", "pp", "dp", "mbs"):
        assert np.array_equal(degrees[name], getattr(found, name))
    heads = [dict(found.levels(at)).get("a2a", 1) for at in range(found.rows)]
    assert degrees["cp_heads"].tolist() == heads


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ((), ""),
        (("none",), ""),
        (("none", "o"), "o"),
        (("w", "wao", "o"), "wao"),
        (("o-nvme", "o"), "o"),
        (("wo-nvme", "o"), "wo-nvme"),
    ],
)
def test_of_what_may_be_away_the_most_decides_what_fits(words: tuple[str, ...], most: str) -> None:
    assert most_offload(Space(pins=(("offload", words),) if words else ())) == most
