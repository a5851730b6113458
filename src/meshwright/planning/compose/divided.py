"""Islands divided between pipelines: which shares of them each pipeline takes, as columns with integer counts.

    a use       devices of each island that one pipeline takes; a share is all of the island or a round part of it
    its value   sequences that its best pipeline trains within a horizon T:  w (1 + (T - fill - sync) / period),
                with w its global micro-batch
    a division  uses, some of them several times, within the devices there are and worth the whole batch at T

T is a little more than the step of the best pipeline set of whole islands, so that only what is quicker is looked for.
A use is worth what the quickest of its stage sequences promises until it stands in one of the best divisions and its
layers are split exactly; this goes on until the best divisions hold none that are not, or enough are.
Restrictions made for speed: the shares of `shares`, at most four pipelines, so many uses and partial divisions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwright.ops.counts import trained_parameters
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.native.pipelines import NativePipelines, PlacedSequence, Use
from meshwright.planning.compose.sources.native.split import SplitPipeline
from meshwright.planning.compose.sources.native.stage_sequences import SequencePicks
from meshwright.shapes import Float, Int

MOST_USES = {1: 64, 2: 150, 3: 90}
"""Most uses of the islands looked at, by the number of islands; with more islands as many as with three."""
FEWEST_USES = 90
MOST_TUPLES = 1_000
"""Combinations of stage counts of one use."""
BISECTED = 6
"""Stage sequences of a use whose pace is searched, with chunks and without."""
MOST_PIPELINES = 4
BEAM = 160
"""Partial divisions that are kept, those that may be worth the most."""
AT_ONCE = 5
"""Uses whose layers are split before divisions are compared again."""
MOST_DIVISIONS = 12
"""Divisions that the answer may be chosen from."""
MOST_HIDDEN = 4
"""Most sets tried where gradients between pipelines hide as well as they can."""
AROUND = 1.02
"""Times the step of the best pipeline set of whole islands that a division may promise: closed forms are that near."""


@dataclass(slots=True)
class Divided:
    """Divisions of some parts of the cluster that promise a step within a horizon."""

    through: NativePipelines
    parts: Sequence[IslandPart]
    horizon_s: float
    _known: dict[Use, list[SplitPipeline]] = field(default_factory=dict)
    _sequences_of: dict[Use, list[PlacedSequence]] = field(default_factory=dict)

    def nearer(self, horizon_s: float) -> None:
        """Look within a shorter horizon from now on; what was split stays known."""
        self.horizon_s = horizon_s
        for use, own in self._known.items():
            self._known[use] = sorted(own, key=self.sequences, reverse=True)
        for use, placed in self._sequences_of.items():
            self._sequences_of[use] = sorted(placed, key=lambda one: -one.sequences(horizon_s))

    def divisions(self) -> list[list[list[SplitPipeline]]]:
        """The best divisions, each as the best pipelines of its uses, none of whole islands only."""
        uses = self._uses()
        self._pace([use for use in uses if use not in self._known and use not in self._sequences_of])
        values = np.array([self._value(use) for use in uses])
        useful = np.flatnonzero(values > 0)
        uses, values = [uses[i] for i in useful.tolist()], values[useful]
        found = 0
        while uses:
            best = self._best(uses, values)
            wanted = dict.fromkeys(use for chosen in best for use in chosen if uses[use] not in self._known)
            if not wanted or found >= self.through.effort.divided_uses:
                return [
                    [self._known[uses[use]] for use in chosen]
                    for chosen in best
                    if all(uses[use] in self._known for use in chosen)
                ]
            asked = list(wanted)[:AT_ONCE]
            found += len(asked)
            for use in asked:
                split = self.through.split_some(self._sequences_of[uses[use]])
                self._known[uses[use]] = sorted(split, key=self.sequences, reverse=True)
                values[use] = self._value(uses[use])
        return []

    def _uses(self) -> list[Use]:
        """Shares of the islands, those that are cut the least first, that could hold the model."""
        shares = [
            [0, part.devices, *(n for n in self.through.islands.shares(part.group, part.devices) if n < part.devices)]
            for part in self.parts
        ]
        ranks = itertools.product(*(range(len(own)) for own in shares))
        ordered = sorted(ranks, key=lambda rank: (sum(place - 1 for place in rank if place), rank))
        found: list[Use] = []
        most = MOST_USES.get(len(self.parts), FEWEST_USES)
        for rank in ordered[1:]:
            use = tuple(
                IslandPart(part.group, own[place])
                for part, own, place in zip(self.parts, shares, rank, strict=True)
                if place
            )
            if max(rank) < 2:
                self._known[use] = self.through.beside_others(use)
            found.append(use)
            if len(found) == most:
                break
        return found

    def _pace(self, uses: Sequence[Use]) -> None:
        """The stage sequences of all uses, those of the same groups together."""
        total = sum(self.through.islands.rate(part) for part in self.parts)
        through: dict[tuple[int, ...], list[tuple[Use, SequencePicks]]] = {}
        for use in uses:
            share = sum(self.through.islands.rate(part) for part in use) / max(total, 1e-300)
            picks = self.through.promising(use, share, bisected=BISECTED, most_tuples=MOST_TUPLES)
            if picks is not None:
                through.setdefault(tuple(part.group for part in use), []).append((use, picks))
        for alike in through.values():
            own = [use for use, _ in alike]
            found = self.through.paced_all(own, [picks for _, picks in alike])
            for use, stage_sequences in zip(own, found, strict=True):
                self._sequences_of[use] = sorted(stage_sequences, key=lambda one: -one.sequences(self.horizon_s))

    def _value(self, use: Use) -> float:
        """Sequences within the horizon, by its pipelines where they are known, else by its stage sequences."""
        if use in self._known:
            return max((self.sequences(one) for one in self._known[use]), default=0.0)
        stage_sequences = self._sequences_of.get(use, [])
        return max(stage_sequences[0].sequences(self.horizon_s), 0.0) if stage_sequences else 0.0

    def sequences(self, one: SplitPipeline) -> float:
        """Sequences that a pipeline trains within the horizon; none where it cannot start."""
        number = 1.0 + (self.horizon_s - one.fill_s - one.sync_s) / one.period_s
        return one.global_micro_batch * number if number >= one.least_micro_batches else 0.0

    def _best(self, uses: Sequence[Use], values: Float[np.ndarray, "uses"]) -> list[tuple[int, ...]]:
        """The divisions that may be worth the batch, the most valuable first."""
        groups = [part.group for part in self.parts]
        taken = np.zeros((len(uses), len(groups)), dtype=np.int64)
        for number, use in enumerate(uses):
            for part in use:
                taken[number, groups.index(part.group)] = part.devices
        there = np.array([part.devices for part in self.parts])
        each = np.array([self.through.islands.rate(IslandPart(group, 1)) for group in groups])
        per_device = each * self.horizon_s / self.through.islands.usual_layers
        whole = np.array([all(part in self.parts for part in use) for use in uses])
        batch = float(self.through.islands.workload.global_batch)
        chosen = np.zeros((1, 0), dtype=np.int64)
        left, worth = there[None, :], np.zeros(1)
        late = self.through.islands.late_s(groups, 1.0, math.inf)
        found: list[tuple[float, float, tuple[int, ...]]] = []
        for _ in range(MOST_PIPELINES):
            last = chosen[:, -1] if chosen.shape[1] else np.zeros(1, dtype=np.int64)
            able = (taken[None] <= left[:, None]).all(axis=2) & (np.arange(len(uses)) >= last[:, None])
            which, added = np.nonzero(able)
            chosen = np.column_stack([chosen[which], added])
            left, worth = left[which] - taken[added], worth[which] + values[added]
            loss = self._sync_s(taken[chosen].sum(axis=2)) * batch / self.horizon_s
            good = np.flatnonzero((worth - late * loss >= batch) & ~whole[chosen].all(axis=1))
            found += [(float(worth[i]), float(loss[i]), tuple(chosen[i].tolist())) for i in good.tolist()]
            kept = _largest(worth + left @ per_device, BEAM, batch)
            chosen, left, worth = chosen[kept], left[kept], worth[kept]
        # How much of the gradients hides is known once layers are split: the best with none, and with what may.
        unhidden = sorted((one for one in found if one[0] - one[1] >= batch), key=lambda one: one[1] - one[0])
        hidden = sorted(found, key=lambda one: late * one[1] - one[0])
        both = dict.fromkeys(division for *_, division in (*unhidden[:MOST_DIVISIONS], *hidden[:MOST_HIDDEN]))
        return list(both)

    def _sync_s(self, devices: Int[np.ndarray, "divisions pipelines"]) -> Float[np.ndarray, "divisions"]:
        """Gradients between the pipelines over the quickest link there is."""
        count = devices.shape[1]
        through, groups = self.through, [part.group for part in self.parts]
        islands = through.islands
        gradient_bytes = trained_parameters(islands.model) * islands.workload.precision.bytes_of("reduce")
        link = max(through.islands.link(a, b)[0] for a in groups for b in groups)
        return np.asarray(2 * (count - 1) / count * gradient_bytes / (link * devices.min(axis=1)))


def _largest(worth: Float[np.ndarray, "rows"], most: int, least: float) -> Int[np.ndarray, "kept"]:
    order = np.argsort(-worth, kind="stable")[:most]
    return order[worth[order] >= least]
