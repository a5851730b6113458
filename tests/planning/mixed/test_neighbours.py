"""Layers and micro-batches moved one by one to where the step is quickest."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.estimate.price import estimate_of
from meshwright.estimate.pricer import PlanPricer
from meshwright.planning.compose.composer import Composer
from meshwright.planning.compose.pipeline_sets import PipelineSet
from meshwright.planning.compose.sources.native.execution import native_plan
from meshwright.planning.compose.sources.native.split import SplitPipeline
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.mixed.neighbours import GAIN, NORM, UNEVEN_CHUNKS, _neighbours, _unevenness, best_near, evened
from tests.planning.compose.test_composer import SMALL, asked

BATCH, LAYERS = 12, 8
Set = PipelineSet[SplitPipeline]


class Question:
    """Sets of pipelines over three and two devices."""

    def __init__(self) -> None:
        inputs = asked("3xH100,2xA100-80", BATCH, LAYERS)
        self.cluster = inputs.cluster
        self.pricer = PlanPricer(inputs.model, inputs.cluster, inputs.workload)
        composer = Composer(inputs.model, inputs.cluster, inputs.workload, SMALL)
        parts = NativeSource(inputs, lambda part: SMALL).whole
        self.sets = composer.orders(parts, 12)[0]

    def step_s(self, one: Set) -> float:
        return self.pricer.step_time_s(native_plan(one, self.cluster))

    def fits(self, one: Set) -> bool:
        return estimate_of(native_plan(one, self.cluster), self.pricer).fits == "yes"

    def near(self, one: Set) -> Set:
        return best_near(one, self.step_s(one), self.step_s, self.fits)


@pytest.fixture(scope="module")
def question() -> Question:
    return Question()


def test_every_set_trains_the_batch_no_slower(question: Question) -> None:
    assert len(question.sets) > 4
    for one in question.sets:
        near = question.near(one)
        assert question.step_s(near) <= question.step_s(one)
        assert sum(n * own.global_micro_batch for n, own in zip(near.shares, near.pipelines, strict=True)) == BATCH
        assert all(sum(own.layers) == LAYERS and min(own.layers) >= 1 for own in near.pipelines)
        # None of its own neighbours is quicker.
        assert question.step_s(question.near(near)) >= question.step_s(near) * (1 - GAIN)


def test_layers_moved_away_are_moved_back(question: Question) -> None:
    number, one = next(
        (place, one)
        for one in question.sets
        for place, own in enumerate(one.pipelines)
        if len(own.layers) > 1 and max(own.layers) > 2
    )
    own = one.pipelines[number]
    layers = list(own.layers)
    most = layers.index(max(layers))
    layers[most] -= 2
    layers[most - 1 if most else 1] += 2
    worse = replace(
        one,
        pipelines=(*one.pipelines[:number], replace(own, layers=tuple(layers)), *one.pipelines[number + 1 :]),
    )
    assert question.step_s(worse) > question.step_s(one) * 1.01
    assert question.step_s(question.near(worse)) <= question.step_s(one) * (1 + GAIN)


def test_towers_stay_with_the_layer_behind_them(question: Question) -> None:
    one = next(one for one in question.sets if any(len(own.layers) > 1 for own in one.pipelines))
    ahead = max(own.layers[0] for own in one.pipelines) - 1
    near = best_near(one, 1e9, question.step_s, lambda made: True, ahead=ahead)
    assert all(
        own.layers[0] >= min(before.layers[0], 1 + ahead)
        for own, before in zip(near.pipelines, one.pipelines, strict=True)
    )


def test_neighbours_are_all_moves_of_one_layer_between_stages_that_follow_each_other(question: Question) -> None:
    several = [one for one in question.sets if any(len(own.layers) > 2 for own in one.pipelines)]
    assert several
    for one in several:
        found = [
            tuple(own.layers for own in near.pipelines) for near in _neighbours(one, 0) if near.shares == one.shares
        ]
        expected = []
        for number, own in enumerate(one.pipelines):
            for giver, taker in itertools.permutations(range(len(own.layers)), 2):
                if abs(giver - taker) == 1 and own.layers[giver] > 1:
                    moved = list(own.layers)
                    moved[giver] -= 1
                    moved[taker] += 1
                    others = [other.layers for other in one.pipelines]
                    expected.append((*others[:number], tuple(moved), *others[number + 1 :]))
        assert sorted(found) == sorted(expected)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), chunks=st.integers(2, 4), count=st.integers(2, 5))
def test_unevenness_after_a_move_is_that_of_the_chunks_moved(data: st.DataObject, chunks: int, count: int) -> None:
    seconds = st.floats(0.1, 3.0)
    layer_s = np.array(data.draw(st.lists(seconds, min_size=count, max_size=count)))
    layers = np.array(data.draw(st.lists(st.integers(2, 9), min_size=chunks * count, max_size=chunks * count)))

    def uneven(layers: np.ndarray, scale: float) -> float:
        chunk_s = layers.reshape(chunks, count) * layer_s / scale
        norms = [np.linalg.norm(chunk_s.sum(axis=0), NORM), *(np.linalg.norm(own, NORM) for own in chunk_s)]
        return norms[0] + UNEVEN_CHUNKS * sum(norms[1:])

    chunk_s = layers.reshape(chunks, count) * layer_s
    scale = chunk_s.sum(axis=0).max()
    now, after = _unevenness(chunk_s, layer_s)
    assert now == pytest.approx(uneven(layers, scale))
    giver, taker = data.draw(st.permutations(range(len(layers))))[:2]
    moved = layers.copy()
    moved[giver] -= 1
    moved[taker] += 1
    assert after[giver, taker] == pytest.approx(uneven(moved, scale))


def test_chunks_of_an_interleaved_pipeline_differ_where_its_stages_are_evener_for_it(question: Question) -> None:
    one, own = next((one, own) for one in question.sets for own in one.pipelines if len(own.stages) == 2)
    once_s = [stage.options.once_s[stage.row] for stage in own.stages]
    mix = np.ones(1)

    def slowest_s(layers: tuple[int, ...]) -> float:
        first, last = (sum(layers[place::2]) * each[0] for place, each in enumerate(once_s))
        return float(max(first + once_s[0][1], last + once_s[1][2]))

    uneven = replace(own, chunks=2, layers=(1, 3, 1, 3) if once_s[0][0] < once_s[1][0] else (3, 1, 3, 1))
    path = list(evened(replace(one, pipelines=(uneven,), shares=(6,)), mix))
    assert path
    held = [made.pipelines[0].layers for made in path]
    assert all(sum(layers) == LAYERS and min(layers) >= 1 for layers in held)
    assert slowest_s(held[-1]) < slowest_s(uneven.layers)
    assert slowest_s(held[-1]) == pytest.approx(
        min(slowest_s(layers) for layers in itertools.product(range(1, 6), repeat=4) if sum(layers) == LAYERS)
    )
    plain = replace(one, pipelines=(own,), shares=(6,))
    assert not list(evened(plain, mix))
    kept = evened(replace(one, pipelines=(uneven,), shares=(6,)), mix, ahead=uneven.layers[0] - 1)
    assert all(made.pipelines[0].layers[0] >= uneven.layers[0] for made in kept)


@pytest.mark.parametrize("shares", [(1, 1), (1, 3), (4, 2), (6, 6)])
def test_neighbours_give_what_they_take_and_keep_what_a_pipeline_needs(
    question: Question, shares: tuple[int, int]
) -> None:
    for left, right in itertools.pairwise(question.sets):
        both = (left.pipelines[0], right.pipelines[0])
        start = replace(left, pipelines=both, shares=shares)
        found = [near.shares for near in _neighbours(start, 0) if near.shares != shares]
        expected = []
        for taker, giver in ((0, 1), (1, 0)):
            taken, given = (both[place].global_micro_batch for place in (taker, giver))
            after, moved = list(shares), math.lcm(taken, given)
            after[taker] += moved // taken
            after[giver] -= moved // given
            if after[giver] >= both[giver].least_micro_batches:
                expected.append(tuple(after))
        assert found == expected
