"""Strategies of stages that no other beats: a table over (devices of a stage, global micro-batch) per kind of island.

A share of c devices of an island holds s equal stages of c / s devices; every share of every island of the kind reads
the same table. A strategy is dominated where another of the same size and global micro-batch is no slower per layer and
holds no fewer layers at any number of micro-batches in flight: the share of memory that a layer takes, state + in
flight x kept, is linear, so that both ends of its range decide.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from meshwright.planning.compose.sources.native.stages import StageOptions
from meshwright.shapes import Float, Int

EDGES = 2
"""Embedding and head, the last two parts of every row."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageFront:
    """Undominated strategies of one kind of island; unused places take infinitely long."""

    sizes: Int[np.ndarray, "sizes"]
    """Devices of a stage, descending."""
    global_micro_batches: Int[np.ndarray, "global_micro_batches"]
    layer_s: Float[np.ndarray, "sizes global_micro_batches places"]
    """Forward and backward of a mean layer and its share of what the step waits for, per micro-batch."""
    edge_s: Float[np.ndarray, "sizes global_micro_batches places edges"]
    """Seconds of embedding and head."""
    state: Float[np.ndarray, "sizes global_micro_batches places"]
    """Share of the memory for layers that a mean layer's weights, gradients and optimizer take."""
    kept: Float[np.ndarray, "sizes global_micro_batches places"]
    """Share of it that a mean layer's activations take, per micro-batch in flight."""
    edge_state: Float[np.ndarray, "sizes global_micro_batches places edges"]
    edge_kept: Float[np.ndarray, "sizes global_micro_batches places edges"]
    alone: Float[np.ndarray, "sizes global_micro_batches places"]
    """Share of it that a pipeline of one stage takes less: what both `edge_state` count, and what passes to others."""
    row: Int[np.ndarray, "sizes global_micro_batches places"]
    """Row of the island's options that each entry is."""
    quickest_s: Float[np.ndarray, "sizes global_micro_batches"]
    """Least `layer_s` of the places."""
    most_layers: Float[np.ndarray, "sizes global_micro_batches"]
    """Most layers that any strategy holds with one micro-batch in flight."""
    looked_at: int
    """Strategies before any was dropped."""

    def sizes_of(self, devices: int, most_stages: int) -> Int[np.ndarray, "divisors"]:
        """Which sizes cut a share of so many devices into equal stages, not too many."""
        return np.flatnonzero((devices % self.sizes == 0) & (devices // self.sizes <= most_stages))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerCosts:
    """What a mean layer, embedding and head take under each strategy; names as of `StageFront`."""

    room_bytes: Float[np.ndarray, "rows"]
    """Memory for layers; no more than 0 where a stage does not fit without any."""
    layer_s: Float[np.ndarray, "rows"]
    edge_s: Float[np.ndarray, "rows edges"]
    state: Float[np.ndarray, "rows"]
    kept: Float[np.ndarray, "rows"]
    edge_state: Float[np.ndarray, "rows edges"]
    edge_kept: Float[np.ndarray, "rows edges"]
    alone: Float[np.ndarray, "rows"]

    @classmethod
    def of(
        cls,
        options: StageOptions,
        micro_batches: Float[np.ndarray, "rows"],
        mix: Float[np.ndarray, "kinds"],
        limit_bytes: float,
    ) -> LayerCosts:
        """The costs of every row.

        Args:
            options: the rows.
            micro_batches: the micro-batches of a step of each, over which what happens once a step is spread.
            mix: share of each layer kind in the model.
            limit_bytes: the limit in bytes that may be used of a device.
        """
        kinds = len(mix)
        transient = options.transient_bytes[:, :kinds].max(axis=1)
        room = limit_bytes - options.fixed_bytes - transient
        of_room = np.where(room > 0, room, np.inf)[:, None]
        each_s = options.once_s + options.sync_s / micro_batches[:, None]
        state, kept = options.state_bytes / of_room, options.kept_bytes / of_room
        # What embedding and head need beyond the layers' own working memory, only the stages that hold them need.
        more = np.maximum(options.transient_bytes[:, kinds:] - transient[:, None], 0.0)
        state[:, kinds:] += more / of_room
        return cls(
            room_bytes=room,
            layer_s=each_s[:, :kinds] @ mix,
            edge_s=each_s[:, kinds:],
            state=state[:, :kinds] @ mix,
            kept=kept[:, :kinds] @ mix,
            edge_state=state[:, kinds:],
            edge_kept=kept[:, kinds:],
            alone=(more.min(axis=1) + options.between_bytes) / of_room[:, 0],
        )

    def take(self, index: Int[np.ndarray, "taken"]) -> LayerCosts:
        """The costs of some rows."""
        return LayerCosts(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


def stage_front(
    options: StageOptions,
    *,
    global_micro_batches: tuple[int, ...],
    micro_batches: Float[np.ndarray, "global_micro_batches"],
    mix: Float[np.ndarray, "kinds"],
    limit_bytes: float,
    most_in_flight: int,
) -> StageFront | None:
    """The table of a kind of island.

    Args:
        options: the options of all sizes of stage of the kind.
        global_micro_batches: sequences of a micro-batch over all data ranks.
        micro_batches: the micro-batches of a step at each global micro-batch, over which what happens once a step is
            spread.
        mix: share of each layer kind in the model.
        limit_bytes: the limit in bytes that may be used of a device.
        most_in_flight: micro-batches alive at most.

    Returns:
        The table; None where nothing fits.
    """
    place = np.searchsorted(np.array(global_micro_batches), options.global_micro_batch)
    costs = LayerCosts.of(options, micro_batches[place], mix, limit_bytes)
    index = np.flatnonzero(costs.room_bytes > 0)
    if not len(index):
        return None
    place, costs = place[index], costs.take(index)
    layer_s, state, kept = costs.layer_s, costs.state, costs.kept
    least, most = state + kept, state + most_in_flight * kept
    ends = 1.0 - costs.edge_state - costs.edge_kept
    at_ends = [np.where(end > 0, least / np.maximum(end, 1e-300), np.inf) for end in ends.T]
    sizes = np.unique(options.devices[index])[::-1]
    size = np.searchsorted(-sizes, -options.devices[index])
    fronts: dict[tuple[int, int], Int[np.ndarray, "front"]] = {}
    held = np.flatnonzero(least <= 1.0)
    code = size[held] * len(global_micro_batches) + place[held]
    order = np.argsort(code, kind="stable")
    for rows in np.split(held[order], np.flatnonzero(np.diff(code[order])) + 1):
        if len(rows):
            front = [_undominated(layer_s[rows], least[rows], most[rows])]
            # With embedding or head beside its layers another strategy may hold more.
            front += [_undominated(layer_s[rows], own[rows], own[rows]) for own in at_ends]
            kept_rows = rows[np.unique(np.concatenate(front))]
            quickest = np.argsort(layer_s[kept_rows], kind="stable")
            fronts[int(size[rows[0]]), int(place[rows[0]])] = kept_rows[quickest]
    if not fronts:
        return None
    shape = (len(sizes), len(global_micro_batches), max(map(len, fronts.values())))

    def table(values: np.ndarray, fill: float) -> np.ndarray:
        out = np.full((*shape, *values.shape[1:]), fill, dtype=values.dtype)
        for (one, number), rows in fronts.items():
            out[one, number, : len(rows)] = values[rows]
        return out

    seconds = table(layer_s, np.inf)
    return StageFront(
        sizes=sizes,
        global_micro_batches=np.array(global_micro_batches),
        layer_s=seconds,
        edge_s=table(costs.edge_s, 0.0),
        state=table(state, 1.0),
        kept=table(kept, 1.0),
        edge_state=table(costs.edge_state, 1.0),
        edge_kept=table(costs.edge_kept, 1.0),
        alone=table(costs.alone, 0.0),
        row=table(index, -1),
        quickest_s=seconds.min(axis=2),
        most_layers=table(np.floor(1.0 / least), 0.0).max(axis=2),
        looked_at=len(index),
    )


def _undominated(
    time_s: Float[np.ndarray, "rows"], least: Float[np.ndarray, "rows"], most: Float[np.ndarray, "rows"]
) -> Int[np.ndarray, "front"]:
    """Rows that no other beats in all three, quickest first."""
    left = np.lexsort((most, least, time_s))
    front = []
    while len(left):
        best = left[0]
        front.append(best)
        left = left[(least[left] < least[best]) | (most[left] < most[best])]
    return np.array(front)
