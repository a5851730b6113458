"""Layers and micro-batches moved one by one to where the step is quickest."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from meshwright.estimate.price import estimate_of
from meshwright.estimate.pricer import PlanPricer
from meshwright.planning.compose.composer import Composer
from meshwright.planning.compose.pipeline_sets import PipelineSet
from meshwright.planning.compose.sources.native.execution import native_plan
from meshwright.planning.compose.sources.native.split import SplitPipeline
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.mixed.neighbours import GAIN, _neighbours, best_near
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
        assert sum(n * own.wave for n, own in zip(near.shares, near.pipelines, strict=True)) == BATCH
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
