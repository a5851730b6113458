"""What parallelizers are asked: each slice by its content, on each kind of island, once.

Equal layers give equal slices wherever they stand, and equal groups equal islands whatever they are called. Of the
answers to a question those that another beats in devices, time, synchronisation and memory at once are dropped.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.planning.compose.sources.parallelizers.guard import Guarded
from meshwright.planning.compose.sources.parallelizers.pinned_axes import AXES, BLOCK
from meshwright.search.space import Space
from meshwright.shapes import Float
from meshwright.specs.cluster import ClusterSpec, Island, NodeGroup
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.seam import ModelSlice, PartialPlan
from meshwright.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialAnswer:
    """A partial plan and whose it is."""

    parallelizer: str
    plan: PartialPlan
    weight: float = 1.0
    """Factor on its seconds; see `Questions.weighed`."""

    @property
    def busy_s(self) -> float:
        """Forward and backward of a micro-batch."""
        return self.weight * (self.plan.forward_s + self.plan.backward_s)


@dataclass(slots=True, kw_only=True)
class Questions:
    """Asks parallelizers, and keeps what they said."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    parallelizers: Sequence[Guarded]
    space: Space = field(default_factory=Space)
    """Pinned axes: answers beyond them are not taken."""
    prune: bool = True
    """Drop dominated answers."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Factor on the seconds of each parallelizer; 1 by default."""
    counts: Counter[str] = field(default_factory=Counter)
    """Questions and answers, and what was known or dropped, by rule."""
    _layers: tuple[LayerSpec, ...] = ()
    _known: dict[object, list[PartialAnswer]] = field(default_factory=dict)
    _said: dict[object, dict[int, list[PartialPlan]]] = field(default_factory=dict)
    """Answers of each parallelizer to each question, by devices."""

    def weighed(self, weights: Mapping[str, float]) -> Questions:
        """The same questions to some of the parallelizers, whose seconds count by weights; what was said stays known.

        Claims of different planners rest on different models: those of one that is 20% too hopeful would always win.

        Args:
            weights: the weights of those that are asked.
        """
        return replace(
            self,
            parallelizers=[one for one in self.parallelizers if one.name in weights],
            weights=weights,
            _known={},
        )

    def answers(self, first: int, behind: int, group: int, devices: int, micro_batch: int) -> list[PartialAnswer]:
        """What is worth considering for some layers on some devices.

        Args:
            first: layer.
            behind: layer behind the last.
            group: the group of the cluster.
            devices: the number of devices of a stage.
            micro_batch: sequences over all data ranks.
        """
        key = (*self._key(first, behind, group, micro_batch), devices)
        if key in self._known:
            self.counts["questions: asked before of an equal slice or island"] += 1
            return self._known[key]
        found = self.everything(first, behind, group, devices, micro_batch)
        if self.prune:
            kept = undominated_answers(found)
            self.counts["partial plans: dominated in devices, time and memory"] += len(found) - len(kept)
            found = kept
        self._known[key] = found
        return found

    def everything(self, first: int, behind: int, group: int, devices: int, micro_batch: int) -> list[PartialAnswer]:
        """All that is answered and allowed, dominated or not; arguments as `answers`."""
        part, spec = self.slice_of(first, behind), self.cluster.groups[group]
        slice_key = self._key(first, behind, group, micro_batch)
        return [
            PartialAnswer(parallelizer=one.name, plan=plan, weight=self.weights.get(one.name, 1.0))
            for one in self.parallelizers
            for plan in self._ask(one, part, spec, devices, slice_key)
            if self._allowed(plan)
        ]

    def _key(self, first: int, behind: int, group: int, micro_batch: int) -> tuple[object, ...]:
        """What equal questions share but for their devices."""
        part = self.slice_of(first, behind)
        return (part.layers, part.embedding, part.head, island_kind(self.cluster.groups[group]), micro_batch)

    def _allowed(self, plan: PartialPlan) -> bool:
        """Whether all strategies of an answer have the pinned values."""
        good = all(
            own in values or (own in BLOCK and "block" in values)
            for strategy in plan.strategies
            for axis, values in self.space.pins
            if axis in AXES
            for own in AXES[axis](strategy, plan.micro_batch)
        )
        self.counts["partial plans: beyond what is pinned"] += not good
        return good

    def slice_of(self, first: int, behind: int) -> ModelSlice:
        """Consecutive layers by their content."""
        if not self._layers:
            self._layers = tuple(self.model.layers())
        runs = tuple((kind, len(list(same))) for kind, same in itertools.groupby(self._layers[first:behind]))
        return ModelSlice(model=self.model, layers=runs, embedding=first == 0, head=behind == self.model.num_layers)

    def _ask(
        self, one: Guarded, part: ModelSlice, group: NodeGroup, devices: int, slice_key: tuple[object, ...]
    ) -> list[PartialPlan]:
        """What a parallelizer says; of one that plans every size at once, what it said of the whole group."""
        given = group.devices if one.every_size else devices
        key = (one.name, slice_key, given)
        if key not in self._said:
            self.counts["questions"] += 1
            micro_batch = slice_key[-1]
            assert isinstance(micro_batch, int)
            plans = one.plan(part, Island(group=group, first_device=0, devices=given), self.workload, micro_batch)
            self.counts["partial plans"] += len(plans)
            self._said[key] = {}
            for plan in plans:
                self._said[key].setdefault(plan.devices if one.every_size else given, []).append(plan)
        elif one.every_size:
            self.counts["questions: answered for all sizes of island at once"] += 1
        return self._said[key].get(devices, [])


def island_kind(group: NodeGroup) -> object:
    """What equal islands share, whatever they are called."""
    return (group.device, group.devices_per_node, group.domains)


def undominated_answers(answers: Sequence[PartialAnswer]) -> list[PartialAnswer]:
    """Answers that no other beats in devices, time, synchronisation, state and activations, the quickest first.

    Args:
        answers: the answers to one question.
    """
    if not answers:
        return []
    table: Float[np.ndarray, "answers criteria"] = np.array(
        [
            (one.busy_s, one.plan.sync_s, one.plan.state_bytes, one.plan.activation_bytes, one.plan.devices)
            for one in answers
        ]
    )
    front: list[int] = []
    for row in np.lexsort(table.T[::-1]).tolist():
        if not front or not (table[front] <= table[row]).all(axis=1).any():
            front.append(row)
    return [answers[row] for row in front]
