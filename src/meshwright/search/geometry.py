"""Pipeline shapes as matrices: what each item weighs in the bounds of one (schedule, chunks, recompute).

Multiply item costs by these and a whole block of plans is bounded; the simulator decides among the few that are left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from meshwright.budget import spent
from meshwright.errors import UnsupportedError
from meshwright.estimate.layers.items import FULL, NONE, Item, items_of
from meshwright.estimate.layout import ModelLayout
from meshwright.estimate.pipeline import StageCounts, ends_apart, needs_bare
from meshwright.estimate.run import Live, live, sync_rounds, weight_versions
from meshwright.estimate.stages import recompute_problem
from meshwright.schedules import Placement, Schedule
from meshwright.schedules.bounds import PathBound
from meshwright.search.axes import recompute_words
from meshwright.search.paths import (
    BoundPaths,
    Lengths,
    Template,
    critical_lengths,
    longest_of,
    order_free_lengths,
    path_items,
)
from meshwright.search.shape_tables import Fullest, PipelineShapes, ShapeTables, fullest_workers
from meshwright.search.space import MOST_PASSES, Space, pipelines_of, schedules_in
from meshwright.shapes import Float
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import recompute_of
from meshwright.specs.strategy import Recompute
from meshwright.specs.workload import Workload

TYPICAL_MICRO_BATCHES = 64
"""Micro-batches for which the paths of a template are chosen."""
BUILT_BETWEEN_LOOKS = 8
"""Pipelines whose shapes are built before the time that is left is looked at again."""
AXES = ("vpp", "schedule", "recompute")
"""Axes of a space that say which shapes there are."""


def pairs(schedule: Schedule, p: int, m: int, v: int, recompute: str) -> bool:
    """Whether forwards run together with backwards of other micro-batches, and no layer is made again as a whole.

    Args:
        schedule: the schedule of the pipeline.
        p: workers.
        m: micro-batches.
        v: chunks per worker.
        recompute: a word of the axis.
    """
    return recompute not in ("full", "block") and schedule.unpaired(p, m, v) is not None


def check_searched(workload: Workload) -> None:
    """Refuse workloads that are priced of stated plans alone.

    Args:
        workload: one step.

    Raises:
        UnsupportedError: layers are updated as backward goes, which few plans of a search could do.
    """
    if workload.update.layerwise:
        why = "which plans have one micro-batch a step, and sum gradients layer by layer, is no axis of a search"
        fix = "state a plan, `estimate --plan dp1.mbs1.gbs1.rc-full`, or leave layerwise out"
        what = f"a search with {workload.optimizer}"
        raise UnsupportedError(what=what, why=why, fix=fix, field="optimizer", code="MW406")


@dataclass(frozen=True, slots=True, eq=False)
class ShapeFactory:
    """Builds the shapes of a model for p workers and m micro-batches."""

    model: ModelSpec
    layout: ModelLayout
    space: Space
    """The space of the axes of pipeline shapes alone."""
    words: tuple[str, ...]
    """Ways to recompute, as words of the axis."""
    items: tuple[Item, ...]
    schedules: tuple[Schedule, ...]
    """Schedules of the space, in the order of the catalogue, then those with settings."""
    templates: dict[tuple[object, ...], Template] = field(default_factory=dict)
    counted: dict[tuple[object, ...], StageCounts] = field(default_factory=dict)
    """Items per chunk, which no number of micro-batches changes."""
    paths: dict[PathBound, BoundPaths] = field(default_factory=dict)
    """Paths of each pipeline, which large numbers of micro-batches share."""
    fullest: dict[tuple[object, ...], Fullest] = field(default_factory=dict)
    """Workers that may need the most memory; from some number of micro-batches on they are the same."""
    moments: dict[Live, bytes] = field(default_factory=dict)
    """What is alive, by value: equal for many numbers of micro-batches."""
    weighed: dict[tuple[object, ...], tuple[Float[np.ndarray, "workers chunks"], ...]] = field(default_factory=dict)
    """FLOP and layers of each chunk, which no number of micro-batches changes."""
    recomputed: dict[tuple[object, ...], list[tuple[str, int]]] = field(default_factory=dict)
    """Ways to recompute, by pipeline."""
    sketched: dict[tuple[object, ...], PipelineShapes] = field(default_factory=dict)
    """All shapes of a pipeline that was sketched first, for the next space that asks for them."""
    built: dict[tuple[object, ...], PipelineShapes] = field(default_factory=dict)
    """All shapes of a pipeline whose schedule brings a bound of its own."""
    listed: dict[tuple[int, int], list[tuple[Schedule, int]]] = field(default_factory=dict)
    """Pipelines of so many workers and micro-batches that the space has."""
    made: dict[tuple[int, tuple[int, ...]], ShapeTables | None] = field(default_factory=dict)
    """All shapes of these; with `listed` the only ones that depend on the space."""

    @classmethod
    def of(cls, model: ModelSpec, workload: Workload, space: Space) -> ShapeFactory:
        """The factory for the recompute modes of the search; spaces equal in what shapes depend on share one."""
        check_searched(workload)
        words = tuple(map(str, space.pinned("recompute") or recompute_words(model, workload)))
        own = Space(pins=tuple(p for p in space.pins if p[0] in AXES))
        return _factory(model, workload.seq_len, words, own, schedules_in(own))

    def pipelines(self, p: int, m: int) -> list[tuple[Schedule, int]]:
        """Schedules and chunk counts that p workers and m micro-batches allow."""
        if (p, m) not in self.listed:
            self.listed[p, m] = pipelines_of(self.space, self.schedules, self.model.most_stages, p, m)
        return self.listed[p, m]

    def recomputes(self, p: int, v: int, schedule: Schedule | None = None) -> list[tuple[str, int]]:
        """None, selective, full, and the quarter steps of the largest chunk, as far as the schedule allows them."""
        key = p, v, schedule
        if key not in self.recomputed:
            self.recomputed[key] = self._recomputes(p, v, schedule)
        return self.recomputed[key]

    def _recomputes(self, p: int, v: int, schedule: Schedule | None) -> list[tuple[str, int]]:
        largest = max(self.layout.split(p * v))
        blocks = sorted({math.ceil(largest * quarter / 4) for quarter in (1, 2, 3)} - {0, largest})
        named = {"none": [("none", 0)], "block": [("block", k) for k in blocks], "full": [("full", 0)]}
        order = {"none": 0, "block": 2, "full": 3}
        words = sorted(self.words, key=lambda word: order.get(word, 1))
        options = [option for word in words for option in named.get(word, [(word, 0)])]
        if schedule is not None and p > 1:
            options = [o for o in options if recompute_problem(schedule, {recompute_of(o[0]).kind}) is None]
        return options

    def shapes(self, p: int, *micro_batches: int) -> ShapeTables | None:
        """All shapes of p workers whose schedules bring a bound of their own; None without any.

        Hundreds of layers may be cut into thousands of shapes: once the time is spent those made so far are all.

        Args:
            p: workers.
            micro_batches: numbers of them, each of which has shapes of its own.
        """
        if (p, micro_batches) in self.made:
            return self.made[p, micro_batches]
        found, whole = [], True
        every = ((schedule, m, v) for m in micro_batches for schedule, v in self.pipelines(p, m))
        for number, (schedule, m, v) in enumerate(every, start=1):
            if schedule.bound_by_formula and (recomputes := self.recomputes(p, v)):
                found.append(self._built(schedule, p, m, v, recomputes))
            if number % BUILT_BETWEEN_LOOKS == 0 and spent():
                whole = False
                break
        tables = ShapeTables.of(found) if found else None
        if whole:
            self.made[p, micro_batches] = tables
        return tables

    def _built(self, schedule: Schedule, p: int, m: int, v: int, recomputes: list[tuple[str, int]]) -> PipelineShapes:
        key = schedule, p, m, v
        if key not in self.built:
            self.built[key] = self.build(schedule, p, m, v, recomputes)
        return self.built[key]

    def others(self, p: int, m: int) -> list[tuple[Schedule, int]]:
        """Pipelines whose shapes are built only where a bound that holds for any order leaves a plan in question."""
        return [(schedule, v) for schedule, v in self.pipelines(p, m) if not schedule.bound_by_formula]

    def count(self, p: int, m: int) -> int:
        """How many shapes there are."""
        return sum(len(self.recomputes(p, v, schedule)) for schedule, v in self.pipelines(p, m))

    def count_paired(self, p: int, m: int) -> int:
        """How many of them run forwards together with backwards of other micro-batches."""
        return sum(
            pairs(schedule, p, m, v, recompute)
            for schedule, v in self.pipelines(p, m)
            for recompute, _ in self.recomputes(p, v, schedule)
        )

    def sketched_shapes(self, schedule: Schedule, p: int, m: int, v: int) -> PipelineShapes:
        """All shapes of one pipeline, built once.

        Args:
            schedule: the schedule of the pipeline.
            p: workers.
            m: micro-batches.
            v: chunks per worker.
        """
        key = schedule, p, m, v
        if key not in self.sketched:
            self.sketched[key] = self.build(schedule, p, m, v, self.recomputes(p, v, schedule))
        return self.sketched[key]

    def build(self, schedule: Schedule, p: int, m: int, v: int, recomputes: list[tuple[str, int]]) -> PipelineShapes:
        """The shapes of one pipeline under some ways to recompute.

        Args:
            schedule: the schedule of the pipeline.
            p: workers.
            m: micro-batches.
            v: chunks per worker.
            recomputes: the recomputes as `recomputes` lists them, at least one.
        """
        ways = tuple(recomputes)
        counts = self.counts(schedule, p, v, ways)
        if schedule.bound_by_formula:
            bound = schedule.path_bound(p, m, v)
            if bound not in self.paths:
                self.paths[bound] = BoundPaths.of(bound, *self._weights(schedule, p, v))
            *paths, travels = self.paths[bound].items(m, ways, counts)
        else:
            lengths = self._lengths(schedule, p, m, v)
            paths, travels = [*path_items(lengths, counts)], lengths[:, 2].sum(axis=(1, 2))
        per_update, updates = sync_rounds(schedule, m)
        return PipelineShapes(
            schedule=schedule,
            p=p,
            m=m,
            v=v,
            recomputes=recomputes,
            counts=counts,
            path_forward=paths[0],
            path_backward=paths[1],
            path_weight=paths[2],
            # Nothing travels inside a worker.
            path_transfer=travels * (p > 1),
            fullest=self.fullest_of(schedule, p, m, v, ways),
            pairing=[pairs(schedule, p, m, v, recompute) for recompute, _ in recomputes],
            per_update=per_update,
            updates=updates,
            apart=ends_apart(schedule.placement(p, v)),
        )

    def _lengths(self, schedule: Schedule, p: int, m: int, v: int) -> Lengths:
        """The longest paths of a schedule without a bound of its own."""
        weights = self._weights(schedule, p, v)
        lengths = order_free_lengths(schedule, p, m, v)
        if schedule.drains(p, m) and p * m * v * schedule.orders_tried <= MOST_PASSES:
            lengths = np.concatenate([lengths, critical_lengths(schedule, p, m, v, weights[0])])
        return lengths[longest_of(lengths, *weights)]

    def fullest_of(
        self, schedule: Schedule, p: int, m: int, v: int, recomputes: tuple[tuple[str, int], ...]
    ) -> Fullest:
        """Workers that may need the most memory, found once for all that keeps the same alive.

        Args:
            schedule: the schedule of the pipeline.
            p: workers.
            m: micro-batches.
            v: chunks per worker.
            recomputes: the recomputes as `recomputes` lists them.
        """
        now, versions = live(schedule, p, m, v), weight_versions(schedule, p, m, v)
        if now not in self.moments:
            self.moments[now] = b"".join(alive.tobytes() for alive in (*now.kept, *now.made, now.guests))
        key = (schedule, p, v, recomputes, self.moments[now], versions.tobytes())
        if key not in self.fullest:
            self.fullest[key] = fullest_workers(schedule, now, self.counts(schedule, p, v, recomputes), versions)
        return self.fullest[key]

    def template(self, schedule: Schedule, p: int, v: int, recompute: str, layers: int) -> Template:
        """What bounds a shape for any number of micro-batches; made once.

        Args:
            schedule: the schedule of the pipeline.
            p: workers.
            v: chunks per worker.
            recompute: a word of the axis.
            layers: K of block.
        """
        key = (schedule, p, v, recompute, layers)
        if key not in self.templates:
            none, one = (order_free_lengths(schedule, p, m, v) for m in (0, 1))
            picked = longest_of(none + TYPICAL_MICRO_BATCHES * (one - none), *self._weights(schedule, p, v))
            counts = self.counts(schedule, p, v, ((recompute, layers),)).of_shape(0)
            self.templates[key] = Template(
                once=path_items(none[picked], counts),
                each=path_items((one - none)[picked], counts),
                transfers=none[picked][:, 2].reshape(len(picked), -1).sum(axis=1),
            )
        return self.templates[key]

    def counts(self, schedule: Schedule, p: int, v: int, recomputes: tuple[tuple[str, int], ...]) -> StageCounts:
        """How often each item stands in each chunk, for each way to recompute.

        Args:
            schedule: places the chunks.
            p: workers.
            v: chunks per worker.
            recomputes: words of the axis, and K of block.
        """
        key = (schedule, p, v, recomputes)
        if key not in self.counted:
            self.counted[key] = self._stage_counts(schedule, schedule.placement(p, v), recomputes)
        return self.counted[key]

    def _stage_counts(
        self, schedule: Schedule, placement: Placement, recomputes: tuple[tuple[str, int], ...]
    ) -> StageCounts:
        work = self._counts(placement, recomputes)
        shadow = np.roll(work.sum(axis=2), -1, axis=1) if schedule.shadows else None
        bare = None
        if needs_bare(schedule):
            bare = np.repeat(self._shared(self._counts(placement, (("none", 0),))), len(recomputes), axis=0)
        return StageCounts(work=self._shared(work), bare=bare, shadow=shadow)

    def _counts(
        self, placement: Placement, recomputes: tuple[tuple[str, int], ...]
    ) -> Float[np.ndarray, "shapes workers chunks items"]:
        model, kinds = self.model, len(self.layout.kinds)
        modes = modes_of(self.words)
        whole_at = len(modes) - 1
        first, behind = self.layout.placed(placement)
        layers = self.layout.counts(first, behind)
        heads = behind == model.num_layers
        counts = np.zeros((len(recomputes), *first.shape, len(self.items)))
        for own, (recompute, most) in zip(counts, recomputes, strict=True):
            mode = modes.index(recompute_of(recompute))
            place = mode * kinds
            if recompute == "block":
                border = np.minimum(first + most, behind)
                own[..., :kinds] = self.layout.counts(border, behind)
                own[..., whole_at * kinds : (whole_at + 1) * kinds] = self.layout.counts(first, border)
            else:
                own[..., place : place + kinds] = layers
            if model.mtp_layers:
                whole = recompute == "block" and most >= (behind - first)[heads][0]
                module = Item("mtp", model.mtp_kind, FULL if whole else modes[mode])
                own[heads, self._place(module)] = model.mtp_layers
        counts[:, (first == 0) & (behind > 0), self._place(Item("embedding"))] = 1
        counts[:, heads, self._place(Item("head"))] = 1
        return counts

    def _shared(
        self, counts: Float[np.ndarray, "shapes workers chunks items"]
    ) -> Float[np.ndarray, "shapes workers chunks items"]:
        """A tied table is there once on a worker with both ends; a prediction module away from one needs its own."""
        model = self.model
        if not (model.tied_embeddings or model.mtp_layers):
            return counts
        # Whatever is recomputed, the ends stand where they stand.
        embedding, head = (np.asarray(counts[0, :, :, self._place(Item(part))] > 0) for part in ("embedding", "head"))
        both = np.asarray(embedding.any(axis=1) & head.any(axis=1))
        if model.tied_embeddings:
            counts[:, both, -1, self._place(Item("tie"))] = 1
        elif model.mtp_layers:
            counts[:, head & ~both[:, None], self._place(Item("copy"))] = 1
        return counts

    def _place(self, item: Item) -> int:
        return self.items.index(item)

    def _weights(self, schedule: Schedule, p: int, v: int) -> tuple[Float[np.ndarray, "workers chunks"], ...]:
        """What a chunk may weigh: FLOP per token, and layers where other things than products take their time."""
        key = schedule, p, v
        if key not in self.weighed:
            first, behind = self.layout.placed(schedule.placement(p, v))
            flop = self.layout.counts(first, behind) @ self.layout.kind_flop
            flop[behind == self.model.num_layers] += self.layout.tail_flop
            self.weighed[key] = flop, (behind - first).astype(float)
        return self.weighed[key]


@lru_cache(maxsize=8)
def _factory(
    model: ModelSpec, seq_len: int, words: tuple[str, ...], space: Space, schedules: tuple[Schedule, ...]
) -> ShapeFactory:
    # Spaces that recompute alike share the shapes of each pipeline, and all share its paths and what chunks weigh.
    return replace(_of_every_space(model, seq_len, words), space=space, schedules=schedules, listed={}, made={})


@lru_cache(maxsize=4)
def _of_every_space(model: ModelSpec, seq_len: int, words: tuple[str, ...]) -> ShapeFactory:
    layout, items = ModelLayout.of(model, seq_len), items_of(model, modes_of(words))
    return ShapeFactory(model, layout, Space(), words, items, (), weighed=_weighed(model, seq_len))


@lru_cache(maxsize=4)
def _weighed(model: ModelSpec, seq_len: int) -> dict[tuple[object, ...], tuple[Float[np.ndarray, "_ _"], ...]]:
    """What chunks weigh, however they recompute: filled by the factories of a model."""
    return {}


@lru_cache(maxsize=16)
def modes_of(words: tuple[str, ...]) -> tuple[Recompute, ...]:
    """What layers may recompute under these words: nothing, what each selective one names, everything."""
    return tuple(dict.fromkeys((NONE, *(recompute_of(word) for word in words if word not in ("full", "block")), FULL)))
