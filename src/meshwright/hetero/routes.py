"""Pipelines through islands: how many stages on each, under which strategies, so that the slowest stage is as quick as
it can be.

    a route      islands in an order, s_g equal stages on each, one strategy per island, a wave, v chunks per stage
    its pace     the least tau for which the layers that all stages can hold within tau and their memory suffice
    its step     (m + (S - 1) / v) tau

Stage i of S keeps S - i micro-batches in flight under 1F1B and (2 (S - 1 - i) + (v - 1) S + 1) / v under interleaved
1F1B. All routes through the same islands are bisected together.
Restrictions made for speed: a pipeline enters an island once, and all its stages there are equal but for their layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.hetero.stage_fronts import StageFront
from meshwright.shapes import Bool, Float, Int

HALVINGS = 14
"""Of the interval of the pace: 2e-4 of it."""
MOST_TUPLES = 20_000
"""Combinations of stage counts that are bounded at once; with more islands, counts are thinned to powers of two."""
ROUNDING = 1e-9
MOST_CHUNKS = 4
"""Of a stage."""
BISECTED = 96
"""Routes of one order of islands whose pace is searched: those with the least bounds, with chunks and without."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Routes:
    """One row per route through the same islands in the same order."""

    stages: Int[np.ndarray, "routes islands"]
    wave: Int[np.ndarray, "routes"]
    pace_s: Float[np.ndarray, "routes"]
    """Of the slowest stage, per micro-batch."""
    row: Int[np.ndarray, "routes islands"]
    """Of each island's options."""
    chunks: Int[np.ndarray, "routes"]
    """Of each stage: 1 for 1F1B, more for interleaved 1F1B."""
    step_s: Float[np.ndarray, "routes"]

    def __len__(self) -> int:
        return len(self.wave)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picks:
    """Routes whose pace is worth searching, by number; the bound they were picked by knows no order of islands."""

    counts: Int[np.ndarray, "picks islands"]
    """Of the stage counts of each island."""
    wave: Int[np.ndarray, "picks"]
    chunks: Int[np.ndarray, "picks"]
    bounded: int
    """Routes that were bounded, before the least bounds were taken."""

    def take(self, index: Int[np.ndarray, "taken"], order: Sequence[int]) -> Picks:
        """Some of them, through the islands in another order."""
        counts = self.counts[index][:, list(order)]
        return Picks(counts=counts, wave=self.wave[index], chunks=self.chunks[index], bounded=self.bounded)


def promising(
    fronts: Sequence[StageFront],
    *,
    layers: float,
    micro_batches: Float[np.ndarray, "waves"],
    stage_counts: Sequence[int] | None = None,
    chunk_counts: Sequence[int] = (1,),
    bisected: int = BISECTED,
) -> Picks | None:
    """The routes with the least bounds, whatever the order of the islands.

    Args:
        fronts: of the islands.
        layers: of the model.
        micro_batches: of a step at each wave.
        stage_counts: allowed numbers of stages in all, any by default.
        chunk_counts: allowed numbers of chunks of a stage.
        bisected: how many at most, of 1F1B and of its interleaved form.

    Returns:
        The routes; None where none can hold the model.
    """
    counts = _stage_counts(fronts, layers, stage_counts)
    if not len(counts):
        return None
    quickest = [1.0 / front.layer_s.min(axis=2) for front in fronts]
    rate = sum(
        front.stages[counts[:, g], None] * quickest[g][counts[:, g]] for g, front in enumerate(fronts)
    )  # layers per second, routes x waves
    total = sum(front.stages[counts[:, g]] for g, front in enumerate(fronts))
    usable = np.all([quickest[g][counts[:, g]] > 0 for g in range(len(fronts))], axis=0)
    v = np.array(chunk_counts, dtype=np.int64)
    with np.errstate(divide="ignore"):
        pace_s = np.where(usable, layers / rate, np.inf)
    fill = (total[:, None] - 1) / v
    least_s = pace_s[:, :, None] * (micro_batches[:, None] + fill[:, None, :])
    # Chunks shorten what fills a pipeline of several stages whose micro-batches come in groups.
    grouped = (total[:, None] > 1) & (micro_batches >= total[:, None]) & (np.floor(micro_batches) == micro_batches)
    enough_layers = total[:, None] * v <= layers
    least_s = np.where((v == 1) | (grouped[:, :, None] & enough_layers[:, None, :]), least_s, np.inf)
    picked = np.concatenate([_least(np.where(plain, least_s, np.inf), bisected) for plain in (v == 1, v > 1)], axis=1)
    if not picked.shape[1]:
        return None
    which, wave, chunk = picked
    return Picks(counts=counts[which], wave=wave, chunks=v[chunk], bounded=int(np.isfinite(least_s).sum()))


