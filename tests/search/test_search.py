"""The pruned search against brute force, and what its certificate says."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

import meshwright as mw
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layout import expand
from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.estimate.price import estimate_plan
from meshwright.library.models import spec
from meshwright.schedules import SCHEDULES, schedule_named
from meshwright.search.away import joined_answers
from meshwright.search.axes import way_of
from meshwright.search.bound import RowBounds
from meshwright.search.fitting import Fitting
from meshwright.search.geometry import ShapeFactory
from meshwright.search.legal_rows import build_grid
from meshwright.search.one_space import FRONT_SLACK
from meshwright.search.queue import FRONT_STEP
from meshwright.search.result import Certificate, SearchResult
from meshwright.search.search import price_all, search, unseen
from meshwright.search.space import Space
from meshwright.specs import PlanRow, Workload
from meshwright.specs.row_text import parse_row
from meshwright.strategies.columns import OVERLAPS
from tests.once import printed
from tests.search.brute import all_rows
from tests.search.engine_cases import EngineCases
from tests.search.spaces import SPACES, SmallSpace, cluster

Pins = tuple[tuple[str, tuple[object, ...]], ...]


@dataclass(frozen=True)
class Priced:
    """One plan of a space as brute force prices it."""

    row: PlanRow
    time_s: float
    peak_bytes: float
    fits: str


@cache
def everything(number: int, whole: bool) -> list[Priced]:
    """Plans of a small space, or of all that its pins leave out too."""
    small = SPACES[number]
    return [
        Priced(
            row=parse_row(
                entry["row"],
                devices=small.cluster.devices,
                global_batch=small.workload.global_batch,
                schedules=tuple(SCHEDULES),
            ),
            time_s=entry["time_s"],
            peak_bytes=entry["peak_bytes"],
            fits=entry["fits"],
        )
        for entry in json.loads(printed("tests.search.brute", str(number), *(["whole"] if whole else [])))
    ]


spaces = pytest.mark.parametrize("number", range(len(SPACES)), ids=[small.name for small in SPACES])


def run(small: SmallSpace, whole: bool = False, **options: object):
    options = {"space": Space(pins=() if whole else small.pins)} | options
    return search(small.model, small.cluster, small.workload, **options)


class PlanCases(EngineCases):
    """Answers are the best plans of layouts."""

    number: int
    whole = False

    def search(self, top: int) -> tuple[list[float], Certificate]:
        found = run(SPACES[self.number], self.whole, top=top, refine=False)
        return [plan.estimate.step_time_s for plan in found.plans], found.certificate

    def everything(self) -> tuple[list[float], int]:
        best: dict[tuple[int, ...], float] = {}
        plans = everything(self.number, self.whole)
        for plan in plans:
            if plan.fits == "yes":
                best[plan.row.layout] = min(best.get(plan.row.layout, np.inf), plan.time_s)
        return list(best.values()), len(plans)


class TestDense(PlanCases):
    number = 0


class TestShortOfMemory(PlanCases):
    number = 1


class TestExperts(PlanCases):
    number = 2


class TestHalvesAndPrefetching(PlanCases):
    number = 4

    def test_gathering_no_layer_ahead_is_found_where_its_memory_alone_fits(self) -> None:
        small, plans = SPACES[self.number], {plan.row: plan for plan in everything(self.number, False)}
        ahead = [plan for plan in plans.values() if plan.row.data_words == ("prefetch0",) and plan.row.pp == 1]
        lean = min(ahead, key=lambda plan: plan.time_s)
        twin = plans[replace(lean.row, data_words=())]
        assert twin.time_s < lean.time_s
        between = (lean.peak_bytes + twin.peak_bytes) / 2 / (1.0 - TIGHT_SHARE)
        held = {name: (getattr(lean.row, name),) for name in ("tp", "pp", "mbs", "sharding", "recompute")}
        pins = tuple((dict(small.pins) | held | {"cp": (lean.row.cp_degree,)}).items())
        limited = cluster("2x2xA100-80", between / 2**30)
        (found,) = search(small.model, limited, small.workload, Space(pins=pins), top=1, refine=False).plans
        assert found.row == lean.row

    def test_every_overlap_has_plans_that_fit(self) -> None:
        fitting = [plan for plan in everything(self.number, False) if plan.fits == "yes"]
        assert {plan.row.tp_overlap for plan in fitting} == {"bulk", "ring", "halves"}


@pytest.mark.slow
class TestAllDense(TestDense):
    whole = True


@pytest.mark.slow
class TestAllShortOfMemory(TestShortOfMemory):
    whole = True


@pytest.mark.slow
class TestAllExperts(TestExperts):
    whole = True


@spaces
def test_without_pins_the_space_is_all_that_is_legal(number: int) -> None:
    small = SPACES[number]
    rows = sum(1 for _ in all_rows(small.model, small.workload, small.cluster.devices))
    assert run(small, whole=True, top=1, refine=False).certificate.space == rows
    assert rows > 2 * len(everything(number, False))


@spaces
def test_no_plan_beats_the_front_in_time_and_memory(number: int) -> None:
    found = run(SPACES[number], top=1, pareto=True)
    limit_s = found.plans[0].estimate.step_time_s * FRONT_SLACK
    front = [(plan.estimate.step_time_s, plan.estimate.peak_memory_bytes) for plan in found.pareto]
    for plan in everything(number, False):
        if plan.fits == "yes" and plan.time_s <= limit_s:
            assert any(
                time_s <= plan.time_s * (1 + 1e-9) and peak * (1 - FRONT_STEP) <= plan.peak_bytes * (1 + 1e-9)
                for time_s, peak in front
            ), plan.row.format()
    memory = [peak for _, peak in front]
    assert memory == sorted(memory, reverse=True)


@spaces
def test_no_plan_is_quicker_or_smaller_than_the_bounds_of_its_row(number: int) -> None:
    small = SPACES[number]
    grid = build_grid(small.model, small.workload, small.cluster.devices, Space(pins=small.pins))
    hardware = hardware_of(small.cluster.groups[0], small.workload)
    bounds = RowBounds(grid, small.model, hardware, small.workload)
    names = ("tp", "overlap", "ep", "etp", "pp", "dp", "mbs")
    place = {(*(int(getattr(grid, name)[i]) for name in names), grid.levels(i)): i for i in range(grid.rows)}
    for plan in everything(number, False):
        row, overlap = plan.row, OVERLAPS.index(plan.row.tp_overlap)
        index = place[row.tp, overlap, row.ep, row.etp, row.pp, row.dp, row.mbs, row.cp]
        assert bounds.time_s[index] <= plan.time_s * (1 + 1e-9)
        assert bounds.peak_bytes[index] <= plan.peak_bytes * (1 + 1e-9)


@spaces
def test_a_row_of_no_shape_that_is_small_and_quick_enough_has_no_such_plan(number: int) -> None:
    small = SPACES[number]
    space = Space(pins=small.pins)
    grid = build_grid(small.model, small.workload, small.cluster.devices, space)
    hardware = hardware_of(small.cluster.groups[0], small.workload)
    factory = ShapeFactory.of(small.model, small.workload, space)
    factored = RowBounds(grid, small.model, hardware, small.workload).factored
    fitting = Fitting(factored, factory.items, small.model, np.inf)
    names = ("tp", "overlap", "ep", "etp", "pp", "dp", "mbs", "way")
    place = {(*(int(getattr(grid, name)[i]) for name in names), grid.levels(i)): i for i in range(grid.rows)}
    plans: dict[int, list[Priced]] = {}
    for plan in everything(number, False):
        row, way = plan.row, way_of(plan.row)
        key = row.tp, OVERLAPS.index(row.tp_overlap), row.ep, row.etp, row.pp, row.dp, row.mbs, way, row.cp
        if schedule_named(row.schedule).bound_by_formula:
            plans.setdefault(place[key], []).append(plan)
    told = 0
    for index, of_row in plans.items():
        shapes = factory.shapes(int(grid.pp[index]), int(grid.m[index]))
        rows = np.array([index])
        assert shapes is not None
        for plan in (min(of_row, key=lambda one: one.time_s), min(of_row, key=lambda one: one.peak_bytes)):
            fitting.limit_bytes = plan.peak_bytes
            fits, quick, least_bytes = fitting.rows(rows, shapes, plan.time_s, memory=True)
            assert fits.all(), plan.row.format()
            assert quick.all(), plan.row.format()
            assert least_bytes <= plan.peak_bytes
            told += not fitting.rows(rows, shapes, plan.time_s / 1000, memory=True)[1].any()
    assert told or not plans


@spaces
@pytest.mark.parametrize("letters", ["o", "og", "aog", "wog", "waog"])
def test_no_plan_with_something_away_is_quicker_or_smaller_than_what_its_row_is_told_to_need(
    number: int, letters: str
) -> None:
    small = SPACES[number]
    space = Space(pins=(*small.pins, ("offload", (letters,))))
    grid = build_grid(small.model, small.workload, small.cluster.devices, space)
    hardware = hardware_of(small.cluster.groups[0], small.workload)
    factory = ShapeFactory.of(small.model, small.workload, space)
    factored = RowBounds(grid, small.model, hardware, small.workload).factored
    fitting = Fitting(factored, factory.items, small.model, np.inf)
    names = ("tp", "overlap", "ep", "etp", "pp", "dp", "mbs", "way")
    place = {(*(int(getattr(grid, name)[i]) for name in names), grid.levels(i)): i for i in range(grid.rows)}
    sharded = [plan.row for plan in everything(number, False) if plan.row.sharding in ("z3", "fsdp")]
    sharded = [row for row in sharded if schedule_named(row.schedule).bound_by_formula and not row.data_words]
    told = 0
    for row in sharded[:: max(len(sharded) // 30, 1)]:
        way = way_of(row)
        key = row.tp, OVERLAPS.index(row.tp_overlap), row.ep, row.etp, row.pp, row.dp, row.mbs, way, row.cp
        shapes = factory.shapes(int(grid.pp[place[key]]), int(grid.m[place[key]]))
        plan = expand(replace(row, offload=letters), small.model, small.workload.seq_len)
        found = estimate_plan(plan, small.model, small.cluster, small.workload)
        assert shapes is not None
        fitting.limit_bytes = found.peak_memory_bytes
        rows = np.array([place[key]])
        fits, quick, least_bytes = fitting.rows(rows, shapes, found.step_time_s, found.step_time_s, memory=True)
        assert fits.all(), row.format()
        assert quick.all(), row.format()
        assert least_bytes <= found.peak_memory_bytes
        told += not fitting.rows(rows, shapes, found.step_time_s / 1000, memory=True)[1].any()
    assert told or not sharded


@spaces
def test_rows_that_are_looked_at_before_they_are_priced_give_the_same_answer(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced = run(SPACES[number], top=3, pareto=True)
    monkeypatch.setattr("meshwright.search.one_space.FEW", 0)
    looked_at = run(SPACES[number], top=3, pareto=True)
    assert [plan.plan for plan in looked_at.plans] == [plan.plan for plan in priced.plans]
    assert [plan.plan for plan in looked_at.pareto] == [plan.plan for plan in priced.pareto]
    assert looked_at.certificate.space == priced.certificate.space
    assert looked_at.certificate.priced <= priced.certificate.priced


@spaces
def test_no_plan_that_is_updated_on_the_host_is_quicker_than_the_bound_of_its_row(number: int) -> None:
    small = SPACES[number]
    hardware = hardware_of(small.cluster.groups[0], small.workload)
    here, away = (
        build_grid(small.model, small.workload, small.cluster.devices, Space(pins=(*small.pins, ("offload", (where,)))))
        for where in ("none", "og")
    )
    least_s, bound_s = (RowBounds(grid, small.model, hardware, small.workload).time_s for grid in (here, away))
    assert (bound_s > least_s).all()
    names = ("tp", "overlap", "ep", "etp", "pp", "dp", "mbs")
    place = {(*(int(getattr(away, name)[i]) for name in names), away.levels(i)): i for i in range(away.rows)}
    sharded = [plan.row for plan in everything(number, False) if plan.row.sharding in ("z2", "z3", "fsdp", "hsdp")]
    for row in sharded[:: max(len(sharded) // 40, 1)]:
        index = place[row.tp, OVERLAPS.index(row.tp_overlap), row.ep, row.etp, row.pp, row.dp, row.mbs, row.cp]
        plan = expand(replace(row, offload="og"), small.model, small.workload.seq_len)
        found = estimate_plan(plan, small.model, small.cluster, small.workload)
        assert bound_s[index] <= found.step_time_s * (1 + 1e-9), row.format()
        assert bound_s[index] - least_s[index] <= dict(found.breakdown_s)["offload"] * (1 + 1e-9), row.format()


def test_pinned_axes_are_held() -> None:
    found = run(SPACES[0], space=Space(pins=(("tp", (2,)), ("recompute", ("full",)))), top=3)
    assert found.plans
    assert {plan.row.tp for plan in found.plans if plan.row} == {2}
    assert {plan.row.recompute for plan in found.plans if plan.row} == {"full"}


def test_the_estimate_of_a_found_plan_uses_every_device() -> None:
    for plan in run(SPACES[1], top=5).plans:
        assert plan.plan.devices == SPACES[1].cluster.devices
        assert plan.plan.num_layers == SPACES[1].model.num_layers


def test_where_only_tight_plans_fit_they_are_found_and_said_to_be_tight() -> None:
    small = SPACES[0]
    smallest = min(plan.peak_bytes for plan in everything(0, False))
    roomy = search(small.model, cluster("4xH100", smallest / 2**30 * 1.02), small.workload)
    assert roomy.relaxed
    assert {plan.estimate.fits for plan in roomy.plans} == {"tight"}


@pytest.mark.parametrize("memory_share", [1.02, 1.3])
def test_several_offloads_at_once_find_what_each_finds_alone(memory_share: float) -> None:
    small = SPACES[0]
    smallest = min(plan.peak_bytes for plan in everything(0, False))
    limited = cluster("4xH100", smallest / 2**30 * memory_share / 0.92)
    values = ("none", "og", "aog", "wog")

    def found(*some: str) -> SearchResult:
        return search(small.model, limited, small.workload, Space(pins=(*small.pins, ("offload", some))), top=3)

    alone, together = joined_answers([found(value) for value in values], 3), found(*values)
    assert together.plans
    assert [plan.plan for plan in together.plans] == [plan.plan for plan in alone.plans]
    assert together.certificate.bound_step_time_s == alone.certificate.bound_step_time_s
    assert together.certificate.optimal
    assert together.certificate.priced <= alone.certificate.priced


@spaces
def test_a_plan_known_elsewhere_is_beaten_by_the_same_plans_or_none(number: int) -> None:
    (best,) = run(SPACES[number], top=1).plans
    known_s = best.estimate.step_time_s
    again = run(SPACES[number], top=1, beat_s=known_s)
    assert [plan.plan for plan in again.plans] == [best.plan]
    beaten = run(SPACES[number], top=1, beat_s=0.999 * known_s)
    assert not beaten.plans
    assert not beaten.certificate.optimal
    assert beaten.certificate.priced <= again.certificate.priced


def test_where_nothing_fits_nothing_is_found() -> None:
    found = search(SPACES[0].model, cluster("4xH100", 1.0), SPACES[0].workload)
    assert not found.plans
    assert found.certificate.bound_step_time_s is None
    assert not found.certificate.optimal


def test_the_front_is_repeatable() -> None:
    one, two = (run(SPACES[2], top=5, pareto=True) for _ in range(2))
    assert one.pareto == two.pareto


def test_a_batch_that_no_data_degree_divides_is_still_planned() -> None:
    """61 devices and a batch of 64: no degree but dp = 1 divides both."""
    model = spec("llama-3-8b")
    found = search(model, cluster("31x1xH100"), Workload(seq_len=4096, global_batch=64))
    assert all(plan.plan.devices == 31 for plan in found.plans)


def test_pricing_without_pruning_prices_the_whole_space() -> None:
    small = SPACES[0]
    count, _ = price_all(small.model, small.cluster, small.workload, Space(pins=small.pins))
    assert count == len(everything(0, False))


def test_what_a_worker_keeps_beside_another_backward_leaves_the_reserve_free() -> None:
    """Paired micro-batches hold more than the bound of their row says: 94% of the memory on the last worker here."""
    found = mw.plan("qwen3-30b-a3b", gpus="32xH800", global_batch=256, top=2)
    assert [entry.estimate.fits for entry in found] == ["yes", "yes"]


@pytest.mark.parametrize(("software", "pp"), [("pytorch-eager-no-sync", 1), ("torchtitan", 2)])
def test_plans_with_whole_gradients_are_priced_as_their_estimate(software: str, pp: int) -> None:
    job = {"gpus": "16xH100", "software": software, "global_batch": 64}
    pins = (f"pp={pp}", "tp=1", "sharding=fsdp", "mbs=1", "recompute=full")
    best = mw.plan("llama-3.1-8b", pin=pins, top=1, **job).plans[0]
    alone = mw.estimate("llama-3.1-8b", plan=best.row.format(), **job).plans[0]
    assert best.estimate.step_time_s == alone.estimate.step_time_s
    assert best.estimate.stages[0].memory_bytes == alone.estimate.stages[0].memory_bytes
    held = dict(alone.estimate.stages[0].memory_bytes)
    assert held["gradients"] > 5 * held["optimizer"] / 2


@pytest.mark.parametrize("near", [1.0, 1.02, 1.2])
@pytest.mark.parametrize("pins", [(), (("tensor", ("1d", "2d")),), (("offload", ("none", "optimizer")),)])
def test_plans_near_the_quickest_are_those_of_the_whole_answer(
    near: float, pins: tuple[tuple[str, tuple[str]]]
) -> None:
    model, workload = spec("llama-3.1-8b"), Workload(global_batch=64, seq_len=4096)
    whole, some = (
        search(model, cluster("8xH100"), workload, Space(pins=pins, near=one), top=8, refine=False)
        for one in (np.inf, near)
    )

    best_s = whole.plans[0].estimate.step_time_s
    wanted = [plan.row for plan in whole.plans if plan.estimate.step_time_s <= best_s * near]
    assert len(wanted) < len(whole.plans) or near > 1.1
    assert [plan.row for plan in some.plans] == wanted


def test_a_space_that_was_not_looked_at_says_why_and_how_much_quicker_a_plan_may_be() -> None:
    found = unseen("time limit", 2.5)
    assert (found.plans, found.pareto, found.relaxed) == ((), (), False)
    assert not found.certificate.optimal
    assert found.certificate.bound_step_time_s == 2.5
    assert found.certificate.stopped == "time limit"
