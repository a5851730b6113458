"""The plan space of the tuners is the plan space of the exact search."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace

import pytest

from meshwright.errors import InfeasibleError
from meshwright.estimate.layout import expand
from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.estimate.price import estimate_plan
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.search.search import search
from meshwright.search.space import Space
from meshwright.search.tuners.base import Rules
from meshwright.search.tuners.plan_space import PlanSpace
from meshwright.specs import Workload
from tests.search.spaces import SPACES, SmallSpace


def plan_space(small: SmallSpace, **pins: tuple) -> PlanSpace:
    return PlanSpace(
        model=small.model, cluster=small.cluster, workload=small.workload, space=Space(pins=tuple(pins.items()))
    )


@pytest.mark.parametrize("small", SPACES, ids=lambda small: small.name)
def test_axes_and_rules_leave_exactly_the_plans_that_the_search_counts(small: SmallSpace) -> None:
    space = plan_space(small)
    names = [space.row(point).format() for point in Rules.of(space).points()]
    assert len(names) == len(set(names)) == space.size
    found = search(small.model, small.cluster, small.workload, space.space, top=1, refine=False)
    assert space.size == found.certificate.space


@pytest.mark.parametrize("small", SPACES, ids=lambda small: small.name)
def test_conditions_name_values_that_their_parents_have(small: SmallSpace) -> None:
    space = plan_space(small)
    values = {axis.name: axis.values for axis in space.axes}
    for axis in space.axes:
        assert all(set(when.values) <= set(values[when.axis]) for when in axis.when), axis.name


@pytest.mark.parametrize(
    "pins",
    [
        {"tp": (2,), "recompute": ("block",)},
        {"schedule": ("interleaved",)},
        {"schedule": ("gpipe",), "sharding": ("hsdp", "z1")},
        {"pp": (1,), "cp": (1,), "vpp": (1,)},
    ],
    ids=str,
)
def test_pins_narrow_both_alike(pins: dict) -> None:
    small = SPACES[1]
    space = plan_space(small, **pins)
    names = {space.row(point).format() for point in Rules.of(space).points()}
    found = search(small.model, small.cluster, small.workload, space.space, top=1, refine=False)
    assert len(names) == space.size == found.certificate.space
    best = space.optimum()
    assert best is None or best.name in names


@pytest.mark.parametrize("small", SPACES, ids=lambda small: small.name)
def test_a_trial_is_priced_as_the_search_prices_it(small: SmallSpace) -> None:
    space = plan_space(small)
    best = space.optimum()
    assert best is not None
    point = next(point for point in Rules.of(space).points() if space.row(point).format() == best.name)
    outcome = space.evaluate(point)
    assert outcome.status == "ok"
    assert outcome.value == pytest.approx(best.value, rel=1e-9)


def test_a_study_tries_every_dispatcher_that_is_named_and_plans_without_expert_groups() -> None:
    small = next(one for one in SPACES if one.model.is_moe)
    space = plan_space(small, dispatcher=("move-experts", "alltoall"))
    rows = [space.row(point) for point in Rules.of(space).points()]
    assert len({row.format() for row in rows}) == len(rows) == space.size
    assert {(row.ep > 1, row.dispatcher) for row in rows} == {
        (False, "alltoall"),
        (True, "alltoall"),
        (True, "move-experts"),
    }
    drawn = random.Random(3)
    assert {space.row(space.sample(drawn)).dispatcher for _ in range(60)} == {"alltoall", "move-experts"}


def test_the_best_of_a_search_that_stopped_says_so() -> None:
    small = SPACES[0]
    space = plan_space(small)
    found = search(small.model, small.cluster, small.workload, space.space, top=1, refine=False)
    cut = replace(found, certificate=replace(found.certificate, stopped="time limit"))
    whole, part = space.optimum_of(found), space.optimum_of(cut)
    assert whole is not None
    assert part is not None
    assert (whole.stopped, part.stopped, part.value) == ("", "time limit", whole.value)


def test_no_trial_is_better_than_the_optimum_or_its_bound() -> None:
    for small in SPACES:
        space = plan_space(small)
        best, generator = space.optimum(), random.Random(3)
        assert best is not None
        rules = Rules.of(space)
        for _ in range(12):
            point = space.sample(generator)
            assert not rules.broken(point)
            outcome, bound = space.evaluate(point), space.bound(point)
            assert outcome.value is not None
            assert bound is not None
            assert bound <= outcome.value * (1 + 1e-9)
            if outcome.status == "ok":
                assert outcome.value >= best.value * (1 - 1e-9)
            else:
                assert outcome.status == "infeasible"
                assert outcome.reason.startswith("memory: stage ")
                assert outcome.excess > 0


@pytest.mark.parametrize("tight", [False, True])
def test_a_trial_is_ok_where_every_stage_leaves_the_reserve_free(tight: bool) -> None:
    statuses = set()
    for small in SPACES:
        space = plan_space(small)
        space = replace(space, space=replace(space.space, tight=tight))
        generator = random.Random(11)
        for _ in range(12):
            point = space.sample(generator)
            plan = expand(space.row(point), small.model, small.workload.seq_len)
            stages = estimate_plan(plan, small.model, small.cluster, small.workload).stages
            kept = 0.0 if tight else TIGHT_SHARE
            fits = all(stage.peak_memory_bytes <= stage.capacity_bytes * (1 - kept) for stage in stages)
            outcome = space.evaluate(point)
            assert outcome.status == ("ok" if fits else "infeasible")
            statuses.add(outcome.status)
    assert statuses == {"ok", "infeasible"}


def test_every_plan_is_drawn_equally_often() -> None:
    space = plan_space(SPACES[0], tp=(1,), cp=(1,), recompute=("none", "full"))
    seen: dict[str, int] = {}
    generator = random.Random(5)
    for _ in range(60 * space.size):
        name = space.row(space.sample(generator)).format()
        seen[name] = seen.get(name, 0) + 1
    assert len(seen) == space.size
    assert max(seen.values()) < 2.5 * min(seen.values())


def test_a_large_space_has_few_rules() -> None:
    workload = Workload(seq_len=4096, global_batch=1024)
    space = PlanSpace(model=spec("llama-3.1-70b"), cluster=resolve_gpus("64xH100"), workload=workload)
    assert space.size > 1_000_000
    assert len(space.forbidden) < 400


def test_a_space_travels_without_its_tables() -> None:
    space = plan_space(SPACES[0])
    before = len(pickle.dumps(space))
    assert space.size
    text = pickle.dumps(space)
    assert len(text) == before
    again = pickle.loads(text)
    assert again.size == space.size
    assert again.axes == space.axes


def test_an_empty_space_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="no plan of small"):
        _ = plan_space(SPACES[0], dp=(3,)).size