def _least(values: Float[np.ndarray, "tuples waves chunks"], most: int) -> Int[np.ndarray, "axes picked"]:
    """Where the smallest finite values stand."""
    order = np.argsort(values, axis=None, kind="stable")[: min(most, int(np.isfinite(values).sum()))]
    return np.stack(np.unravel_index(order, values.shape)).astype(np.int64)


def _stage_counts(
    fronts: Sequence[StageFront], layers: float, allowed: Sequence[int] | None
) -> Int[np.ndarray, "tuples islands"]:
    """Every combination of indices into the stage counts of the islands that has layers for all its stages."""
    choices = [np.arange(len(front.stages)) for front in fronts]
    if np.prod([float(len(c)) for c in choices]) > MOST_TUPLES:
        choices = [c[(front.stages & (front.stages - 1)) == 0] for c, front in zip(choices, fronts, strict=True)]
    while np.prod([float(len(c)) for c in choices]) > MOST_TUPLES:
        longest = max(range(len(choices)), key=lambda g: len(choices[g]))
        choices[longest] = choices[longest][:-1]
    table = np.stack([axis.ravel() for axis in np.meshgrid(*choices, indexing="ij")], axis=1)
    total = sum(front.stages[table[:, g]] for g, front in enumerate(fronts))
    good = np.asarray(total <= layers)
    if allowed is not None:
        good &= np.isin(total, np.array(list(allowed)))
    return table[good]


