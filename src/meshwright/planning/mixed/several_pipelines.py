"""Pipelines side by side on a small batch, whose gradients between them hide behind the one backward there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.estimate.pricer import PlanPricer
from meshwright.planning.compose.composer import SUBSET_COMPOSED, Composer
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.pipeline_sets import PipelineSet
from meshwright.planning.compose.sources.native.execution import native_plan
from meshwright.planning.compose.sources.native.split import SplitPipeline
from meshwright.planning.mixed.source import PricedPlan
from meshwright.specs.plan import ExecutionPlan

SIDE_BY_SIDE = 200
"""Pipeline sets among which those of several pipelines are looked for where the batch is small."""


@dataclass(frozen=True, slots=True)
class SeveralPipelines:
    """Sets of several pipelines that closed forms rank too low."""

    composer: Composer
    pricer: PlanPricer
    candidate: Callable[[ExecutionPlan], PricedPlan | None]
    """A plan priced in full; None where it does not fit."""

    def over(self, parts: Sequence[IslandPart]) -> Iterator[PricedPlan]:
        """Sets of several pipelines; on a small batch, a few of them in any case.

        The closed form adds the gradients between pipelines to the step; with a micro-batch or two most of them hide
        behind the one backward there is.
        """
        if not self.composer.islands.small_batch:
            return
        several = [made for made in self.composer.made(parts, SIDE_BY_SIDE) if len(made.pipelines) > 1]
        found: list[tuple[float, PipelineSet[SplitPipeline]]] = []
        for made in several[:SUBSET_COMPOSED]:
            candidate = self.candidate(native_plan(made, self.composer.cluster))
            if candidate is not None:
                found.append((candidate.step_time_s, made))
                yield candidate
        if found:
            better = self._of_other_strategies(*min(found, key=lambda one: one[0]))
            candidate = self.candidate(native_plan(better, self.composer.cluster))
            if candidate is not None:
                yield candidate

    def _of_other_strategies(self, step_s: float, one_set: PipelineSet[SplitPipeline]) -> PipelineSet[SplitPipeline]:
        """A set with the strategy of each pipeline of one stage changed, one after the other, where that is quicker.

        What strategies send between pipelines is in no closed form of one pipeline.
        """
        for number, pipeline in enumerate(one_set.pipelines):
            if len(pipeline.stages) != 1:
                continue
            for other in self.composer.through.of_other_strategies(pipeline):
                own = (*one_set.pipelines[:number], other, *one_set.pipelines[number + 1 :])
                changed = replace(one_set, pipelines=own)
                changed_s = self.pricer.step_time_s(native_plan(changed, self.composer.cluster))
                if changed_s < step_s:
                    step_s, one_set = changed_s, changed
        return one_set
