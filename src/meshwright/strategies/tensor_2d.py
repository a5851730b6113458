"""2D tensor parallelism (Optimus): SUMMA on a q x q grid; matrices and activations are both cut in blocks.

Device (i, j) holds rows i of the tokens, columns j of every width, and block (i, j) of every matrix [K, N]:

    Y = X W       for l: X_il to row i, W_lj to column j, Y_ij += X_il W_lj
    dX = dY W'    for l: W_lj to column j, dY_ij W_lj' summed over row i
    dW = X' dY    for l: X_il to row i, X_il' dY_ij summed over column j

A product receives (q-1)/q^2 (M K + K N) elements forward and twice that backward; q broadcasts of a block move what one
all-gather of the strip does. Nothing hides them. Sequences are shared by the rows, so that attention is local.
Source: Xu et al. 2021 (arXiv 2104.05343), sections 3.1 and 3.2.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from meshwright.shapes import Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import Linear, Vector
from meshwright.strategies.base import (
    Call,
    Degrees,
    Group,
    Kind,
    LocalGemm,
    Rule,
    StrategyColumns,
    TensorStrategy,
    full_width,
)

STATISTICS = 2
"""Numbers per token that a norm sums over its columns: mean and variance."""


def side(tp: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
    """Ranks of a row or column of the grid: q, with q q = tp."""
    return np.rint(np.sqrt(tp)).astype(np.int64)


class TwoDimensions(TensorStrategy):
    """Matrices and activations in blocks on a square grid."""

    name = "2d"
    summary = "blocks of matrices and activations on a q x q grid (Optimus)"

    def linear(self, op: Linear, columns: StrategyColumns, activation_bytes: float) -> LocalGemm:
        """q products of blocks, and the strips of the input and of the matrix that cross rows and columns."""
        q = side(columns.tp)
        tokens, width_in, width_out = columns.tokens / q, full_width(op.inputs) / q, full_width(op.outputs) / q
        several = activation_bytes * (q > 1)
        strip = tokens * width_in * q * several
        matrix = width_in * width_out * q * several
        return LocalGemm(
            m=tokens,
            n=width_out,
            k=width_in,
            groups=q,
            parameters=width_in * width_out + op.bias / q,
            expert=False,
            calls=(
                _call("all_gather", "forward", "tp_row", strip),
                _call("all_gather", "forward", "tp_column", matrix),
                _call("all_gather", "backward", "tp_column", matrix),
                _call("reduce_scatter", "backward", "tp_row", strip),
                _call("all_gather", "backward", "tp_row", strip),
                _call("reduce_scatter", "backward", "tp_column", matrix),
            ),
        )

    def vector_calls(self, op: Vector, columns: StrategyColumns, activation_bytes: float) -> tuple[Call, ...]:
        """Sums over a row for a norm's statistics; over a column for rows of a table that other ranks hold."""
        q = side(columns.tp)
        tokens = columns.tokens / q * (q > 1)
        if op.reduce:
            found = tokens * q * (op.reduce / q) * activation_bytes
            return (
                _call("reduce_scatter", "forward", "tp_column", found),
                _call("all_gather", "backward", "tp_column", found),
            )
        if op.module != "layernorm":
            return ()
        sums = tokens * (STATISTICS * activation_bytes)
        return (
            _call("all_reduce", "forward", "tp_row", sums),
            _call("all_reduce", "backward", "tp_row", sums),
        )

    def groups(self, columns: StrategyColumns) -> dict[str, Group]:
        """Rows are consecutive ranks, columns stand q apart."""
        q = side(columns.tp)
        return {"tp_row": (np.ones(columns.rows, dtype=np.int64), q), "tp_column": (q, q)}

    def head_ranks(self, tp: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
        """A row of the grid."""
        return side(tp)

    def rules(self, model: ModelSpec, seq_len: int) -> tuple[Rule, ...]:
        """A square grid whose side divides widths, heads and the sequences of a micro-batch; dense models without cp.

        Heads are shared by q ranks where other strategies share them by tp, so that no more is asked of them here.
        """

        def whole(width: int) -> Rule:
            return Rule(
                "2d width",
                lambda d: width % side(d["tp"]) == 0,
                f"a row of the 2d grid shares a width of {width}",
                f"use a grid whose side divides {width}",
                "tp",
            )

        def square(d: Degrees) -> Float[np.ndarray, "rows"] | Int[np.ndarray, "rows"]:
            return side(d["tp"]) ** 2 == d["tp"]

        return (
            Rule("2d grid", square, "a 2d tensor group is a q x q grid", "use tp 4, 9, 16, 64 ...", "tp"),
            whole(model.hidden),
            Rule(
                "2d sequences",
                lambda d: d["mbs"] % side(d["tp"]) == 0,
                "the rows of a 2d grid share the sequences of a micro-batch",
                "use a micro-batch that the side of the grid divides",
                "mbs",
            ),
            Rule(
                "2d context",
                lambda d: d["cp"] == 1,
                "a 2d grid already spreads sequences over its rows; its exchanges with context ranks have no rule",
                "leave cp at 1",
                "cp",
            ),
            Rule(
                "2d experts",
                lambda d: np.full(len(d["tp"]), not model.is_moe),
                "how tokens on a 2d grid reach experts has no rule",
                "use a 1d tensor strategy",
                "tensor",
            ),
        )


def _call(
    kind: Kind,
    phase: Literal["forward", "backward"],
    group: Literal["tp_row", "tp_column"],
    payload_bytes: Float[np.ndarray, "rows"],
) -> Call:
    """A collective that nothing hides."""
    return Call(kind=kind, category="tp", phase=phase, group=group, payload_bytes=payload_bytes)
