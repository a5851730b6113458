"""Shapes as columns: parts that numbers of micro-batches share are those that each would have alone."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.library.models import resolve
from meshwright.search.geometry import ShapeFactory
from meshwright.search.space import Space
from meshwright.specs.workload import Workload

STEP = Workload(seq_len=4096, global_batch=64)
NUMBERS = (3, 4, 8, 9, 16, 64)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "mixtral-8x7b"])
def test_shapes_are_the_same_whatever_was_built_before(name: str) -> None:
    model = resolve(name)
    used = ShapeFactory.of(model, STEP, Space())
    for m in NUMBERS:
        fresh = ShapeFactory(model, used.layout, used.space, used.words, used.items, used.schedules)
        after, alone = (factory.shapes(4, m) for factory in (used, fresh))
        if alone is None:
            assert after is None
            continue
        assert after is not None
        for column in ("path_forward", "path_backward", "path_transfer", "held", "alive", "first", "last_passes"):
            assert np.array_equal(getattr(after, column), getattr(alone, column)), (column, m)


def test_spaces_that_differ_in_nothing_that_shapes_depend_on_share_them() -> None:
    model = resolve("llama-3.2-1b")
    free, tight = Space(), Space(pins=(("offload", ("og",)),), tight=True)
    assert ShapeFactory.of(model, STEP, free) is ShapeFactory.of(model, STEP, tight)
    assert ShapeFactory.of(model, STEP, Space(pins=(("vpp", (2,)),))) is not ShapeFactory.of(model, STEP, free)


def test_a_shape_is_found_by_its_number() -> None:
    factory = ShapeFactory.of(resolve("llama-3.2-1b"), STEP, Space())
    shapes = factory.shapes(4, 16)
    assert shapes is not None
    every = [shapes.shape(number) for number in range(len(shapes))]
    assert [(s.schedule.name, s.v, (s.recompute, s.recompute_layers)) for s in every] == [
        (schedule.name, v, recompute)
        for schedule, v in factory.pipelines(4, 16)
        for recompute in factory.recomputes(4, v)
    ]
    for number, shape in enumerate(every):
        assert np.array_equal(shape.counts.work.sum(axis=1)[0], shapes.first[number])
        bare = every[int(shapes.bare[number])]
        assert (bare.schedule, bare.v, bare.recompute) == (shape.schedule, shape.v, "none")
