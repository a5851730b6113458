"""A stage before it has layers: what layers of its strategy cost and hold, and how many its memory has room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.planning.compose.sources.native.stages import StageOptions
from meshwright.shapes import Float, Int

ERR_BYTES = 0.02
"""Share of the memory by which what is in flight may seem too much and fit: plans within it are left to their price."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitStage:
    """One stage before it has layers: a strategy on some devices of an island."""

    island: int
    devices: int
    options: StageOptions
    row: int
    limit_bytes: float

    @property
    def strategy(self) -> tuple[StageOptions, int]:
        """What of it decides what layers cost."""
        return self.options, self.row


def in_flight(stages: int, micro_batches: int, chunks: int, group: int) -> Float[np.ndarray, "stages"]:
    """Micro-batches in flight at each stage.

        1F1B         min(m, S - i)
        interleaved  min(m, (2 (S - i - 1) + (v - 1) g + 1) / v)

    Args:
        stages: S.
        micro_batches: m, those of a step.
        chunks: v, those of a stage.
        group: g, the micro-batches of a group of interleaved 1F1B.
    """
    ahead = np.arange(stages, 0, -1)
    return np.minimum(micro_batches, ahead if chunks == 1 else (2 * (ahead - 1) + (chunks - 1) * group + 1) / chunks)


@dataclass(frozen=True, slots=True, eq=False)
class StageSums:
    """Running sums of a strategy's costs over the model's layers, the same wherever its stage stands."""

    cost_s: list[float]
    seconds: Float[np.ndarray, "cuts parts"]
    """The same, then seconds after the step, the least of them, what compute hides of them, and of backward."""
    state_bytes: Float[np.ndarray, "cuts"]
    kept_bytes: Float[np.ndarray, "cuts"]
    edges: tuple[tuple[float, float, float, float, float, float, float, float], ...]
    """Embedding and head: those seconds, then state, kept and transient bytes."""
    transient_bytes: float

    @classmethod
    def of(cls, stage: SplitStage, kinds_before: Int[np.ndarray, "cuts kinds"]) -> StageSums:
        """The sums of the strategy of a stage.

        Args:
            stage: any stage of the strategy.
            kinds_before: layers of each kind before each cut of the model.
        """
        options, row, kinds = stage.options, stage.row, kinds_before.shape[1]
        tables = (
            options.forward_s[row] + options.backward_s[row],
            options.sync_s[row],
            options.least_sync_s[row],
            options.beside_s[row],
            options.backward_s[row],
            options.state_bytes[row],
            options.kept_bytes[row],
            options.transient_bytes[row],
        )
        *seconds, state, kept = (kinds_before @ table[:kinds] for table in tables[:7])
        return cls(
            cost_s=seconds[0].tolist(),
            seconds=np.stack(seconds, axis=1),
            state_bytes=state,
            kept_bytes=kept,
            edges=tuple(zip(*(table[kinds:].tolist() for table in tables), strict=True)),
            transient_bytes=float(tables[7][:kinds].max()),
        )


@dataclass(frozen=True, slots=True, eq=False)
class StageMemory:
    """Memory of stages at their places in the pipeline, and the even part of it that each of their chunks may use."""

    bytes_: list[list[float]]
    """Bytes that the layers before each cut take of each stage."""
    room_bytes: list[float]
    """Memory left for the layers of a chunk of each."""
    alive: Float[np.ndarray, "stages"]
    """Micro-batches in flight, in groups of as many as there are stages."""

    @classmethod
    def of(
        cls, stages: Sequence[SplitStage], sums: Sequence[StageSums], micro_batches: int, chunks: int
    ) -> StageMemory:
        """The memory of all stages of a pipeline.

        Args:
            stages: the stages in the order of the pipeline.
            sums: the running sums of each.
            micro_batches: the micro-batches of a step.
            chunks: the chunks of each stage.
        """
        count, rooms = len(stages), []
        alive = in_flight(count, micro_batches, chunks, count)
        for index, (stage, own) in enumerate(zip(stages, sums, strict=True)):
            held = [own.edges[0]] * (index == 0) + [own.edges[1]] * (index == count - 1)
            room = stage.limit_bytes - float(stage.options.fixed_bytes[stage.row])
            room += float(stage.options.between_bytes[stage.row]) * (count == 1)
            room -= max(own.transient_bytes, *(edge[-1] for edge in held), 0.0)
            room -= sum(state + float(alive[index]) * kept for *_, state, kept, _ in held)
            rooms.append(room / chunks)
        state, kept = (np.stack([getattr(own, name) for own in sums]) for name in ("state_bytes", "kept_bytes"))
        return cls((state + alive[:, None] * kept).tolist(), rooms, alive)

    def in_flight_of(
        self, stages: Sequence[SplitStage], sums: Sequence[StageSums], layers: Sequence[int]
    ) -> Float[np.ndarray, "stages"]:
        """Micro-batches in flight that each stage has room for with these layers of all its chunks.

        Args:
            stages: the stages in the order of the pipeline.
            sums: the running sums of each.
            layers: the layers of each chunk.
        """
        count, ends = len(stages), np.cumsum(layers)
        chunks = len(layers) // count
        found = []
        for index, (stage, own) in enumerate(zip(stages, sums, strict=True)):
            behind = ends[index::count]
            first = behind - np.array(layers[index::count])
            state, kept = (float((table[behind] - table[first]).sum()) for table in (own.state_bytes, own.kept_bytes))
            left = chunks * self.room_bytes[index] + ERR_BYTES * stage.limit_bytes - state
            edges = sum(edge[6] for edge in (own.edges[0],) * (index == 0) + (own.edges[1],) * (index == count - 1))
            # Of embedding and head the room lacks what this many in flight keep of them.
            found.append((left + self.alive[index] * edges) / max(kept + edges, 1e-300))
        return np.array(found)
