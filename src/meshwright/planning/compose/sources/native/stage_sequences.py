"""Pipelines through islands: how many stages on each, under which strategies, so that the slowest stage is as quick as
it can be.

    a stage sequence   islands in an order, s_g equal stages of d_g devices on each, which may be less than the island
                       has, one strategy per island, a global micro-batch, v chunks per stage
    its pace           the least tau for which the layers that all stages can hold within tau and their memory suffice
    its step           (m + (S - 1) / v) tau

All stage sequences through the same islands are bisected together.
Restrictions made for speed: a pipeline enters an island once (the quickest are also tried with one at both ends, in
`pipelines`), and all its stages there are equal but for their layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from meshwright.planning.compose.sources.native.stage_fronts import StageFront
from meshwright.planning.compose.sources.native.stage_runs import StageRun
from meshwright.shapes import Bool, Float, Int

HALVINGS = 4
"""Halvings of the interval of every stage sequence's pace: to 2% of it."""
MORE_HALVINGS = 7
"""Further halvings for the best sequences: to 2e-4 of it."""
USUAL = 1.3
"""Times its bound that the pace of most stage sequences stays below."""
FARTHEST = 64.0
MOST_TUPLES = 20_000
"""Combinations of stage counts that are bounded at once; with more islands, counts are thinned to powers of two."""
MOST_CHUNKS = 4
"""Most chunks of a stage."""
MOST_STAGES = 64
"""Most stages of a pipeline on one island."""
SLOTS = (4, 10, 24)
"""Stages on one island up to which stage sequences share a table."""
AT_ONCE = (0.75, 1.34)
"""Micro-batches, in fractions, of a pipeline that may do its share of the batch in one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageSequences:
    """One row per stage sequence through the same islands in the same order."""

    block: Int[np.ndarray, "stage_sequences"]
    """Which of the uses of the islands it is."""
    stages: Int[np.ndarray, "stage_sequences islands"]
    devices: Int[np.ndarray, "stage_sequences islands"]
    """Devices of a stage."""
    global_micro_batch: Int[np.ndarray, "stage_sequences"]
    pace_s: Float[np.ndarray, "stage_sequences"]
    """Seconds of the slowest stage, per micro-batch."""
    row: Int[np.ndarray, "stage_sequences islands"]
    """Row of each island's options."""
    chunks: Int[np.ndarray, "stage_sequences"]
    """Chunks per stage: 1 for 1F1B, more for interleaved 1F1B."""
    step_s: Float[np.ndarray, "stage_sequences"]

    def __len__(self) -> int:
        return len(self.global_micro_batch)

    def take(self, index: Int[np.ndarray, "taken"]) -> StageSequences:
        """Some of them."""
        return StageSequences(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequencePicks:
    """Stage sequences whose pace is worth searching, by number; their bound knows no order of islands."""

    block: Int[np.ndarray, "picks"]
    """Which of the uses of the islands it is."""
    size: Int[np.ndarray, "picks islands"]
    """Which size of a stage it has on each island."""
    stages: Int[np.ndarray, "picks islands"]
    global_micro_batch: Int[np.ndarray, "picks"]
    chunks: Int[np.ndarray, "picks"]
    micro_batches: Float[np.ndarray, "picks"]
    """Micro-batches of a step, for which sequences are compared."""
    least_s: Float[np.ndarray, "picks"]
    """Bound of the pace: all stages full, no memory limit."""
    bounded: int
    """Stage sequences that were bounded, before the least bounds were taken."""
    at_once: bool = False
    """Whether the quickest of 1F1B at each global micro-batch that is about the whole share is kept."""

    def __len__(self) -> int:
        return len(self.global_micro_batch)

    def take(self, index: Int[np.ndarray, "taken"], order: Sequence[int] | None = None) -> SequencePicks:
        """Some of them, through the islands in this order."""
        along = slice(None) if order is None else list(order)
        return SequencePicks(
            block=self.block[index],
            size=self.size[index][:, along],
            stages=self.stages[index][:, along],
            global_micro_batch=self.global_micro_batch[index],
            chunks=self.chunks[index],
            micro_batches=self.micro_batches[index],
            least_s=self.least_s[index],
            bounded=self.bounded,
            at_once=self.at_once,
        )


def joined_picks(picks: Sequence[SequencePicks]) -> SequencePicks:
    """Picks of several uses of the same islands, numbered in this order."""
    names = ("size", "stages", "global_micro_batch", "chunks", "micro_batches", "least_s")
    return SequencePicks(
        block=np.repeat(np.arange(len(picks)), [len(one) for one in picks]),
        bounded=sum(one.bounded for one in picks),
        at_once=any(one.at_once for one in picks),
        **{name: np.concatenate([getattr(one, name) for one in picks]) for name in names},
    )


def promising(
    fronts: Sequence[StageFront],
    devices: Sequence[int],
    *,
    layers: float,
    micro_batches: Float[np.ndarray, "global_micro_batches"],
    stage_counts: Sequence[int] | None = None,
    chunk_counts: Sequence[int] = (1,),
    bisected: int,
    at_once: bool = False,
    most_tuples: int = MOST_TUPLES,
) -> SequencePicks | None:
    """The stage sequences with the least bounds, whatever the order of the islands.

    Args:
        fronts: the fronts of the islands.
        devices: the devices that the pipeline takes of each.
        layers: the layers of the model.
        micro_batches: the micro-batches of a step at each global micro-batch.
        stage_counts: allowed numbers of stages in all, any by default.
        chunk_counts: allowed numbers of chunks of a stage.
        bisected: how many at most, of 1F1B and of its interleaved form.
        at_once: whether each global micro-batch that is about the whole share has one of 1F1B beside those.
        most_tuples: combinations of stage counts that are bounded.

    Returns:
        The stage sequences; None where none can hold the model.
    """
    size, stages = _stage_counts(fronts, devices, layers, stage_counts, most_tuples)
    if not len(size):
        return None
    with np.errstate(divide="ignore"):
        each = [1.0 / front.quickest_s[size[:, g]] for g, front in enumerate(fronts)]
    rate = sum(
        stages[:, g, None] * own for g, own in enumerate(each)
    )  # layers per second, stage sequences x global micro-batches
    most = sum(stages[:, g, None] * front.most_layers[size[:, g]] for g, front in enumerate(fronts))
    usable = np.all([own > 0 for own in each], axis=0) & (most >= layers)
    total = stages.sum(axis=1)
    v = np.array(chunk_counts, dtype=np.int64)
    with np.errstate(divide="ignore"):
        pace_s = np.where(usable, layers / rate, np.inf)
    picked, bounded = least_bounds(pace_s, micro_batches, total, v, layers=layers, most=bisected, at_once=at_once)
    if not picked.shape[1]:
        return None
    which, global_micro_batch, chunk = picked
    return SequencePicks(
        block=np.zeros(len(which), dtype=np.int64),
        size=size[which],
        stages=stages[which],
        global_micro_batch=global_micro_batch,
        chunks=v[chunk],
        micro_batches=micro_batches[global_micro_batch],
        least_s=pace_s[which, global_micro_batch],
        bounded=bounded,
        at_once=at_once,
    )


def least_bounds(
    pace_s: Float[np.ndarray, "tuples global_micro_batches"],
    micro_batches: Float[np.ndarray, "global_micro_batches"],
    stages: Int[np.ndarray, "tuples"],
    chunks: Int[np.ndarray, "chunks"],
    *,
    layers: float,
    most: int,
    at_once: bool = False,
) -> tuple[Int[np.ndarray, "axes picked"], int]:
    """Where the steps with the least lower bounds stand, and how many can be.

        bound = pace x (micro-batches + (stages - 1) / chunks)

    Args:
        pace_s: the pace seconds of the slowest stage, per micro-batch.
        micro_batches: the micro-batches of a step at each global micro-batch.
        stages: the stages of the whole pipeline.
        chunks: the chunks of a stage, each number that is tried.
        layers: the layers of the model.
        most: the most bounds of 1F1B, and as many of its interleaved form.
        at_once: whether the least of 1F1B at each global micro-batch that is about all is among them.
    """
    fill = (stages[:, None] - 1) / chunks
    bound_s = pace_s[:, :, None] * (micro_batches[:, None] + fill[:, None, :])
    # Chunks shorten what fills a pipeline of several stages whose micro-batches come in groups.
    grouped = (stages[:, None] > 1) & (micro_batches >= stages[:, None])
    enough_layers = stages[:, None] * chunks <= layers
    bound_s = np.where((chunks == 1) | (grouped[:, :, None] & enough_layers[:, None, :]), bound_s, np.inf)
    plain_s, chunked_s = (np.where(plain, bound_s, np.inf) for plain in (chunks == 1, chunks > 1))
    each = [_least(plain_s, most), _least(chunked_s, most)]
    if at_once and 1 in chunks:
        first = chunks.tolist().index(1)
        whole = np.setdiff1d(np.flatnonzero(_at_once(micro_batches)), each[0][1])
        rows = plain_s[:, whole, first].argmin(axis=0)
        able = np.isfinite(plain_s[rows, whole, first])
        each.insert(1, np.stack([rows[able], whole[able], np.full(int(able.sum()), first)]).astype(np.int64))
    return np.concatenate(each, axis=1), int(np.isfinite(bound_s).sum())


def _at_once(micro_batches: Float[np.ndarray, "any"]) -> Bool[np.ndarray, "any"]:
    """Where a step has about one micro-batch."""
    return (micro_batches > AT_ONCE[0]) & (micro_batches < AT_ONCE[1])


def _least(
    values: Float[np.ndarray, "tuples global_micro_batches chunks"], most: int
) -> Int[np.ndarray, "axes picked"]:
    """Where the smallest finite values stand, the least first."""
    flat = values.ravel()
    known = np.flatnonzero(np.isfinite(flat))
    if len(known) > 4 * most:
        known = known[np.argpartition(flat[known], most)[:most]]
    order = known[np.argsort(flat[known], kind="stable")[:most]]
    return np.stack(np.unravel_index(order, values.shape)).astype(np.int64)


def _stage_counts(
    fronts: Sequence[StageFront],
    devices: Sequence[int],
    layers: float,
    allowed: Sequence[int] | None,
    most: int,
) -> tuple[Int[np.ndarray, "tuples islands"], Int[np.ndarray, "tuples islands"]]:
    """Every combination of sizes of stage, and numbers of stages, that has layers for all its stages."""
    choices = [front.sizes_of(count, MOST_STAGES) for front, count in zip(fronts, devices, strict=True)]
    if np.prod([float(len(c)) for c in choices]) > most:
        counts = [count // front.sizes[c] for front, count, c in zip(fronts, devices, choices, strict=True)]
        choices = [c[(s & (s - 1)) == 0] for c, s in zip(choices, counts, strict=True)]
    while np.prod([float(len(c)) for c in choices]) > most:
        longest = max(range(len(choices)), key=lambda g: len(choices[g]))
        choices[longest] = choices[longest][:-1]
    size = np.stack([axis.ravel() for axis in np.meshgrid(*choices, indexing="ij")], axis=1)
    stages = np.stack([devices[g] // front.sizes[size[:, g]] for g, front in enumerate(fronts)], axis=1)
    total = stages.sum(axis=1)
    good = total <= layers
    if allowed is not None:
        good &= np.isin(total, np.array(list(allowed)))
    return size[good], stages[good]


def paced(
    fronts: Sequence[StageFront], picks: SequencePicks, *, layers: float, refined: int, halvings: int = MORE_HALVINGS
) -> tuple[StageSequences, Int[np.ndarray, "stage_sequences"]]:
    """The pace of every stage sequence, and the strategies that reach it.

    Args:
        fronts: the fronts of the islands, in the order of the pipeline.
        picks: stage sequences through them in that order.
        layers: the layers of the model.
        refined: stage sequences of each use, with chunks and without, whose pace is searched to the end.
        halvings: the number of halvings of what is left of the interval of their pace.

    Returns:
        Stage sequences that can hold the model, the quickest first, and which of the picks they are.
    """
    most = picks.stages.max(axis=1)
    edges = (0, *SLOTS, MOST_STAGES)
    found = [
        _paced(fronts, picks.take(index), index, layers, refined, halvings)
        for low, high in pairwise(edges)
        if len(index := np.flatnonzero((most > low) & (most <= high)))
    ]
    names = [f.name for f in fields(StageSequences)]
    whole = StageSequences(**{name: np.concatenate([getattr(one, name) for one, _ in found]) for name in names})
    order = np.argsort(whole.step_s, kind="stable")
    return whole.take(order), np.concatenate([which for _, which in found])[order]


def _paced(
    fronts: Sequence[StageFront],
    picks: SequencePicks,
    which: Int[np.ndarray, "picks"],
    layers: float,
    refined: int,
    halvings: int,
) -> tuple[StageSequences, Int[np.ndarray, "stage_sequences"]]:
    """The same for stage sequences of about as many stages, whose tables have one width."""
    blocks = _blocks(fronts, picks)
    steps = picks.micro_batches + (picks.stages.sum(axis=1) - 1) / picks.chunks
    rate = sum(picks.stages[:, g] / block.layer_s.min(axis=1) for g, block in enumerate(blocks))
    low = layers / rate * (1 - 1e-9)
    high, ready = low.copy(), np.zeros(len(low), dtype=bool)
    for times in (USUAL, 4.0, FARTHEST):
        now = ~ready & _enough(blocks, low * times, layers)
        high = np.where(now, low * times, high)
        ready |= now
        if ready.all():
            break
    low, high = _halved(blocks, low, high, layers, HALVINGS)
    kept = _first_of_each(np.where(ready, high * steps, np.inf), picks, refined)
    if not len(kept):
        kept = np.flatnonzero(ready)
    picks, blocks, low, high = picks.take(kept), [block.take(kept) for block in blocks], low[kept], high[kept]
    low, high = _halved(blocks, low, high, layers, halvings)
    place = [block.held(high).argmax(axis=1) for block in blocks]
    stage_sequences = StageSequences(
        block=picks.block,
        stages=picks.stages,
        devices=np.stack([front.sizes[picks.size[:, g]] for g, front in enumerate(fronts)], axis=1),
        global_micro_batch=fronts[0].global_micro_batches[picks.global_micro_batch],
        pace_s=high,
        row=np.stack(
            [front.row[picks.size[:, g], picks.global_micro_batch, place[g]] for g, front in enumerate(fronts)], axis=1
        ),
        chunks=picks.chunks,
        step_s=high * steps[kept],
    )
    return stage_sequences, which[kept]


def _first_of_each(step_s: Float[np.ndarray, "picks"], picks: SequencePicks, most: int) -> Int[np.ndarray, "kept"]:
    """The quickest picks of each use of the islands, with chunks and without; none that cannot hold the model."""
    kept = _firsts(2 * picks.block + (picks.chunks > 1), step_s, most)
    if picks.at_once:
        able, numbers = (
            (picks.chunks == 1) & _at_once(picks.micro_batches),
            int(picks.global_micro_batch.max(initial=0)) + 1,
        )
        each = _firsts(picks.block * numbers + picks.global_micro_batch, np.where(able, step_s, np.inf), 1)
        kept = np.union1d(kept, each)
    return kept


def _firsts(group: Int[np.ndarray, "picks"], step_s: Float[np.ndarray, "picks"], most: int) -> Int[np.ndarray, "kept"]:
    """The quickest few of each group, in their order."""
    order = np.lexsort((step_s, group))
    first = np.searchsorted(group[order], group[order])
    return np.sort(order[(np.arange(len(order)) - first < most) & np.isfinite(step_s[order])])


def _enough(
    blocks: Sequence[StageRun], pace_s: Float[np.ndarray, "stage_sequences"], layers: float
) -> Bool[np.ndarray, "stage_sequences"]:
    """Whether the stages of each stage sequence hold all layers within its pace."""
    return np.asarray(sum(block.held(pace_s).max(axis=1) for block in blocks) >= layers)


def _halved(
    blocks: Sequence[StageRun],
    low: Float[np.ndarray, "stage_sequences"],
    high: Float[np.ndarray, "stage_sequences"],
    layers: float,
    times: int,
) -> tuple[Float[np.ndarray, "stage_sequences"], Float[np.ndarray, "stage_sequences"]]:
    for _ in range(times):
        middle = (low + high) / 2
        good = _enough(blocks, middle, layers)
        high, low = np.where(good, middle, high), np.where(good, low, middle)
    return low, high


def _blocks(fronts: Sequence[StageFront], picks: SequencePicks) -> list[StageRun]:
    """The stages on each island, in the order of the pipeline."""
    stages = picks.stages
    before = stages.cumsum(axis=1) - stages
    behind = stages.sum(axis=1)[:, None] - stages - before
    alive = np.maximum(picks.micro_batches, 1.0)
    last = len(fronts) - 1
    return [
        StageRun.of(
            front,
            size=picks.size[:, g],
            global_micro_batch=picks.global_micro_batch,
            chunks=picks.chunks,
            stages=stages[:, g],
            behind=behind[:, g],
            before=before[:, g],
            alive=alive,
            first=g == 0,
            last=g == last,
        )
        for g, front in enumerate(fronts)
    ]
