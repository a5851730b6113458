"""Opened axes: what is found by default is a time to beat for the rest, and no answer is lost by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright import budget
from meshwright.budget import TIME_LIMIT, Budget
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.search.away import narrow_space, pinned_to, schedule_spaces
from meshwright.search.axes import ways_of
from meshwright.search.block import Block
from meshwright.search.explored import SHAPE_TOO_LARGE
from meshwright.search.grid import Grid
from meshwright.search.legal_rows import build_grid
from meshwright.search.one_space import SpaceSearch
from meshwright.search.outlines import Outline, Outlines
from meshwright.search.priced_rows import PricedRows
from meshwright.search.result import SearchResult
from meshwright.search.search import search
from meshwright.search.shape_tables import ShapeTables
from meshwright.search.space import Space
from meshwright.specs import Workload
from meshwright.specs.dispatchers import DISPATCHERS
from meshwright.specs.row import recompute_fields
from meshwright.specs.strategy import EXPERT_OVERLAPS
from tests.search.spaces import CATALOGUE, SPACES, SmallSpace

SCHEDULES = ("1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev", "terapipe", "mario", "chimera")
EXPERTS = SmallSpace(
    "experts by any way",
    SPACES[2].model,
    SPACES[2].cluster,
    replace(SPACES[2].workload, global_batch=4),
    pins=(
        ("tp", (1, 2)),
        ("cp", (1,)),
        ("sharding", ("z0", "z1")),
        ("recompute", ("none", "full")),
        ("dispatcher", tuple(DISPATCHERS)),
        ("ep_overlap", EXPERT_OVERLAPS),
        ("offload", ("none", "og")),
        ("tensor", ("1d", "heads")),
        ("schedule", SCHEDULES),
    ),
)
ORDERS = replace(
    EXPERTS,
    name="experts in any order",
    pins=tuple(
        (
            dict(EXPERTS.pins)
            | {
                "sharding": ("z0", "z1", "z3", "fsdp"),
                "dispatcher": ("alltoall",),
                "ep_overlap": ("none",),
                "ep_order": ("shared", "first"),
                "offload": ("none",),
                "tensor": ("1d",),
            }
        ).items()
    ),
)
PIPELINES = replace(CATALOGUE, pins=tuple((dict(CATALOGUE.pins) | {"schedule": SCHEDULES}).items()))


def searched(small: SmallSpace, opened: tuple[str, ...]) -> SearchResult:
    space = Space(pins=small.pins, opened=opened)
    return search(small.model, small.cluster, small.workload, space, top=3, refine=False)


def named(result: SearchResult) -> list[tuple[str, float]]:
    return [(plan.row.format(), plan.estimate.step_time_s) for plan in result.plans if plan.row]


def accounted(result: SearchResult) -> int:
    return result.certificate.priced + sum(count for _, count in result.certificate.pruned)


@pytest.mark.parametrize(
    ("small", "opened"),
    [
        (PIPELINES, ("schedule",)),
        (EXPERTS, ("schedule", "dispatcher", "ep_overlap", "offload", "tensor")),
        (EXPERTS, ("dispatcher", "ep_overlap")),
    ],
)
def test_an_opened_space_has_the_answer_of_the_same_space_searched_at_once(
    small: SmallSpace, opened: tuple[str, ...]
) -> None:
    whole, at_once = searched(small, opened), searched(small, ())
    assert named(whole) == named(at_once)
    assert whole.certificate.optimal
    assert whole.certificate.space == at_once.certificate.space
    assert accounted(whole) == accounted(at_once)


@pytest.mark.parametrize("names", [("1f1b", "interleaved"), ("zb-v", "v-min")])
def test_schedules_of_one_kind_are_searched_in_one_space(names: tuple[str, ...]) -> None:
    space = pinned_to(Space(pins=PIPELINES.pins, opened=("schedule",)), schedule=names)
    assert schedule_spaces(space, PIPELINES.model) == [space]


def test_no_plan_is_quicker_than_the_outline_of_its_schedule() -> None:
    formulas, sketched = schedule_spaces(Space(pins=PIPELINES.pins, opened=("schedule",)), PIPELINES.model)
    assert formulas.pinned("schedule") == ("1f1b", "interleaved")
    run = SpaceSearch(PIPELINES.model, PIPELINES.cluster, PIPELINES.workload, sketched, 3, pareto=False)
    assert run.sketched_only
    grid = build_grid(PIPELINES.model, PIPELINES.workload, PIPELINES.cluster.devices, sketched)
    looked_at = set()
    every = Outlines(run, grid)
    for one in every.of(np.arange(grid.rows)):
        for row, bound_s in zip(one.row.tolist(), one.bound_s.tolist(), strict=True):
            pp, m = int(grid.pp[row]), int(grid.m[row])
            recompute = run.factory.recomputes(pp, one.v, one.schedule)[0][0]
            plan = grid.plan_row(
                row, pp=pp, vpp=one.v, gbs=16, schedule=one.schedule.token, sharding="z0", recompute=recompute
            )
            execution = expand(plan, PIPELINES.model, PIPELINES.workload.seq_len)
            found = estimate_plan(execution, PIPELINES.model, PIPELINES.cluster, PIPELINES.workload)
            assert bound_s <= found.step_time_s * (1 + 1e-9), (plan.format(), m)
            looked_at.add(one.schedule.token)
    assert looked_at == {*SCHEDULES} - {"1f1b", "interleaved"}


def test_a_narrowed_outline_keeps_every_plan_that_fits_below_its_bound() -> None:
    small = replace(PIPELINES, pins=tuple((dict(PIPELINES.pins) | {"recompute": ("none", "full")}).items()))
    _, sketched = schedule_spaces(Space(pins=small.pins, opened=("schedule",)), small.model)
    grid = build_grid(small.model, small.workload, small.cluster.devices, sketched)
    kept, gone, raised = 0, 0, 0
    for share in (0.02, 0.03, 1.0):
        run = SpaceSearch(small.model, small.cluster, small.workload, sketched, 3, pareto=False)
        run.limit_bytes *= share
        every = Outlines(run, grid)
        for one in every.of(np.arange(grid.rows)):
            left = every.narrowed(one)
            bound_of = {} if left is None else dict(zip(left.row.tolist(), left.bound_s.tolist(), strict=True))
            for row, before_s in zip(one.row.tolist(), one.bound_s.tolist(), strict=True):
                found = [
                    estimate
                    for recompute, layers in run.factory.recomputes(int(grid.pp[row]), one.v, one.schedule)
                    for sharding in ("z0", "z1", "z3")
                    for estimate in [priced(small, grid, row, one, recompute, layers, sharding)]
                    if estimate.fullest.peak_memory_bytes <= run.limit_bytes
                ]
                best_s = min((estimate.step_time_s for estimate in found), default=np.inf)
                assert bound_of.get(row, np.inf) <= best_s * (1 + 1e-9)
                kept += row in bound_of
                gone += row not in bound_of
                raised += bound_of.get(row, 0.0) > before_s * (1 + 1e-6)
        assert run.counts.pruned[SHAPE_TOO_LARGE] > 0 or share == 1.0
    assert min(kept, gone, raised) > 0


def test_paths_from_factors_are_those_of_priced_rows() -> None:
    """No longer, and nearly as long for a model whose devices wait for no host."""
    pins = (("tp", (1,)), ("cp", (1,)), ("mbs", (1, 2)), ("schedule", SCHEDULES))
    _, sketched = schedule_spaces(Space(pins=pins, opened=("schedule",)), spec("llama-3.1-8b"))
    workload = Workload(global_batch=16, seq_len=4096)
    run = SpaceSearch(spec("llama-3.1-8b"), resolve_gpus("8xH100"), workload, sketched, 3, pareto=False)
    grid = build_grid(run.model, workload, 8, sketched)
    every, split = Outlines(run, grid), 0
    for one in every.of(np.arange(grid.rows)):
        p, m, sections = every.group(one)
        shapes = ShapeTables.of([run.factory.sketched_shapes(one.schedule, p, m, one.v)])
        rows = PricedRows(
            grid.take(one.row), run.factory, run.model, run.hardware, workload, run.space, sections=sections
        )
        known_s = Block(rows, shapes).bounds_s()
        found_s = every.fitting(sections).paths_s(one.row, shapes)
        assert (found_s <= known_s * (1 + 1e-9)).all(), one.schedule.token
        assert (found_s >= known_s * 0.95).all(), one.schedule.token
        split += shapes.splits
    assert split


def priced(
    small: SmallSpace, grid: Grid, row: int, one: Outline, recompute: str, layers: int, sharding: str
) -> StepEstimate:
    """A plan of an outline, by itself."""
    name = sharding if int(grid.dp[row]) > 1 else "z0"
    plan = grid.plan_row(
        row,
        pp=int(grid.pp[row]),
        vpp=one.v,
        gbs=small.workload.global_batch,
        schedule=one.schedule.token,
        sharding=name,
        recompute_layers=layers,
        **recompute_fields(recompute),
    )
    execution = expand(plan, small.model, small.workload.seq_len)
    return estimate_plan(execution, small.model, small.cluster, small.workload)


def test_rows_stand_for_every_way_until_the_best_of_them_is_too_slow() -> None:
    run = SpaceSearch(
        EXPERTS.model, EXPERTS.cluster, EXPERTS.workload, pinned_to(Space(pins=EXPERTS.pins)), 3, pareto=False
    )
    run.space = pinned_to(run.space, tensor=("1d",))
    ways = ways_of(run.space, None)
    least = build_grid(EXPERTS.model, EXPERTS.workload, EXPERTS.cluster.devices, run.space, ways[:1])
    every = build_grid(EXPERTS.model, EXPERTS.workload, EXPERTS.cluster.devices, run.space)
    assert sorted(zip(*columns(least.in_ways(ways)), strict=True)) == sorted(zip(*columns(every), strict=True))
    together_s = run._bounds(least, ways).time_s
    apart_s = run._bounds(least.in_ways(ways)).time_s
    several = np.where(least.ep > 1, len(ways), 1)
    assert (np.repeat(together_s, several) <= apart_s * (1 + 1e-12)).all()
    assert int(run._plans_of_row(least, ways).sum()) == int(run._plans_of_row(every).sum())


def test_outlines_stand_for_as_many_plans_as_their_rows() -> None:
    _, sketched = schedule_spaces(Space(pins=ORDERS.pins, opened=("schedule",)), ORDERS.model)
    run = SpaceSearch(ORDERS.model, ORDERS.cluster, ORDERS.workload, sketched, 3, pareto=False)
    grid = build_grid(ORDERS.model, ORDERS.workload, ORDERS.cluster.devices, sketched)
    assert grid.first.any()
    found = sum(int(one.plans.sum()) for one in Outlines(run, grid).of(np.arange(grid.rows)))
    assert found == int(run._plans_of_row(grid).sum())


def columns(grid: object) -> list[list[int]]:
    return [getattr(grid, name).tolist() for name in ("tp", "overlap", "ep", "etp", "pp", "dp", "mbs", "way")]


def test_what_is_searched_first_keeps_to_what_is_allowed() -> None:
    space = Space(
        pins=(("dispatcher", ("allgather", "hierarchical")), ("schedule", SCHEDULES), ("tp", (2,))),
        opened=("dispatcher", "schedule"),
    )
    first = narrow_space(space)
    assert first.pinned("dispatcher") == ("allgather",)
    assert first.pinned("schedule") == ("1f1b", "interleaved")
    assert first.pinned("tp") == (2,)
    assert not first.opened


class Looks(Budget):
    """A budget that is spent after so many looks."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        super().__init__(float("inf"), float("inf"))
        self.left = left

    def look(self) -> str:
        self.left -= 1
        return TIME_LIMIT if self.left < 0 else ""


