"""Multi-head, grouped-query and multi-query attention (Vaswani et al. 2017; Ainslie et al. 2023, arXiv 2305.13245)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.layers.core_attention import AttentionMixer, attention_work
from meshwright.specs.operators import Kept, Linear, Op, Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(AttentionMixer):
    """Multi-head, grouped-query or multi-query attention, optionally within a sliding window."""

    kind: Literal["grouped"] = "grouped"
    heads: int
    kv_heads: int
    """Equal to `heads` for multi-head, 1 for multi-query attention."""
    head_dim: int
    window: int | None = None
    """Keys a query sees, itself included; None sees all before it."""
    causal: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    gate: bool = False
    """An output gate of the width of the queries (some recent models)."""
    sinks: bool = False
    """One learned sink logit per head (gpt-oss)."""

    def __post_init__(self) -> None:
        check = Check("attention")
        good = [check.whole(name, getattr(self, name)) for name in ("heads", "kv_heads", "head_dim")]
        if self.window is not None:
            check.whole("window", self.window)
        if all(good):
            check.that(
                self.heads % self.kv_heads == 0,
                "kv_heads",
                self.kv_heads,
                f"must divide heads = {self.heads}",
                "use a divisor of the number of query heads",
            )
        check.done()

    @property
    def query_width(self) -> int:
        """Columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Columns of the attention output."""
        return self.heads * self.head_dim

    def parameters(self, hidden: int) -> int:
        """Weights and biases of the projections."""
        weights = hidden * (self.query_width * (2 if self.gate else 1) + 2 * self.kv_width) + self.query_width * hidden
        biases = (self.query_width + 2 * self.kv_width if self.qkv_bias else 0) + (hidden if self.out_bias else 0)
        return weights + biases + (2 * self.head_dim if self.qk_norm else 0) + (self.heads if self.sinks else 0)

    @property
    def shared_kv_heads(self) -> int:
        """All of them."""
        return self.kv_heads

    def work(self, context: LayerContext) -> PartWork:
        """One product makes queries, keys and values."""
        return attention_work(self, context, *self._projections(context.hidden), out_bias=self.out_bias)

    def _projections(self, hidden: int) -> tuple[list[Op], list[Kept]]:
        gate = self.heads if self.gate else 0
        qkv = Linear(
            name="qkv",
            module="",
            inputs=((1, hidden),),
            outputs=(
                (self.heads + gate, self.head_dim),
                (self.kv_heads, 2 * self.head_dim),
            ),
            split="column",
            gather=hidden,
            bias=self.query_width + 2 * self.kv_width if self.qkv_bias else 0,
        )
        width = self.query_width + self.kv_width
        rotate = Vector(
            name="rotary",
            module="",
            region="tensor",
            forward_elements=2 * width,
            backward_elements=2 * width,
            parameters=(2 * self.head_dim if self.qk_norm else 0) + (self.heads if self.sinks else 0),
        )
        kept = [
            Kept(name="queries", elements=self.query_width, role="activation", region="tensor"),
            Kept(name="keys and values", elements=2 * self.kv_width, role="activation", region="tensor"),
        ]
        return [qkv, rotate], kept
