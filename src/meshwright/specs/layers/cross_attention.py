"""Cross attention: queries of one stream, keys and values of another (Vaswani et al. 2017, section 3.2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.layers.core_attention import GroupedMixer, attention_work
from meshwright.specs.operators import Kept, Op, Vector, column_product


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention(GroupedMixer):
    """Every query sees all tokens of the stream that is read."""

    kind: Literal["cross"] = "cross"
    memory: str
    """Name of the stream that is read."""
    memory_width: int
    """Width of its tokens."""
    heads: int
    kv_heads: int
    head_dim: int
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    gates: int = 0
    """Learned scalars that scale what it and the part behind it add."""

    def __post_init__(self) -> None:
        check = Check("cross attention")
        check.whole("memory_width", self.memory_width)
        self.check_sizes(check)
        check.whole("gates", self.gates, 0)
        check.done()

    @property
    def reads(self) -> str:
        """The stream that keys and values are made of."""
        return self.memory

    @property
    def window(self) -> None:
        """None: nothing is out of sight."""
        return None

    @property
    def causal(self) -> bool:
        """False: the tokens that are read come before all queries."""
        return False

    @property
    def value_width(self) -> int:
        """Columns of the attention output."""
        return self.heads * self.head_dim

    @property
    def _kv_bias(self) -> int:
        return self.kv_width * (self.k_bias + self.v_bias)

    @property
    def _scales(self) -> int:
        return (2 * self.head_dim if self.qk_norm else 0) + self.gates

    def parameters(self, hidden: int) -> int:
        """Weights and biases of the projections."""
        weights = 2 * hidden * self.query_width + 2 * self.memory_width * self.kv_width
        biases = self._kv_bias + (self.query_width if self.q_bias else 0) + (hidden if self.out_bias else 0)
        return weights + biases + self._scales

    def describe(self) -> dict[str, object]:
        """Heads and what is read."""
        return {"heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim, "memory": self.memory}

    def work(self, context: LayerContext) -> PartWork:
        """Queries of the layer's tokens, keys and values of those it reads."""
        project, kept = self._projections(context)
        return attention_work(self, context, project, kept, out_bias=self.out_bias, keys=context.memory)

    def _projections(self, context: LayerContext) -> tuple[list[Op], list[Kept]]:
        bias = self.query_width if self.q_bias else 0
        queries = column_product("queries", context.hidden, ((self.heads, self.head_dim),), bias=bias)
        made = ((self.kv_heads, 2 * self.head_dim),)
        keys = column_product("keys and values", self.memory_width, made, bias=self._kv_bias, tokens=context.memory)
        norms: list[Op] = []
        if self._scales:
            norms.append(
                Vector(
                    name="query norm",
                    module="",
                    region="tensor",
                    forward_elements=2 * self.query_width,
                    backward_elements=2 * self.query_width,
                    parameters=self._scales,
                )
            )
        kept = [
            Kept(name="queries", elements=self.query_width, role="activation", region="tensor"),
            Kept(
                name="keys and values",
                elements=2 * self.kv_width,
                role="activation",
                region="tensor",
                tokens=context.memory,
            ),
        ]
        return [queries, keys, *norms], kept