def paced(
    fronts: Sequence[StageFront], picks: Picks, *, layers: float, micro_batches: Float[np.ndarray, "waves"]
) -> tuple[Routes, Int[np.ndarray, "routes"]]:
    """The pace of every route, and the strategies that reach it.

    Args:
        fronts: of the islands, in the order of the pipeline.
        picks: routes through them in that order.
        layers: of the model.
        micro_batches: of a step at each wave.

    Returns:
        Routes that can hold the model, the quickest first, and which of the picks they are.
    """
    counts, wave, chunks = picks.counts, picks.wave, picks.chunks
    stages = np.stack([front.stages[counts[:, g]] for g, front in enumerate(fronts)], axis=1)
    before = stages.cumsum(axis=1) - stages
    behind = stages.sum(axis=1)[:, None] - stages - before
    alive = np.maximum(micro_batches[wave], 1.0)
    ends = [(g == 0, g == len(fronts) - 1) for g in range(len(fronts))]
    blocks = [
        _Block.of(front, counts[:, g], wave, chunks, stages[:, g], behind[:, g], before[:, g], alive, *ends[g])
        for g, front in enumerate(fronts)
    ]

    def held(pace_s: Float[np.ndarray, "routes"]) -> list[Float[np.ndarray, "routes places"]]:
        return [block.held(pace_s) for block in blocks]

    def enough(pace_s: Float[np.ndarray, "routes"]) -> Bool[np.ndarray, "routes"]:
        return np.asarray(sum(part.max(axis=1) for part in held(pace_s)) >= layers)

    high = max(block.slowest_s for block in blocks) * layers * np.ones(len(wave))
    possible = enough(high)
    rate = sum(stages[:, g] / blocks[g].layer_s.min(axis=1) for g in range(len(fronts)))
    low = layers / rate * (1 - 1e-9)
    high = np.minimum(high, low * 4.0)
    high = np.where(enough(high), high, low * 64.0)
    possible &= enough(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        good = enough(middle)
        high, low = np.where(good, middle, high), np.where(good, low, middle)
    best = held(high)
    row = np.stack(
        [fronts[g].row[counts[:, g], wave, best[g].argmax(axis=1)] for g in range(len(fronts))],
        axis=1,
    )
    step_s = high * (micro_batches[wave] + (stages.sum(axis=1) - 1) / chunks)
    kept = np.flatnonzero(possible)
    kept = kept[np.argsort(step_s[kept], kind="stable")]
    routes = Routes(
        stages=stages[kept],
        wave=fronts[0].waves[wave[kept]],
        pace_s=high[kept],
        row=row[kept],
        chunks=chunks[kept],
        step_s=step_s[kept],
    )
    return routes, kept


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """The stages of all routes on one island."""

    layer_s: Float[np.ndarray, "routes places"]
    first_s: Float[np.ndarray, "routes places"]
    last_s: Float[np.ndarray, "routes places"]
    by_memory: Float[np.ndarray, "routes places slots"]
    """Layers that fit each stage; -1 behind the last one."""
    fewest: Float[np.ndarray, "routes places"]
    """Layers that fit the fullest stage."""
    slots: Int[np.ndarray, "routes"]
    chunks: Float[np.ndarray, "routes one"]
    slowest_s: float

    @classmethod
    def of(
        cls,
        front: StageFront,
        count: Int[np.ndarray, "routes"],
        wave: Int[np.ndarray, "routes"],
        chunks: Int[np.ndarray, "routes"],
        stages: Int[np.ndarray, "routes"],
        behind: Int[np.ndarray, "routes"],
        before: Int[np.ndarray, "routes"],
        alive: Float[np.ndarray, "routes"],
        first: bool,
        last: bool,
    ) -> _Block:
        slot = np.arange(stages.max())
        ahead = np.maximum(stages[:, None] - slot + behind[:, None], 1)
        v = chunks[:, None].astype(float)
        interleaved = (2 * (ahead - 1) + (v - 1) * (stages + behind + before)[:, None] + 1) / v
        in_flight = np.minimum(np.where(v > 1, interleaved, ahead), alive[:, None])[:, None, :]
        state, kept = front.state[count, wave][..., None], front.kept[count, wave][..., None]
        used = np.zeros_like(state + kept * in_flight)
        edge_state, edge_kept = front.edge_state[count, wave], front.edge_kept[count, wave]
        here = slot < stages[:, None]
        if first:
            used[..., 0] += edge_state[..., 0] + edge_kept[..., 0] * in_flight[..., 0]
        if last:
            end = (slot == stages[:, None] - 1)[:, None, :]
            used += np.where(end, edge_state[..., 1:] + edge_kept[..., 1:] * in_flight, 0.0)
        fits = np.maximum(np.floor((1.0 - used) / (state + kept * in_flight) + ROUNDING), 0.0)
        fits = v[..., None] * np.floor(fits / v[..., None])
        layer_s = front.layer_s[count, wave]
        edge_s = front.edge_s[count, wave]
        nothing = np.zeros_like(layer_s)
        known = layer_s[np.isfinite(layer_s)]
        return cls(
            layer_s=layer_s,
            first_s=edge_s[..., 0] if first else nothing,
            last_s=edge_s[..., 1] if last else nothing,
            by_memory=np.where(here[:, None, :], fits, 0.0),
            fewest=np.where(here[:, None, :], fits, np.inf).min(axis=2),
            slots=stages,
            chunks=v,
            slowest_s=float(known.max()) if len(known) else 1.0,
        )

    def held(self, pace_s: Float[np.ndarray, "routes"]) -> Float[np.ndarray, "routes places"]:
        """Layers that all stages together hold within a pace."""
        v, chunk_s = self.chunks, pace_s[:, None] / self.chunks
        each = np.floor(chunk_s / self.layer_s + ROUNDING)
        total = np.minimum((v * each)[..., None], self.by_memory).sum(axis=2)
        least = np.minimum(v * each, self.fewest)
        # Embedding and head take their part of one chunk of the first and of the last stage.
        for edge_s, slot in ((self.first_s, np.zeros_like(self.slots)), (self.last_s, self.slots - 1)):
            if edge_s.any():
                own = np.take_along_axis(self.by_memory, slot[:, None, None], axis=2)[..., 0]
                edge = np.floor((chunk_s - edge_s) / self.layer_s + ROUNDING)
                left = np.where(edge >= 1, np.minimum(edge + (v - 1) * each, own), 0.0)
                total += left - np.minimum(v * each, own)
                least = np.minimum(least, left)
        return np.where(least >= v, total, -np.inf)
