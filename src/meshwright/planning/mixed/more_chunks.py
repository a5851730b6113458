"""Interleaved pipelines by themselves, and of more chunks than are tried at first where bubbles take much of a step.

Closed forms of 1F1B and of its interleaved form err in different ways: of the usual numbers of chunks some sets have no
place among those of 1F1B that promise as much, and are quicker. More chunks would take the place of sequences that are
quicker. Both are composed by themselves, over the same priced islands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from meshwright.budget import spent
from meshwright.planning.compose.composer import COMPOSED, FARTHEST, Composer
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.native.pipelines import MORE_CHUNKS
from meshwright.planning.fewer_nodes import SMALL
from meshwright.planning.mixed.devices_used import devices_used
from meshwright.planning.mixed.source import PricedPlan
from meshwright.specs.plan import ExecutionPlan

FIRST = 6
"""Quickest plans that say whether more chunks are worth a look, and sets of such pipelines that are priced in full."""
MANY = 3
"""Chunks of a stage that one of these plans has then."""
BUBBLE = 0.035
"""Share of the quickest step that its bubbles take then; drawn plans of less gained nothing."""

NEAR = 1.03
"""Times the quickest step that plans on fewer devices take at most for more chunks to be looked at on those."""


@dataclass(slots=True, kw_only=True)
class MoreChunks:
    """Pipeline sets whose stages have more chunks than usual."""

    composer: Composer
    """Composer of the usual numbers of chunks."""
    first: Callable[[Composer, Sequence[IslandPart], int], list[PricedPlan]]
    """The first sets of a composer over some parts, so many of them priced in full."""
    _of_more: tuple[Composer, Composer] | None = field(default=None, init=False)
    """Composers of more chunks: beside pipelines of one chunk, and alone."""
    _alone: Composer | None = field(default=None, init=False)

    def alone(self, parts: Sequence[IslandPart], found: Sequence[PricedPlan]) -> list[PricedPlan]:
        """The sets of interleaved pipelines alone, where they promise about the step of the plans found before.

        Of a small batch closed forms tell less, and of few devices neighbours are worth more than what they promise
        between plans: as many are priced as of all sets.

        Args:
            parts: the parts of the cluster.
            found: plans over these parts, or some of them.
        """
        if not found or spent() or not {1} < {*self.composer.through.chunk_counts}:
            return []
        best_s = min(one.step_time_s for one in found)
        if self._alone is None:
            self._alone = self.composer.of_chunks_alone()
        promised = self._alone.made(parts, 1)
        if not promised or promised[0].step_s > FARTHEST * best_s:
            return []
        closely = self.composer.islands.small_batch or self.composer.cluster.devices <= SMALL
        return self.first(self._alone, parts, COMPOSED if closely else FIRST)

    def quicker(self, parts: Sequence[IslandPart], found: Sequence[PricedPlan]) -> list[PricedPlan]:
        """The sets that are quicker than the plans found before over the same devices.

        Those without some devices come near all of them by the usual chunks, and may be quicker by more.

        Args:
            parts: the parts of the cluster.
            found: plans over these parts, or some of them.
        """
        if not found:
            return []
        near_s = NEAR * min(one.step_time_s for one in found)
        fewer = [(used, one) for one in found if one.step_time_s <= near_s and (used := self._used(one)) != [*parts]]
        by_parts: dict[tuple[IslandPart, ...], list[PricedPlan]] = {tuple(parts): [*found]}
        used = min(fewer, key=lambda pair: pair[1].step_time_s)[0] if fewer else []
        if len(used) > 1:
            by_parts[tuple(used)] = [one for own, one in fewer if own == used]
        return [one for some, own in by_parts.items() for one in self._over(some, own)]

    def _used(self, one: PricedPlan) -> list[IslandPart]:
        """What a plan takes of the cluster."""
        cluster = self.composer.cluster
        used = devices_used(cluster, one.estimate)
        return [IslandPart(n, used[group.name]) for n, group in enumerate(cluster.groups) if used[group.name]]

    def _over(self, parts: Sequence[IslandPart], found: Sequence[PricedPlan]) -> list[PricedPlan]:
        first = sorted(found, key=lambda one: one.step_time_s)[:FIRST]
        if spent() or self.composer.islands.space.pinned("vpp") is not None:
            return []
        best_s = first[0].step_time_s
        bubble = dict(first[0].estimate.breakdown_s).get("bubble", 0.0)
        if bubble < BUBBLE * best_s or max(most_chunks(one.plan) for one in first) < MANY:
            return []
        if self._of_more is None:
            more = self.composer.of_chunks(MORE_CHUNKS)
            self._of_more = more, more.of_chunks_alone()
        promised = self._of_more[0].made(parts, 1)
        if not promised or promised[0].step_s > FARTHEST * best_s:
            return []
        made = (one for composer in self._of_more for one in self.first(composer, parts, FIRST))
        return [one for one in made if one.step_time_s < best_s]


def most_chunks(plan: ExecutionPlan) -> int:
    """Most chunks of any stage of a plan."""
    return max(len(worker.chunks) for pipeline in plan.pipelines for worker in pipeline.workers)
