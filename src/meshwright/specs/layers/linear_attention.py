"""Linear attention with a fixed decay per head (arXiv 2405.17381), as MiniMax-01 has it (arXiv 2501.08313)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.layers.recurrent import (
    SquareStateMixer,
    chunked_scan,
    gated_norm,
    recurrent_work,
)
from meshwright.specs.operators import Vector, column_product, row_product


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention(SquareStateMixer):
    """Queries, keys and values of one width, an output gate and a norm over all heads."""

    kind: Literal["linear"] = "linear"
    heads: int
    head_dim: int
    chunk: int = 256
    """Block of `modeling_minimax_text_01.py`, as of 2026-11."""
    gate: bool = True
    norm: Literal["all", "head", "none"] = "all"
    """Scales of all heads, of one head for all, or none."""
    qk_norm: bool = False
    """Whether queries and keys of a head are normed, with scales that all heads share (Ring-V2.5)."""

    def __post_init__(self) -> None:
        check = Check("linear attention")
        check.all_whole(self, "heads", "head_dim", "chunk")
        check.one_of("norm", self.norm, ("all", "head", "none"))
        check.done()

    def parameters(self, hidden: int) -> int:
        """Products and norm."""
        scales = {"all": self.width, "head": self.head_dim, "none": 0}[self.norm]
        return hidden * self.width * (5 if self.gate else 4) + scales + (2 * self.head_dim if self.qk_norm else 0)

    def work(self, context: LayerContext) -> PartWork:
        """One product makes queries, keys, values and gate."""
        heads, dim, width = self.heads, self.head_dim, self.width
        columns = 4 if self.gate else 3
        ops = (
            column_product("queries, keys and values", context.hidden, ((heads, columns * dim),)),
            *((_query_key_norms(width, dim),) if self.qk_norm else ()),
            chunked_scan("linear attention", heads=heads, keys=(1.0, dim, dim), chunk=self.chunk),
            gated_norm(
                width,
                parameters=dim if self.norm == "head" else 0,
                cut_parameters=width if self.norm == "all" else 0,
                gate=self.gate,
            ),
            row_product("linear attention out", ((heads, dim),), context.hidden),
        )
        tensors = {
            "queries, keys and values": columns * width,
            "scan output": width,
        }
        return recurrent_work(context, ops, tensors, width)


def _query_key_norms(width: int, head_dim: int) -> Vector:
    """Queries and keys are read and written; backward reads them and their gradients and writes those."""
    return Vector(
        name="norms of queries and keys",
        module="layernorm",
        region="tensor",
        forward_elements=4 * width,
        backward_elements=6 * width,
        parameters=2 * head_dim,
    )
