"""What the search keeps and asks for, against definitions, over sources whose plans take stated times."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.library.clusters import resolve_gpus
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.mixed.joinable import joinable
from meshwright.planning.mixed.search import (
    CLOSE,
    HARDLY_QUICKER,
    _of_equal_ranks,
    _of_one_strategy,
    _searched_where_close,
    _sets_of_several,
    _started_first,
    _together,
)
from meshwright.planning.one_kind import CLEARLY_FASTER
from meshwright.specs.cluster import ClusterSpec

CLUSTER = resolve_gpus("2x8xH100,1x4xA100-80,1x11xL40S")
PARTS = [IslandPart(number, group.devices) for number, group in enumerate(CLUSTER.groups)]


def plan_of(step_time_s: float, name: str = "") -> Any:
    return SimpleNamespace(
        step_time_s=step_time_s, plan=name, job=SimpleNamespace(cluster=CLUSTER), estimate=SimpleNamespace(stages=())
    )


@dataclass
class Stated:
    """A source whose plans take what is stated, and that notes what it was asked."""

    times: dict[Any, float] = field(default_factory=dict)
    least: dict[Any, float] = field(default_factory=dict)
    cluster: ClusterSpec = CLUSTER
    asked: list[Any] = field(default_factory=list)

    def _found(self, key: Any) -> list[Any]:
        self.asked.append(key)
        return [plan_of(self.times[key], key)] if key in self.times else []

    def alone(self, part: IslandPart, *, exhaustive: bool) -> list[Any]:
        assert exhaustive
        return self._found(part.group)

    def together(self, parts: Sequence[IslandPart], *, thorough: bool) -> list[Any]:
        return self._found(tuple(parts))

    def of_one_strategy(self, parts: Sequence[IslandPart], launcher: Any) -> list[Any]:
        return self._found(tuple(parts))

    def of_equal_ranks(self, parts: Sequence[IslandPart], launcher: Any) -> Any:
        return next(iter(self._found(tuple(parts))), None)

    def least_of_equal_ranks_s(self, parts: Sequence[IslandPart]) -> float:
        return self.least.get(tuple(parts), 0.0)


@pytest.mark.parametrize("seed", range(60))
def test_kinds_near_the_best_are_searched_whole_and_kept_where_they_gain(seed: int) -> None:
    chance = Random(seed)
    drawn = [0.9, 0.97, 1.0, 1.04, 1.05, 1.06, 1.2, 2.0]
    alone: Any = {n: [plan_of(chance.choice(drawn))] if chance.random() < 0.8 else [] for n in range(len(PARTS))}
    mixed = [plan_of(chance.choice(drawn)) for _ in range(chance.randrange(3))]
    source: Any = Stated(times={n: chance.choice(drawn) for n in alone if chance.random() < 0.8})
    found = _searched_where_close(source, PARTS, alone, mixed)
    own = {n: plans[0].step_time_s for n, plans in alone.items() if plans}
    best_s = min((one.step_time_s for one in mixed), default=inf)
    near = {n for n, s in own.items() if s <= best_s * (1 + CLOSE) and s <= min(own.values()) * (1 + CLEARLY_FASTER)}
    assert set(source.asked) == (near if mixed else set(alone))
    better = {n: source.times[n] for n in source.asked if n in source.times and source.times[n] < own.get(n, inf)}
    assert {n: plans[0].step_time_s for n, plans in found.items()} == better


def test_sets_are_those_of_two_or_more_groups_whole_and_in_round_numbers() -> None:
    found = _sets_of_several(CLUSTER, PARTS)
    expected = set()
    for count in range(2, len(PARTS) + 1):
        for some in itertools.combinations(PARTS, count):
            expected.add(tuple(some))
            if len(even := tuple(IslandPart(p.group, p.devices // 8 * 8) for p in some if p.devices >= 8)) > 1:
                expected.add(even)
    assert joinable(CLUSTER, PARTS) == [tuple(PARTS)] or [list(one) for one in joinable(CLUSTER, PARTS)] == [PARTS]
    assert set(found) == expected
    assert len(found) == len(expected)
    sums = [sum(part.devices for part in one) for one in found]
    assert sums == sorted(sums, reverse=True)


@pytest.mark.parametrize("seed", range(40))
def test_the_best_of_equal_ranks_is_found_and_each_is_quicker_than_all_before(seed: int) -> None:
    chance = Random(seed)
    sets = _sets_of_several(CLUSTER, PARTS)
    whole = [some for some in sets if all(one in PARTS for one in some)]
    times = {some: chance.uniform(1.0, 2.0) for some in whole if chance.random() < 0.8}
    known = [plan_of(chance.uniform(1.0, 2.0)) for _ in range(chance.randrange(2))]
    # Each takes twice its bound, so that what is left out by it is never the quickest.
    source: Any = Stated(times=times, least={some: times.get(some, 9.0) / 2 for some in sets})
    found = _of_equal_ranks(source, PARTS, SimpleNamespace(), known)  # type: ignore[arg-type]
    took = [one.step_time_s for one in found]
    beaten_s = min((one.step_time_s for one in known), default=inf)
    assert took == sorted(took, reverse=True)
    assert len(set(took)) == len(took)
    quickest_s = min(times.values(), default=inf)
    assert (took[-1] if took else inf) == (quickest_s if quickest_s < beaten_s else inf)
    assert all(step_s < beaten_s for step_s in took)


def test_sets_whose_bound_is_no_better_are_not_asked_and_the_bound_is_met_as_nearly_as_before() -> None:
    first, second, third = [some for some in _sets_of_several(CLUSTER, PARTS) if all(one in PARTS for one in some)][:3]
    # The first takes twice its bound; the second's bound, twice, is worse, the third's is better.
    source: Any = Stated(times={first: 2.0, second: 0.1, third: 1.5}, least={first: 1.0, second: 1.1, third: 0.9})
    found = _of_equal_ranks(source, PARTS, SimpleNamespace(), ())  # type: ignore[arg-type]
    assert second not in source.asked
    assert [one.step_time_s for one in found][:2] == [2.0, 1.5]
    known = [plan_of(0.9)]
    source = Stated(times={third: 0.5}, least=dict.fromkeys(_sets_of_several(CLUSTER, PARTS), 0.9))
    _of_equal_ranks(source, PARTS, SimpleNamespace(), known)  # type: ignore[arg-type]
    assert third not in source.asked, "a bound that only ties beats nothing"


def test_plans_over_groups_are_sorted_by_their_time() -> None:
    sets = _sets_of_several(CLUSTER, PARTS)
    source: Any = Stated(times={some: 1.0 + (7 * n % 5) for n, some in enumerate(sets)})
    took = [one.step_time_s for one in _of_one_strategy(source, PARTS, SimpleNamespace())]  # type: ignore[arg-type]
    assert took == sorted(took)
    assert len(took) == len(sets) == len(set(source.asked))
    together: Any = Stated(times={tuple(PARTS): 3.0})
    assert [one.step_time_s for one in _together(together, PARTS, thorough=True)] == [3.0]


@pytest.mark.parametrize(
    ("times", "able", "first"),
    [
        ([1.0, 1.0 + HARDLY_QUICKER / 2, 1.5], [1, 2], 1),  # hardly quicker: the one that is started stands first
        ([1.0, 1.0 + 2 * HARDLY_QUICKER, 1.5], [1, 2], 0),
        ([1.0, 1.0 + HARDLY_QUICKER / 2, 1.5], [0, 1], 0),
        ([1.0, 1.1, 1.0 + HARDLY_QUICKER / 4], [2], 2),
        ([1.0, 1.01, 1.01], [], 0),
    ],
)
def test_a_plan_that_is_started_stands_before_one_that_is_hardly_quicker(
    times: list[float], able: list[int], first: int
) -> None:
    plans = [plan_of(step_s, f"plan {number}") for number, step_s in enumerate(times)]
    launcher: Any = SimpleNamespace(refuses=lambda job: ())
    found = _started_first(plans, [plans[number] for number in able], launcher)
    assert found[0] is plans[first]
    assert found[1:] == [one for one in plans if one is not plans[first]]
    assert math.isclose(sum(one.step_time_s for one in found), sum(times))
