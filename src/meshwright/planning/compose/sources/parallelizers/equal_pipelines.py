"""Every pipeline of equal stages that parallelizers can express on one kind of device, whatever they claim of it.

Claims of a planner may be far off, and its answers to small models often differ by less than that: what one claim puts
behind another by a thousandth may be the quicker by a quarter. Where all devices are equal such pipelines are few, and
`estimate` ranks them all:

    stages P, sequences w  ->  each strategy that was answered for all P slices of a w-sequence micro-batch
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import accumulate, pairwise

from meshwright.estimate.layout import ModelLayout
from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.pipeline_sets import PipelineSet
from meshwright.planning.compose.sources.parallelizers.questions import PartialAnswer, Questions
from meshwright.planning.compose.sources.parallelizers.slice_pipeline import PlannedStage, SlicePipeline
from meshwright.planning.compose.sources.parallelizers.slice_pipelines import piped
from meshwright.search.table import divisors

MOST_ALIKE = 12
"""Pipelines priced among those that differ in their strategy alone: the ones that claim the least."""


def equal_pipelines(
    questions: Questions, part: IslandPart, global_micro_batches: Sequence[int], most_stages: int
) -> Iterator[PipelineSet[SlicePipeline]]:
    """One pipeline over all devices of each number of stages, micro-batch and strategy, layers divided by their weight.

    Args:
        questions: the questions to the parallelizers; what they said before is known.
        part: devices of one group.
        global_micro_batches: sequences of a micro-batch over all data ranks; only those that divide the batch count.
        most_stages: the most stages of a pipeline.
    """
    batch, layers = questions.workload.global_batch, questions.model.num_layers
    layout = ModelLayout.of(questions.model, questions.workload.seq_len)
    for count in divisors(part.devices):
        if count > min(most_stages, layers):
            break
        if (wanted := questions.space.pinned("pp")) is not None and count not in wanted:
            continue
        bounds = list(accumulate(layout.split(count), initial=0))
        for global_micro_batch in global_micro_batches:
            if batch % global_micro_batch == 0:
                found = _of_each_strategy(questions, part, bounds, global_micro_batch)
                alike = nsmallest(MOST_ALIKE, found, key=lambda one: one.step_s(batch // global_micro_batch))
                yield from (
                    PipelineSet(
                        pipelines=(one,),
                        shares=(batch // global_micro_batch,),
                        step_s=one.step_s(batch // global_micro_batch),
                    )
                    for one in alike
                )


def _of_each_strategy(
    questions: Questions, part: IslandPart, bounds: Sequence[int], global_micro_batch: int
) -> Iterator[SlicePipeline]:
    """A pipeline of each answer to the first slice that is answered of all others, too, and fits by what is claimed."""
    count = len(bounds) - 1
    size, batch = part.devices // count, questions.workload.global_batch
    room = questions.cluster.groups[part.group].device.memory_bytes * (1.0 - TIGHT_SHARE)
    answered: list[dict[object, PartialAnswer]] = []
    for place, (first, end) in enumerate(pairwise(bounds)):
        kept = min(count - place, batch // global_micro_batch)
        answers = questions.everything(first, end, part.group, size, global_micro_batch)
        fitting = (a for a in answers if a.plan.devices == size)
        answered.append(
            {
                (a.parallelizer, _alike(a)): a
                for a in sorted(fitting, key=lambda a: -a.busy_s)
                if a.plan.state_bytes + kept * a.plan.activation_bytes <= room
            }
        )
    for key in answered[0]:
        chosen = [own[key] for own in answered if key in own]
        if len(chosen) == count:
            stages = tuple(
                PlannedStage(
                    group=part.group,
                    first=first,
                    last=end - 1,
                    devices=size,
                    plan=answer.plan,
                    parallelizer=answer.parallelizer,
                )
                for (first, end), answer in zip(pairwise(bounds), chosen, strict=True)
            )
            yield piped(stages, global_micro_batch, questions)


def _alike(answer: PartialAnswer) -> object:
    """The strategies of a slice, without how many layers each has: slices have unequal numbers."""
    return tuple(answer.plan.strategies[run.strategy] for run in answer.plan.runs)
