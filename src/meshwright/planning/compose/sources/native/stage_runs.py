"""Equal stages of stage sequences on one island: how many layers they hold within a pace and their memory.

Stage i of S keeps S - i micro-batches in flight under 1F1B and (2 (S - 1 - i) + (v - 1) S + 1) / v under interleaved
1F1B.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from meshwright.planning.compose.sources.native.stage_fronts import StageFront
from meshwright.shapes import Float, Int

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class StageRun:
    """The stages of all stage sequences on one island, one row per stage sequence and one place per strategy."""

    layer_s: Float[np.ndarray, "stage_sequences places"]
    first_s: Float[np.ndarray, "stage_sequences places"] | None
    last_s: Float[np.ndarray, "stage_sequences places"] | None
    """Seconds of embedding and head, on the first island and on the last."""
    by_memory: Float[np.ndarray, "slots stage_sequences places"]
    """Layers that fit each stage; none behind the last one. Slots come first: sums over them take most of a search."""
    first_fit: Float[np.ndarray, "stage_sequences places"]
    last_fit: Float[np.ndarray, "stage_sequences places"]
    """Layers that fit the first stage and the last one."""
    fewest: Float[np.ndarray, "stage_sequences places"]
    """Layers that fit the fullest stage."""
    chunks: Float[np.ndarray, "stage_sequences one"]

    def take(self, index: Int[np.ndarray, "taken"]) -> StageRun:
        """The runs of some stage sequences."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "by_memory"}
        taken: dict[str, Any] = {name: None if values is None else values[index] for name, values in own.items()}
        return StageRun(by_memory=self.by_memory[:, index], **taken)

    @classmethod
    def of(
        cls,
        front: StageFront,
        *,
        size: Int[np.ndarray, "stage_sequences"],
        global_micro_batch: Int[np.ndarray, "stage_sequences"],
        chunks: Int[np.ndarray, "stage_sequences"],
        stages: Int[np.ndarray, "stage_sequences"],
        behind: Int[np.ndarray, "stage_sequences"],
        before: Int[np.ndarray, "stage_sequences"],
        alive: Float[np.ndarray, "stage_sequences"],
        first: bool,
        last: bool,
    ) -> StageRun:
        """The stages of these stage sequences.

        Args:
            front: the front of the island.
            size: the size of a stage, by number in the front.
            global_micro_batch: the global micro-batch, by number in the front.
            chunks: the chunks of each stage.
            stages: the stages on the island.
            behind: stages of the pipeline on the islands that follow.
            before: stages of the pipeline on the islands that come first.
            alive: micro-batches of a step, of which no more can be in flight.
            first: whether the pipeline starts here.
            last: whether it ends here.
        """
        layer_s = front.layer_s[size, global_micro_batch]
        width = int(np.isfinite(layer_s).sum(axis=1).max(initial=1)) or 1
        layer_s = layer_s[:, :width]
        slot = np.arange(stages.max())[:, None]
        here = slot < stages
        ahead = np.maximum(stages - slot + behind, 1)
        v = chunks.astype(float)
        interleaved = (2 * (ahead - 1) + (v - 1) * (stages + behind + before) + 1) / v
        in_flight = np.minimum(np.where(v > 1, interleaved, ahead), alive)[..., None]
        state, kept = front.state[size, global_micro_batch, :width], front.kept[size, global_micro_batch, :width]
        edge_state, edge_kept = (
            front.edge_state[size, global_micro_batch, :width],
            front.edge_kept[size, global_micro_batch, :width],
        )
        room = np.ones((len(slot), *layer_s.shape))
        every = np.arange(len(stages))
        if first:
            room[0] -= edge_state[..., 0] + edge_kept[..., 0] * in_flight[0]
        if last:
            end = in_flight[stages - 1, every]
            room[stages - 1, every] -= edge_state[..., 1] + edge_kept[..., 1] * end
        if first and last:
            room[0] += (stages == 1)[:, None] * front.alone[size, global_micro_batch, :width]
        fits = room / (state + kept * in_flight)
        fits += ROUNDING
        # Whole chunks are held.
        if v.max(initial=1.0) > 1:
            fits = v[:, None] * np.floor(np.floor(fits) / v[:, None])
        else:
            np.floor(fits, out=fits)
        np.maximum(fits, 0.0, out=fits)
        fewest = np.where(here[..., None], fits, np.inf).min(axis=0)
        fits *= here[..., None]
        edge_s = front.edge_s[size, global_micro_batch, :width]
        return cls(
            layer_s=layer_s,
            first_s=edge_s[..., 0] if first else None,
            last_s=edge_s[..., 1] if last else None,
            by_memory=fits.astype(np.float32),
            first_fit=fits[0],
            last_fit=fits[stages - 1, every],
            fewest=fewest,
            chunks=v[:, None],
        )

    def held(self, pace_s: Float[np.ndarray, "stage_sequences"]) -> Float[np.ndarray, "stage_sequences places"]:
        """Layers that all stages together hold within a pace."""
        v, chunk_s = self.chunks, pace_s[:, None] / self.chunks
        each = np.floor(chunk_s / self.layer_s + ROUNDING)
        most = v * each
        total = np.minimum(self.by_memory, most.astype(np.float32)).sum(axis=0).astype(float)
        least = np.minimum(most, self.fewest)
        # Embedding and head take their part of one chunk of the first and of the last stage.
        for edge_s, own in ((self.first_s, self.first_fit), (self.last_s, self.last_fit)):
            if edge_s is not None:
                edge = np.floor((chunk_s - edge_s) / self.layer_s + ROUNDING)
                left = np.where(edge >= 1, np.minimum(edge + (v - 1) * each, own), 0.0)
                total += left - np.minimum(most, own)
                least = np.minimum(least, left)
        return np.where(least >= v, total, -np.inf)
