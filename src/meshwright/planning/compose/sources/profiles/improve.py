"""Small changes to a pipeline set, taken as long as they make the step shorter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from meshwright.planning.compose.sources.profiles.pipeline_set import EqualPipelines, PipelineShape, ShapeSet
from meshwright.planning.compose.sources.profiles.set_price import SetPricer

LEAST_GAIN = 3e-4
"""Share of the step that a change must save: below it, changes add part after part for nothing."""
CLOSE = 1.04
"""Times the best pipeline set so far: slower ones do not become the best by small changes."""
MOST_PRICED = 3000
"""Candidates priced for one pipeline set."""


def best_improved(pricer: SetPricer, sets: Iterable[ShapeSet], shapes: Sequence[PipelineShape]) -> ShapeSet:
    """The quickest of all that some pipeline sets become.

    Args:
        pricer: the pricer of the job.
        sets: the sets that can run, the quickest first.
        shapes: the shapes that may replace pipelines or use free devices.
    """
    best: ShapeSet | None = None
    best_s = math.inf
    seen: set[ShapeSet] = set()
    for one in sets:
        priced = pricer.price(one)
        if priced is None or (best is not None and priced.step_time_s > CLOSE * best_s):
            continue
        changed, step_s = improved_set(pricer, one, shapes, seen)
        if step_s < best_s or best is None:
            best, best_s = changed, step_s
    assert best is not None
    return best


def improved_set(
    pricer: SetPricer,
    one_set: ShapeSet,
    shapes: Sequence[PipelineShape],
    seen: set[ShapeSet] | None = None,
) -> tuple[ShapeSet, float]:
    """The pipeline set after all changes that help, and its time.

    Args:
        pricer: the pricer of the job.
        one_set: one that can run.
        shapes: the shapes that may replace pipelines or use free devices.
        seen: pipeline sets whose changes are known; this one's are added.
    """
    seen = set() if seen is None else seen
    priced = pricer.price(one_set)
    best_s = priced.step_time_s if priced else math.inf
    changed, priced_count = True, 0
    while changed and priced_count < MOST_PRICED and one_set not in seen:
        seen.add(one_set)
        changed = False
        for candidate in _neighbours(pricer, one_set, shapes):
            priced_count += 1
            enough_s = best_s * (1 - LEAST_GAIN)
            priced = pricer.price(candidate, enough_s)
            if priced is not None and priced.step_time_s < enough_s:
                one_set, best_s, changed = candidate, priced.step_time_s, True
                break
    return one_set, best_s


def merged_set(parts: Iterable[EqualPipelines]) -> ShapeSet:
    """A pipeline set of some parts; equal shapes are one part."""
    counts: dict[PipelineShape, int] = {}
    for part in parts:
        counts[part.shape] = counts.get(part.shape, 0) + part.pipelines
    return ShapeSet(tuple(EqualPipelines(shape, count) for shape, count in counts.items() if count > 0))


def _neighbours(pricer: SetPricer, one_set: ShapeSet, shapes: Sequence[PipelineShape]) -> Iterator[ShapeSet]:
    for index, part in enumerate(one_set.parts):
        others = [*one_set.parts[:index], *one_set.parts[index + 1 :]]
        for shape in similar(part.shape):
            if pricer.pace(shape) is not None:
                for count in sorted({part.pipelines, part.pipelines // 2, 1} - {0}):
                    yield merged_set(
                        [*others, EqualPipelines(shape, count), EqualPipelines(part.shape, part.pipelines - count)]
                    )
        for shape in shapes:
            for given_up in sorted({0, 1, 2, part.pipelines}):
                if given_up <= part.pipelines:
                    left = EqualPipelines(part.shape, part.pipelines - given_up)
                    added = _most(pricer, merged_set([*others, left]), shape)
                    if added > 0:
                        yield merged_set([*others, left, EqualPipelines(shape, added)])


def similar(shape: PipelineShape) -> Iterator[PipelineShape]:
    """One layer moved between two stages, or the micro-batch halved or doubled."""
    for giver, stage in enumerate(shape.stages):
        for taker in range(len(shape.stages)):
            if taker != giver and stage.layers > 1:
                layers = [one.layers + (i == taker) - (i == giver) for i, one in enumerate(shape.stages)]
                stages = tuple(one._replace(layers=n) for one, n in zip(shape.stages, layers, strict=True))
                yield PipelineShape(shape.micro_batch, stages)
    for micro_batch in (shape.micro_batch // 2, shape.micro_batch * 2):
        if micro_batch:
            yield PipelineShape(micro_batch, shape.stages)


def _most(pricer: SetPricer, one_set: ShapeSet, shape: PipelineShape) -> int:
    """Pipelines of a shape that the free devices hold."""
    pace = pricer.pace(shape)
    paces = [one for part in one_set.parts if (one := pricer.pace(part.shape)) is not None]
    if pace is None:
        return 0
    free = pricer.free(one_set.parts, paces)
    return min(left // used for left, used in zip(free, pace.used, strict=True) if used)