@pytest.mark.parametrize(("small", "opened"), [(PIPELINES, ("schedule",)), (EXPERTS, ("schedule", "tensor"))])
def test_wherever_a_search_stops_its_bound_is_below_the_best_plan(small: SmallSpace, opened: tuple[str, ...]) -> None:
    best_s = searched(small, opened).plans[0].estimate.step_time_s
    stopped = set()
    for looks in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377):
        token = budget._CURRENT.set(Looks(looks))
        try:
            found = searched(small, opened)
        finally:
            budget._CURRENT.reset(token)
        proven = found.certificate
        stopped.add(proven.stopped)
        assert found.plans[0].estimate.step_time_s >= best_s * (1 - 1e-9)
        assert proven.bound_step_time_s is not None
        assert proven.bound_step_time_s <= best_s * (1 + 1e-9)
        assert not (proven.stopped and proven.optimal)
        if not proven.stopped:
            assert found.plans[0].estimate.step_time_s == pytest.approx(best_s, rel=1e-9)
    assert TIME_LIMIT in stopped


def test_a_spent_budget_outlines_nothing_more() -> None:
    _, sketched = schedule_spaces(Space(pins=PIPELINES.pins, opened=("schedule",)), PIPELINES.model)
    run = SpaceSearch(PIPELINES.model, PIPELINES.cluster, PIPELINES.workload, sketched, 3, pareto=False)
    run.beat_s = 1e9
    token = budget._CURRENT.set(Looks(0))
    try:
        result = run.run(0.0)
    finally:
        budget._CURRENT.reset(token)
    assert run.bounds is not None
    assert not result.plans
    assert result.certificate.priced == 0
    assert result.certificate.stopped == TIME_LIMIT
    assert result.certificate.bound_step_time_s == run.bounds.time_s[run.bounds.peak_bytes <= run.limit_bytes].min()
