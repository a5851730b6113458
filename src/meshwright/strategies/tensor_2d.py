"""2D and 2.5D tensor parallelism: SUMMA on a square grid of ranks, or on several of them one behind the other.

Rank (i, j) of a q x q grid holds block (i, j) of every matrix and of every activation, rows by sequences and columns by
hidden width. The product of an input [M, K] by a matrix [K, N] takes q steps, each with one block of the rank's row and
one of its column; per rank and product, received:

    forward     (q-1)/q^2 M K   +   (q-1)/q^2 K N
    backward    twice that: the gradients of input and matrix each take as much as their operands

All exposed: the next block is needed before anything can be computed with it. Attention is local: heads are shared by
the columns, sequences by the rows. In 2.5D, d such grids share the sequences and hold the same blocks of matrices, so
that activations are a d-th, and gradients of the blocks are summed over the depth: 2(d-1)/d K N / q^2 more backward.
Sources: Xu et al. 2021 (arXiv 2104.05343), sections 3.1 and 3.2; Wang et al. 2022 (Tesseract, arXiv 2105.14500).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from meshwright.shapes import Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import Linear, Vector
from meshwright.strategies.base import Call, DegreeRule, Group, Kind, LocalGemm, TensorStrategy
from meshwright.strategies.blocks import ActivationBlocks, BlockProduct, TensorBlocks
from meshwright.strategies.columns import StrategyColumns, full_width
from meshwright.strategies.grid_rules import grid_rules, sides

Ranks = Int[np.ndarray, "rows"]

FP32_BYTES = 4.0
"""Statistics of norms and of the loss are summed in 32 bits at least."""


class TwoDimensions(TensorStrategy):
    """Matrices and activations in blocks on a square grid."""

    name = "2d"
    summary = "blocks of matrices and activations on a q x q grid (Optimus)"
    runs = True

    def side(self, tp: Ranks) -> Ranks:
        """Ranks of a row or column of a grid: q."""
        return sides(self.name, tp)[:, 0]

    def depth(self, tp: Ranks) -> Ranks:
        """Grids that hold the same matrices."""
        return np.maximum(np.asarray(tp) // self.side(tp) ** 2, 1)

    def linear(self, op: Linear, columns: StrategyColumns, activation_bytes: float) -> LocalGemm:
        """q products of blocks, and the strips of the input and of the matrix that cross rows and columns."""
        q, d = self.side(columns.tp), self.depth(columns.tp)
        tokens, width_in, width_out = columns.tokens / (q * d), full_width(op.inputs) / q, full_width(op.outputs) / q
        several = activation_bytes * (q > 1)
        strip = tokens * width_in * q * several
        matrix = width_in * width_out * q * several
        block = width_in * width_out * activation_bytes * (d > 1)
        beside: tuple[Call, ...] = (exposed_call("all_reduce", "backward", "tp_depth", block),) if np.any(d > 1) else ()
        if op.tied:
            # The block of the table goes to the rank across the diagonal, and its gradient comes back.
            across = width_in * width_out * several
            beside += (
                exposed_call("send", "forward", "tp_column", across),
                exposed_call("send", "backward", "tp_column", across),
            )
        return LocalGemm(
            m=tokens,
            n=width_out,
            k=width_in,
            groups=q,
            parameters=width_in * width_out + op.bias / q,
            expert=False,
            calls=(
                exposed_call("all_gather", "forward", "tp_row", strip),
                exposed_call("all_gather", "forward", "tp_column", matrix),
                exposed_call("all_gather", "backward", "tp_column", matrix),
                exposed_call("reduce_scatter", "backward", "tp_row", strip),
                exposed_call("all_gather", "backward", "tp_row", strip),
                exposed_call("reduce_scatter", "backward", "tp_column", matrix),
                *beside,
            ),
        )

    def vector_calls(self, op: Vector, columns: StrategyColumns, activation_bytes: float) -> tuple[Call, ...]:
        """Sums over a row for statistics of norms and of the loss; over a column for rows of a table of other ranks."""
        q, d = self.side(columns.tp), self.depth(columns.tp)
        tokens = columns.tokens / (q * d) * (q > 1)
        if op.reduce:
            found = tokens * q * (op.reduce / q) * activation_bytes
            rows, width = op.table or (0, 0)
            table = rows * width / q**2 * activation_bytes * (d > 1) * op.trained
            return (
                exposed_call("reduce_scatter", "forward", "tp_column", found),
                exposed_call("all_gather", "backward", "tp_column", found),
                *((exposed_call("all_reduce", "backward", "tp_depth", table),) if np.any(d > 1) else ()),
            )
        return statistics_calls(op, tokens, "tp_row", activation_bytes)

    def groups(self, columns: StrategyColumns) -> dict[str, Group]:
        """Rows are consecutive ranks, columns stand q apart, grids of a depth q x q."""
        q = self.side(columns.tp)
        one = np.ones(columns.rows, dtype=np.int64)
        return {"tp_row": (one, q), "tp_column": (q, q), "tp_depth": (q * q, self.depth(columns.tp))}

    def head_ranks(self, tp: Ranks) -> Ranks:
        """A row of the grid."""
        return self.side(tp)

    def weight_ranks(self, tp: Ranks) -> Ranks:
        """One grid."""
        return self.side(tp) ** 2

    def rules(self, model: ModelSpec, seq_len: int) -> tuple[DegreeRule, ...]:
        """The rules of a grid, as `grid_rules`."""
        return grid_rules(
            self.name, model, sequences=lambda tp: self.side(tp) * self.depth(tp), width=lambda tp: self.side(tp)
        )

    def blocks(self, tp: int) -> TensorBlocks | None:
        """Blocks (i, j) on rank (i, j); a strip of the input along its row, one of the matrix along its column."""
        ranks = np.array([tp])
        q, d = int(self.side(ranks)[0]), int(self.depth(ranks)[0])
        held = ActivationBlocks(samples=("depth", "row"), width=("column",))
        product = BlockProduct(row_shards=("row",), columns=("column",), gather=("width", ("column",)))
        axes = (("depth", d), ("row", q), ("column", q))
        return TensorBlocks(axes=axes, stream=held, inner=held, into=product, out=product, table=("row",))


class Deep(TwoDimensions):
    """d square grids with the same blocks of matrices, which share the sequences."""

    name = "25d"
    summary = "d square grids with the same blocks of matrices (Tesseract)"


def statistics_calls(
    op: Vector, tokens: Float[np.ndarray, "rows"], group: str, activation_bytes: float
) -> tuple[Call, ...]:
    """Sums of statistics over the ranks that share the width of a norm, or the vocabulary.

    A norm sums one number per token, or two where it has a shift as well as a scale (mean and variance), forward and
    backward; the loss three, forward: the largest logit, the sum of exponentials, and the logit of the wanted token.

    Args:
        op: memory-bound operator.
        tokens: the tokens of a rank, 0 where a group has one rank.
        group: the group of the ranks.
        activation_bytes: the bytes per element.
    """
    each = max(activation_bytes, FP32_BYTES)
    if op.module == "loss":
        return (exposed_call("all_reduce", "forward", group, tokens * (LOSS_STATISTICS * each)),)
    if op.module != "layernorm":
        return ()
    shifted = 2 * op.parameters > op.forward_elements
    sums = tokens * ((2 if shifted else 1) * each)
    return exposed_call("all_reduce", "forward", group, sums), exposed_call("all_reduce", "backward", group, sums)


LOSS_STATISTICS = 3


def exposed_call(
    kind: Kind, phase: Literal["forward", "backward"], group: str, payload_bytes: Float[np.ndarray, "rows"]
) -> Call:
    """A collective that nothing hides."""
    return Call(kind=kind, category="tp", phase=phase, group=group, payload_bytes=payload_bytes)
