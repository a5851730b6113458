"""Linear attention with a fixed decay per head (arXiv 2405.17381), as MiniMax-01 has it (arXiv 2501.08313)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.layers.recurrent import (
    RecurrentMixer,
    chunked_scan,
    gated_norm,
    product_in,
    product_out,
    recurrent_work,
)
from meshwright.specs.operators import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention(RecurrentMixer):
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
        for name in ("heads", "head_dim", "chunk"):
            check.whole(name, getattr(self, name))
        check.one_of("norm", self.norm, ("all", "head", "none"))
        check.done()

    @property
    def width(self) -> int:
        """Of all heads."""
        return self.heads * self.head_dim

    @property
    def state_elements(self) -> int:
        """head_dim x head_dim per head."""
        return self.width * self.head_dim

    def parameters(self, hidden: int) -> int:
        """Products and norm."""
        scales = {"all": self.width, "head": self.head_dim, "none": 0}[self.norm]
        return hidden * self.width * (5 if self.gate else 4) + scales + (2 * self.head_dim if self.qk_norm else 0)

    def describe(self) -> dict[str, object]:
        """Heads and their width."""
        return {"heads": self.heads, "head_dim": self.head_dim, "chunk": self.chunk}

    def work(self, context: LayerContext) -> PartWork:
        """One product makes queries, keys, values and gate."""
        heads, dim, width = self.heads, self.head_dim, self.width
        columns = 4 if self.gate else 3
        ops = (
            product_in("queries, keys and values", context.hidden, ((heads, columns * dim),)),
            *((_query_key_norms(width, dim),) if self.qk_norm else ()),
            chunked_scan("linear attention", heads=heads, keys=(1.0, dim, dim), chunk=self.chunk),
            gated_norm(
                width,
                parameters=dim if self.norm == "head" else 0,
                cut_parameters=width if self.norm == "all" else 0,
                gate=self.gate,
            ),
            product_out("linear attention out", context.hidden, heads, dim),
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
