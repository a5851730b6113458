"""Which layers stand where: the balanced split of a model over virtual stages, and a row of degrees as a plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from meshwright.errors import InfeasibleError
from meshwright.estimate.sequences import attended_pairs
from meshwright.kernels.compute import entry_pairs
from meshwright.kernels.partition import balanced_partition
from meshwright.ops.edges import edge_work
from meshwright.ops.layers import work_of
from meshwright.schedules import Placement, schedule_named
from meshwright.schedules.plan_rows import plan_of, stages_of
from meshwright.shapes import Float, Int
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.operators import CoreAttention, LayerWork, Linear, Scan, Scores, StreamTokens
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow

Ranges = tuple[tuple[tuple[int, int], ...], ...]
"""First and last layer of every chunk, by worker and chunk."""


def token_flop(work: LayerWork, seq_len: int) -> float:
    """Forward FLOP per token of a layer: 2 per weight it meets, 2 (d_qk + d_v) per attended key and head, recurrences.

    Args:
        work: the layer's operators.
        seq_len: tokens of a sequence, over which causal attention is averaged.

    Returns:
        FLOP per token of the text, whatever the stream of the layer.
    """
    total = 0.0
    for op in work.ops:
        if isinstance(op, Linear):
            met = _per_text_token(op.tokens or work.tokens, seq_len)
            total += 2.0 * op.parameters * met * (work.top_k / op.experts if op.experts else 1.0)
        elif isinstance(op, CoreAttention):
            length = float(seq_len if work.tokens is None else work.tokens.length)
            met = _per_text_token(work.tokens, seq_len)
            total += 2.0 * op.heads * (op.head_dim + op.value_dim) * attended_pairs(op, length) / length * met
        elif isinstance(op, Scores):
            total += 2.0 * op.heads * op.dim * entry_pairs(seq_len, op.entry) / seq_len
        elif isinstance(op, Scan):
            total += op.heads * op.recurrence_flop * _per_text_token(work.tokens, seq_len)
    return total


def _per_text_token(tokens: StreamTokens | None, seq_len: int) -> float:
    """Tokens of a stream for each of the text."""
    return 1.0 if tokens is None else tokens.count / seq_len


@lru_cache(maxsize=1024)
def _balanced(weights: tuple[float, ...], parts: int, first_extra: float, last_extra: float) -> tuple[int, ...]:
    """`balanced_partition`, found once for models whose layers compute alike, however they are stored or trained."""
    return balanced_partition(weights, parts=parts, first_extra=first_extra, last_extra=last_extra).counts


@dataclass(frozen=True, slots=True, eq=False)
class ModelLayout:
    """A model's layers by kind, and their balanced splits; one object per model and sequence length."""

    model: ModelSpec
    kinds: tuple[LayerSpec, ...]
    kinds_before: Int[np.ndarray, "cuts kinds"]
    """Layers of each kind before each cut; the difference of two rows counts a range."""
    kind_flop: Float[np.ndarray, "kinds"]
    """FLOP per token, forward."""
    tail_flop: float
    """FLOP per token of the head, the loss and multi-token-prediction modules."""
    _splits: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _uneven: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    _ranges: dict[tuple[int, int], Ranges] = field(default_factory=dict)

    @staticmethod
    @lru_cache(maxsize=64)
    def of(model: ModelSpec, seq_len: int) -> ModelLayout:
        """The layout of a model whose attention sees so many tokens."""
        kinds = model.kinds()
        one_hot = np.zeros((model.num_layers + 1, len(kinds)), dtype=np.int64)
        one_hot[np.arange(1, model.num_layers + 1), _kind_numbers(model)] = 1
        flop = np.array([token_flop(work_of(model, kind, "flash"), seq_len) for kind in kinds])
        head = token_flop(edge_work(model, "head"), seq_len)
        module = token_flop(work_of(model, model.mtp_kind, "flash"), seq_len)
        module += token_flop(edge_work(model, "mtp"), seq_len) + head
        return ModelLayout(model, kinds, one_hot.cumsum(axis=0), flop, float(head + model.mtp_layers * module))

    def split(self, parts: int) -> tuple[int, ...]:
        """Layers of each virtual stage: the heaviest as light as possible, head and loss weighed by their FLOP.

        Args:
            parts: virtual stages, at most the layers.

        Returns:
            Layers per virtual stage; they sum to the model's.

        Raises:
            InfeasibleError: more virtual stages than layers.
        """
        layers = self.model.most_stages
        if parts > layers:
            raise InfeasibleError(
                what=f"{parts} virtual stages for {layers} layers of {self.model.name}",
                why="every virtual stage (pp x vpp) holds at least one layer",
                fix=f"use pp x vpp of at most {layers}",
                field="pp",
                code="MW310",
            )
        if parts not in self._splits:
            weights, ahead, first_extra = self.chain()
            found = _balanced(weights, parts, first_extra, self.tail_flop)
            self._splits[parts] = (found[0] + ahead, *found[1:])
        return self._splits[parts]

    def split_of(self, row: PlanRow) -> tuple[int, ...]:
        """Layers of each virtual stage of a row.

        Args:
            row: the row with as many stages as layers at most.

        Raises:
            InfeasibleError: more virtual stages than layers.
        """
        placement = schedule_named(row.schedule).placement(row.pp, row.vpp)
        return self.split_over(placement) if placement.by_worker else self.split(stages_of(row))

    def split_over(self, placement: Placement) -> tuple[int, ...]:
        """Layers of each virtual stage of a chain: stages alike, or the workers that hold them.

        Args:
            placement: the placement of chains that hold the whole model each.

        Raises:
            InfeasibleError: more virtual stages than layers.
        """
        alike = self.split(placement.stages // placement.chains)
        if not placement.by_worker:
            return alike
        workers = tuple(placement.worker.tolist())
        if workers not in self._uneven:
            from meshwright.kernels.mixed_partition import worker_cuts  # few schedules place stages themselves

            weights, ahead, first_extra = self.chain()
            found = worker_cuts(weights, workers, first_extra=first_extra, last_extra=self.tail_flop)
            self._uneven[workers] = (found[0] + ahead, *found[1:])
        return self._uneven[workers]

    def chain(self) -> tuple[tuple[float, ...], int, float]:
        """Forward FLOP per token of the layers that stages are cut from, how many stand ahead of them, and their FLOP.

        Layers ahead of the first cut are those of encoders, which the first stage holds.
        """
        weights = np.diff(self.kinds_before, axis=0) @ self.kind_flop
        ahead = self.model.num_layers - self.model.most_stages
        return tuple(weights[ahead:].tolist()), ahead, float(weights[:ahead].sum())

    def ranges(self, pp: int, vpp: int) -> Ranges:
        """First and last layer of every chunk under the loop placement of interleaved schedules."""
        key = (pp, vpp)
        if key not in self._ranges:
            first = np.concatenate(([0], np.cumsum(self.split(pp * vpp)))).tolist()
            self._ranges[key] = tuple(
                tuple((first[chunk * pp + worker], first[chunk * pp + worker + 1] - 1) for chunk in range(vpp))
                for worker in range(pp)
            )
        return self._ranges[key]

    def placed(
        self, placement: Placement
    ) -> tuple[Int[np.ndarray, "workers chunks"], Int[np.ndarray, "workers chunks"]]:
        """First layer of every chunk and the layer behind its last, by worker and chunk.

        Args:
            placement: every chain of it holds the whole model.
        """
        return _placed(self, placement)

    def counts(self, first: Int[np.ndarray, "..."], behind: Int[np.ndarray, "..."]) -> Int[np.ndarray, "... kinds"]:
        """Layers of each kind from one cut to another.

        Args:
            first: first layer of each range.
            behind: layer behind its last.
        """
        return self.kinds_before[behind] - self.kinds_before[first]


@lru_cache(maxsize=64)
def _kind_numbers(model: ModelSpec) -> tuple[int, ...]:
    """The kind of each layer."""
    number = {kind: index for index, kind in enumerate(model.kinds())}
    return tuple(number[layer] for layer in model.layers())


@lru_cache(maxsize=512)
def _placed(
    layout: ModelLayout, placement: Placement
) -> tuple[Int[np.ndarray, "workers chunks"], Int[np.ndarray, "workers chunks"]]:
    per_chain = placement.stages // placement.chains
    cuts = np.concatenate(([0], np.cumsum(layout.split_over(placement))))
    first, behind = np.zeros((2, placement.p, placement.v), dtype=np.int64)
    stage = np.arange(placement.stages) % per_chain
    first[placement.worker, placement.chunk] = cuts[stage]
    behind[placement.worker, placement.chunk] = cuts[stage + 1]
    return first, behind


def expand(row: PlanRow, model: ModelSpec, seq_len: int) -> ExecutionPlan:
    """A row of degrees as a plan: layers split by weight, workers on consecutive devices, stage after stage.

    Args:
        row: the degrees.
        model: the model.
        seq_len: decides what attention weighs beside the matrices.

    Returns:
        The plan; one strategy, or two where `block` recomputes part of a chunk.
    """
    return plan_of(row, ModelLayout.of(model, seq_len).split_of(row))
