"""3D tensor parallelism: every matrix and activation in q^3 parts on a cube of ranks.

Rank (i, j, l) holds rows (i, j) and columns l of an activation [M, K], rows l and columns (j, i) of a matrix [K, N].
A product gathers the rows of its input over j and the columns of its matrix over i, multiplies, and reduces and
scatters the partial sums over l; its output has rows (i, l) and columns j, so that the second product of a pair takes
j and l in each other's place and restores the order. Per rank and product, received:

    forward     (q-1)/q^3 (M K + K N + M N)
    backward    as much: the gradient of the output is gathered, those of input and matrix are reduced and scattered

Gathered operands are kept from forward to backward, q times a rank's own part; recomputed layers gather them again.
Source: Bian et al. 2021 (arXiv 2105.14450), section 3.
"""

from __future__ import annotations

import numpy as np

from meshwright.shapes import Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import Linear, Vector
from meshwright.strategies.base import Call, DegreeRule, Group, LocalGemm, TensorStrategy
from meshwright.strategies.blocks import ActivationBlocks, BlockProduct, TensorBlocks
from meshwright.strategies.columns import StrategyColumns, full_width
from meshwright.strategies.grid_rules import grid_rules, sides
from meshwright.strategies.tensor_2d import exposed_call, statistics_calls

Ranks = Int[np.ndarray, "rows"]


class ThreeDimensions(TensorStrategy):
    """Matrices and activations in blocks on a cube."""

    name = "3d"
    summary = "blocks of matrices and activations on a q x q x q cube (Colossal-AI)"
    runs = True

    def side(self, tp: Ranks) -> Ranks:
        """Ranks along an edge of the cube: q."""
        return sides(self.name, tp)[:, 0]

    def linear(self, op: Linear, columns: StrategyColumns, activation_bytes: float) -> LocalGemm:
        """One product of gathered blocks; the row split of a pair is the product that leads back."""
        q = self.side(columns.tp)
        tokens, width_in, width_out = columns.tokens / q, full_width(op.inputs) / q, full_width(op.outputs) / q
        several = activation_bytes * (q > 1)
        given, matrix, made = (size * several for size in (tokens * width_in, width_in * width_out, tokens * width_out))
        rows, sums = ("tp_l", "tp_j") if op.split == "row" else ("tp_j", "tp_l")
        return LocalGemm(
            m=tokens,
            n=width_out,
            k=width_in,
            groups=1.0,
            parameters=width_in * width_out / q + op.bias / q,
            expert=False,
            calls=(
                exposed_call("all_gather", "forward", rows, given),
                exposed_call("all_gather", "forward", "tp_i", matrix),
                exposed_call("reduce_scatter", "forward", sums, made),
                exposed_call("all_gather", "backward", sums, made),
                exposed_call("reduce_scatter", "backward", rows, given),
                exposed_call("reduce_scatter", "backward", "tp_i", matrix),
            ),
        )

    def vector_calls(self, op: Vector, columns: StrategyColumns, activation_bytes: float) -> tuple[Call, ...]:
        """Sums over the columns of the stream for statistics; over the rows for rows of a table of other ranks."""
        q = self.side(columns.tp)
        tokens = columns.tokens / q**2 * (q > 1)
        if op.reduce:
            found = tokens * q**2 * (op.reduce / q) * activation_bytes
            return (
                exposed_call("reduce_scatter", "forward", "tp_ij", found),
                exposed_call("all_gather", "backward", "tp_ij", found),
            )
        return statistics_calls(op, tokens, "tp_j" if op.module == "loss" else "tp_l", activation_bytes)

    def groups(self, columns: StrategyColumns) -> dict[str, Group]:
        """l runs over consecutive ranks, j over every q-th, i over every q^2-th; i and j together over every q-th."""
        q = self.side(columns.tp)
        one = np.ones(columns.rows, dtype=np.int64)
        return {"tp_l": (one, q), "tp_j": (q, q), "tp_i": (q * q, q), "tp_ij": (q, q * q)}

    def head_ranks(self, tp: Ranks) -> Ranks:
        """An edge of the cube."""
        return self.side(tp)

    def kept_beside(self, op: Linear, columns: StrategyColumns) -> Float[np.ndarray, "rows"]:
        """What it gathered: the other parts of an edge of its input and of its matrix."""
        q = self.side(columns.tp)
        width_in, width_out = full_width(op.inputs) / q, full_width(op.outputs) / q
        return (columns.tokens / q + width_out) * width_in * (1.0 - 1.0 / q)

    def rules(self, model: ModelSpec, seq_len: int) -> tuple[DegreeRule, ...]:
        """The rules of a grid, as `grid_rules`; two edges share sequences, and the columns of matrices."""
        return grid_rules(
            self.name, model, sequences=lambda tp: self.side(tp) ** 2, width=lambda tp: self.side(tp) ** 2
        )

    def blocks(self, tp: int) -> TensorBlocks | None:
        """Rows over i and j, columns over l, and between the products of a pair with j and l exchanged."""
        q = int(self.side(np.array([tp]))[0])

        def product(columns: str, other: str) -> BlockProduct:
            return BlockProduct(
                rows=(columns,),
                columns=(other,),
                column_shards=("i",),
                gather=("samples", (other,)),
                scatter=("samples", (columns,)),
                again=False,
            )

        return TensorBlocks(
            axes=(("i", q), ("j", q), ("l", q)),
            stream=ActivationBlocks(samples=("i", "j"), width=("l",)),
            inner=ActivationBlocks(samples=("i", "l"), width=("j",)),
            into=product("l", "j"),
            out=product("j", "l"),
            table=("j", "i"),
        )
