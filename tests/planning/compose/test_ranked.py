"""Pipeline sets in the order of what they promise, against sorting all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.compose.pipeline_sets import Paced, PipelineSet, blended, with_whole_micro_batches
from meshwright.planning.compose.ranked import Ranked

BATCH = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Even:
    """A pipeline of one stage."""

    global_micro_batch: int
    period_s: float
    fill_s: float
    sync_s: float = 0.0
    least_micro_batches: int = 1

    most_micro_batches: int = 1_000_000

    def holds(self, micro_batches: int) -> bool:
        return micro_batches <= self.most_micro_batches

    @property
    def islands(self) -> frozenset[int]:
        return frozenset({0})

    @property
    def devices(self) -> int:
        return 1

    @property
    def stage_devices(self) -> tuple[int, ...]:
        return (1,)

    @property
    def stage_of_layer(self) -> np.ndarray:
        return np.zeros(1, dtype=np.int64)

    def step_s(self, micro_batches: float) -> float:
        return self.fill_s + (micro_batches - 1) * self.period_s


pipelines = st.builds(
    Even, global_micro_batch=st.sampled_from((1, 2, 3, 5)), period_s=st.floats(0.1, 4.0), fill_s=st.floats(0.1, 9.0)
)
sets = st.lists(st.lists(pipelines, min_size=1, max_size=3), max_size=30)


def ranked(drawn: list[list[Even]]) -> tuple[Ranked[Even], list[PipelineSet[Even]]]:
    """The sets in order, and all of them with their gradients."""
    found = [blended(cast("list[Paced]", own), BATCH, 0.0) for own in drawn]

    def synchronised(one: PipelineSet[Even]) -> PipelineSet[Even]:
        return replace(one, step_s=one.step_s + 0.5 * (len(one.pipelines) - 1))

    able = [one for one in cast("list[PipelineSet[Even]]", found) if one.step_s < float("inf")]
    return Ranked.of(able, synchronised, 1_000), [synchronised(one) for one in able]


@given(drawn=sets, most=st.integers(1, 40))
def test_the_first_are_the_quickest_with_their_gradients(drawn: list[list[Even]], most: int) -> None:
    lazily, every = ranked(drawn)
    assert [one.step_s for one in lazily.first(most)] == sorted(one.step_s for one in every)[:most]


@given(drawn=sets, most=st.integers(1, 10))
def test_whole_micro_batches_are_given_to_as_many_as_may_be_the_quickest(drawn: list[list[Even]], most: int) -> None:
    lazily, every = ranked(drawn)
    made = [one for one in (with_whole_micro_batches(one, BATCH) for one in every) if one is not None]
    assert np.allclose(
        [one.step_s for one in lazily.whole(most, BATCH)], sorted(one.step_s for one in made)[:most], rtol=1e-9
    )


def test_no_more_are_priced_than_are_asked_for() -> None:
    priced = []

    def synchronised(one: PipelineSet[Even]) -> PipelineSet[Even]:
        priced.append(one)
        return one

    found = [blended([Even(global_micro_batch=1, period_s=1.0 + n, fill_s=1.0)], BATCH, 0.0) for n in range(20)]
    assert Ranked.of(found, synchronised, 400).first(1)[0].step_s == min(one.step_s for one in found)
    assert len(priced) == 1
