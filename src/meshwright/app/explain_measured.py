"""Why a plan of measured layers is what it is: its layers and shares undone, its neighbours, what it rests on.

All by the rule that planned it, from the numbers that its file carries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.estimate.result import StepPrice
from meshwright.planning.compose.sources.profiles.improve import merged_set, similar
from meshwright.planning.compose.sources.profiles.job import costs_of, pipeline_shapes
from meshwright.planning.compose.sources.profiles.pipeline_set import EqualPipelines, PipelineShape, ShapeSet
from meshwright.planning.compose.sources.profiles.price import paced_pipelines, price_job, price_pipelines
from meshwright.planning.compose.sources.profiles.set_price import SetPricer
from meshwright.planning.compose.sources.profiles.shares import shares
from meshwright.planning.mixed.measured_doubts import effects_of_profile
from meshwright.planning.sensitivity import LEAST_EFFECT, Effect
from meshwright.report.words.explanation import Step, neighbour_step, rung
from meshwright.report.words.measured import folder_notes
from meshwright.report.words.prices import price_said, traffic_lines
from meshwright.specs.measured import MeasuredJob

MOST_NEIGHBOURS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    """What is around a plan of measured layers."""

    estimate: StepPrice
    """The plan's own step, priced."""
    ladder: tuple[Step, ...]
    neighbours: tuple[Step, ...]
    sensitivity: tuple[Effect, ...]
    notes: tuple[str, ...]


def measured_steps(job: MeasuredJob) -> MeasuredSteps:
    """Ladder, neighbours and sensitivity of a plan of measured layers.

    Args:
        job: the plan.

    Raises:
        InputError: a micro-batch of the plan was not measured.
    """
    around = _Around(job)
    estimate = around.chosen
    used = Counter[str]()
    for stage in estimate.stages:
        used[stage.group] += stage.devices
    notes = [*folder_notes(job)]
    if estimate.price_per_step is not None:
        notes.append(price_said(estimate.price_per_step, estimate.step_time_s, used, job.cluster))
    return MeasuredSteps(
        estimate=estimate,
        ladder=tuple(around.ladder()),
        neighbours=tuple(around.neighbours()),
        sensitivity=tuple(effects_of_profile(job, estimate.step_time_s)),
        notes=(*notes, *traffic_lines(estimate.traffic, job.cluster)),
    )


class _Around:
    """Pipeline sets near the one of a plan, each with its shares of the batch made anew."""

    def __init__(self, job: MeasuredJob) -> None:
        self.job, self.costs = job, costs_of(job)
        self.pricer = SetPricer(self.costs, job.global_batch)
        self.shapes = pipeline_shapes(job)
        self.one_set = merged_set(EqualPipelines(shape, 1) for shape, _ in self.shapes)
        self.chosen = price_job(job, self.costs)

    def price(self, one_set: ShapeSet) -> StepPrice | None:
        """Price of a set with the best shares; None where it cannot run."""
        time = self.pricer.price(one_set)
        if time is None:
            return None
        counts = shares(one_set, time, self.pricer)
        pipelines = [
            (part.shape, sizes) for part, each in zip(one_set.parts, counts, strict=True) for sizes in each if sizes
        ]
        return price_pipelines(paced_pipelines(pipelines, self.costs), self.costs, self.job.cluster)

    def ladder(self) -> Iterator[Step]:
        """Even layers and shares, then the plan's layers, then its shares."""
        several = len(self.shapes) > 1
        even = [(_evenly(shape), sizes) for shape, sizes in self.shapes]
        before = self._equal_shares(even)
        if even == self.shapes:
            before = None
        if before is not None:
            yield rung(f"start: layers{' and batch' if several else ''} shared evenly", before, None)
        equal = self._equal_shares(self.shapes) if several else None
        unequal = equal is not None and equal.step_time_s > self.chosen.step_time_s * (1 + LEAST_EFFECT)
        if equal is not None and unequal:
            yield rung("add its layers by stage" if before else "start: batch shared evenly", equal, before)
            before = equal
        if before is not None:
            yield rung("add its shares of the batch" if unequal else "add its layers by stage", self.chosen, before)

    def _equal_shares(self, shapes: Sequence[tuple[PipelineShape, tuple[int, ...]]]) -> StepPrice | None:
        """Price of equal shares, as far as whole micro-batches go; None where a point was not measured."""
        each = -(-self.job.global_batch // len(shapes))
        if any(self.pricer.pace(shape) is None for shape, _ in shapes):
            return None
        pipelines = [(shape, self.pricer.rests(shape).sizes(each)) for shape, _ in shapes]
        return price_pipelines(paced_pipelines(pipelines, self.costs), self.costs, self.job.cluster)

    def neighbours(self) -> list[Step]:
        """A layer moved, a micro-batch halved or doubled, a pipeline left out: those that fit first, by time."""
        found = []
        for said, one_set in self._changed():
            price = self.price(one_set)
            if price is not None:
                found.append((price.fits == "no", price.step_time_s, said, price))
        found.sort(key=lambda one: one[:2])
        return [neighbour_step(said, price, self.chosen) for _, _, said, price in found[:MOST_NEIGHBOURS]]

    def _changed(self) -> Iterator[tuple[str, ShapeSet]]:
        parts = self.one_set.parts
        for index, part in enumerate(parts):
            others = [*parts[:index], *parts[index + 1 :]]
            said = _pipelines(part)
            for shape in similar(part.shape):
                yield (
                    f"{said}: {_difference(part.shape, shape)}",
                    merged_set([*others, EqualPipelines(shape, part.pipelines)]),
                )
            if len(parts) > 1 or part.pipelines > 1:
                left = EqualPipelines(part.shape, part.pipelines - 1)
                yield f"{said}: one pipeline less", merged_set([*others, left])


def _pipelines(part: EqualPipelines) -> str:
    """`2 pipelines on new and old`."""
    groups = " and ".join(dict.fromkeys(stage.device for stage in part.shape.stages))
    return f"{part.pipelines} pipeline{'s' if part.pipelines > 1 else ''} on {groups}"


def _difference(one: PipelineShape, other: PipelineShape) -> str:
    if one.micro_batch != other.micro_batch:
        return f"micro-batch {one.micro_batch} -> {other.micro_batch}"
    before, after = ([stage.layers for stage in shape.stages] for shape in (one, other))
    giver = next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if b < a)
    taker = next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if b > a)
    return f"one layer from stage {giver} to stage {taker}"


def _evenly(shape: PipelineShape) -> PipelineShape:
    """The same stages with as many layers each, the first ones one more."""
    each, more = divmod(shape.cuts[-1], len(shape.stages))
    stages = tuple(stage._replace(layers=each + (i < more)) for i, stage in enumerate(shape.stages))
    return PipelineShape(shape.micro_batch, stages)
