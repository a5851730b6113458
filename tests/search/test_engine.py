"""The engine on the smallest space there is: whole numbers, in ranges, with a cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwright.search.engine import explore
from meshwright.search.incumbents import BestAndFront
from meshwright.search.points import Points, thinned
from meshwright.search.result import Certificate, SpaceCounts
from meshwright.search.table import Table
from tests.search.engine_cases import EngineCases

COSTS = np.random.default_rng(7).permutation(400) + np.arange(400) // 3 + 1.0
BEATEN = "range: bound beaten"


@dataclass
class Search:
    costs: np.ndarray
    incumbents: BestAndFront
    counts: SpaceCounts = field(default_factory=SpaceCounts)


@dataclass(frozen=True, kw_only=True)
class Ranges(Table):
    """Ranges of members, bounded by the least cost in each."""

    search: Search
    first: np.ndarray
    behind: np.ndarray

    @property
    def bound_s(self) -> np.ndarray:
        ranges = zip(self.first.tolist(), self.behind.tolist(), strict=True)
        return np.array([self.search.costs[first:behind].min() for first, behind in ranges])

    @property
    def tier1_bytes(self) -> np.ndarray:
        return np.zeros(self.rows)

    tier2_bytes = tier1_bytes
    sizes = (2, 2, 8)

    def beaten(self) -> tuple[str, np.ndarray]:
        return BEATEN, self.behind - self.first

    def refine(self) -> Iterator[Ranges]:
        single = self.behind - self.first == 1
        number, search = self.first[single], self.search
        zeros = np.zeros(len(number))
        search.counts.priced += len(number)
        search.incumbents.keep(Points(number=number, time_s=search.costs[number], tier1_bytes=zeros, tier2_bytes=zeros))
        wide = self.take(~single)
        middle = (wide.first + wide.behind) // 2
        for first, behind in ((wide.first, middle), (middle, wide.behind)):
            if len(first):
                yield Ranges(search=search, first=first, behind=behind)


def searched(costs: np.ndarray, top: int) -> tuple[list[float], Certificate]:
    search = Search(costs, BestAndFront(top, front=False))
    search.counts.space = len(costs)
    whole = Ranges(search=search, first=np.array([0]), behind=np.array([len(costs)]))
    explore(whole, search.incumbents, search.counts)
    return search.incumbents.best.time_s.tolist(), search.counts.certificate(optimal=True, started=time.perf_counter())


class TestRanges(EngineCases):
    def search(self, top: int) -> tuple[list[float], Certificate]:
        return searched(COSTS, top)

    def everything(self) -> tuple[list[float], int]:
        return COSTS.tolist(), len(COSTS)

    def test_most_members_are_never_priced(self) -> None:
        assert self.search(1)[1].priced < len(COSTS) / 4


@given(costs=st.lists(st.integers(1, 9), min_size=1, max_size=60), top=st.integers(1, 5))
def test_equal_members_and_small_spaces_lose_nothing(costs: list[int], top: int) -> None:
    values = np.array(costs, dtype=float)
    found, certificate = searched(values, top)
    assert found == sorted(values.tolist())[:top]
    assert certificate.priced + sum(count for _, count in certificate.pruned) == len(costs)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)), max_size=30))
def test_a_thinned_front_covers_all_and_beats_itself_nowhere(wishes: list[tuple[int, int, int]]) -> None:
    front = thinned(sorted(wishes), lambda one: one, 0.1)
    for one in wishes:
        assert any(all(mine >= theirs * 0.9 for mine, theirs in zip(one, other, strict=True)) for other in front)
    for place, one in enumerate(front):
        for before in front[:place]:
            assert any(mine < theirs * 0.9 for mine, theirs in zip(one, before, strict=True))
