"""Multi-head, grouped-query and multi-query attention (Vaswani et al. 2017; Ainslie et al. 2023, arXiv 2305.13245)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.layers.core_attention import GroupedMixer, attention_work, output_gate
from meshwright.specs.layers.indexer import Indexer
from meshwright.specs.operators import Kept, Op, Vector, column_product


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(GroupedMixer):
    """Multi-head, grouped-query or multi-query attention, optionally within a sliding window."""

    kind: Literal["grouped"] = "grouped"
    heads: int
    kv_heads: int
    """Equal to `heads` for multi-head, 1 for multi-query attention."""
    head_dim: int
    window: int | None = None
    """Keys a query sees, itself included; None sees all before it."""
    chunk: int | None = None
    """Tokens of a piece of the sequence whose queries see keys of that piece only (Llama 4)."""
    causal: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    qk_scales: Literal["head", "all", "none"] = "head"
    """Size of the scales of query and key norms: a head (Qwen3), all heads (OLMo 2), or none (Llama 4)."""
    softcap: bool = False
    """Scores go through a tanh before the softmax (Gemma 2)."""
    value_dim: int | None = None
    """Width of a head's values; None for `head_dim` (MiMo-V2-Flash has 128 beside 192)."""
    value_is_key: bool = False
    """One projection makes both (Gemma 4's global layers)."""
    own_keys: bool = True
    """Whether it makes keys and values; without, it attends to those of an earlier layer (end of Gemma 3n)."""
    gate: bool = False
    """An output gate of the width of the values (Qwen3-Next)."""
    head_gate: bool = False
    """An output gate of one number per head (Step-3.5)."""
    indexer: Indexer | None = None
    """Queries attend to keys that an indexer picks."""
    sinks: bool = False
    """One learned sink logit per head (gpt-oss)."""

    def __post_init__(self) -> None:
        check = Check("attention")
        self.check_sizes(check)
        for name in ("window", "chunk", "value_dim"):
            if getattr(self, name) is not None:
                check.whole(name, getattr(self, name))
        check.one_of("qk_scales", self.qk_scales, ("head", "all", "none"))
        own = self.value_dim in (None, self.head_dim)
        check.that(own or not self.value_is_key, "value_dim", self.value_dim, "values that are keys are as wide")
        picks = self.indexer is not None
        check.that(self.causal or not picks, "causal", self.causal, "an indexer picks among earlier keys")
        narrow = self.window is not None or self.chunk is not None
        check.that(
            not (picks and narrow), "indexer", "given", "a layer has a window, chunks or an indexer, one of them"
        )
        both = self.window is not None and self.chunk is not None
        check.that(not both, "chunk", self.chunk, "a layer has a window or chunks, not both")
        check.done()

    @property
    def value_width(self) -> int:
        """Columns of the attention output."""
        return self.heads * (self.value_dim or self.head_dim)

    @property
    def key_value_columns(self) -> int:
        """Columns that make keys and values, per key-value head; 0 where an earlier layer makes them."""
        if not self.own_keys:
            return 0
        return self.head_dim + (0 if self.value_is_key else self.value_dim or self.head_dim)

    @property
    def _gates(self) -> int:
        """Columns of output gates."""
        return (self.value_width if self.gate else 0) + (self.heads if self.head_gate else 0)

    @property
    def _scales(self) -> int:
        """Parameters of the query and key norms, and of sinks."""
        keys = (self.head_dim, self.kv_width) if self.own_keys else (0, 0)
        wide = {"head": self.head_dim + keys[0], "all": self.query_width + keys[1], "none": 0}[self.qk_scales]
        return (wide if self.qk_norm else 0) + (self.heads if self.sinks else 0)

    def state_bytes(self, seq_len: int, element_bytes: float = 2.0) -> float:
        """Keys and values, none where an earlier layer has them; arguments as `Mixer.state_bytes`."""
        return GroupedMixer.state_bytes(self, seq_len, element_bytes) if self.own_keys else 0.0

    def parameters(self, hidden: int) -> int:
        """Weights and biases of the projections, gates, scales, sinks, indexer."""
        made = self.query_width + self.kv_heads * self.key_value_columns
        weights = hidden * (made + self._gates + self.value_width)
        biases = (made if self.qkv_bias else 0) + (hidden if self.out_bias else 0)
        picks = self.indexer.parameters(hidden, hidden) if self.indexer else 0
        return weights + biases + self._scales + picks

    def work(self, context: LayerContext) -> PartWork:
        """One product makes queries, keys and values, or queries alone."""
        ops, kept = self._projections(context.hidden)
        sizes = self if self.indexer is None else replace(self, window=self.indexer.top_k, indexer=None)
        gate = output_gate(2 * self.value_width + self._gates) if self._gates else None
        return attention_work(sizes, context, ops, kept, out_bias=self.out_bias, gate=gate)

    def _projections(self, hidden: int) -> tuple[list[Op], list[Kept]]:
        value_dim = self.value_dim or self.head_dim
        made = (
            (self.heads, self.head_dim),
            *(((self.kv_heads, self.key_value_columns),) if self.own_keys else ()),
            *(((self.heads, value_dim),) if self.gate else ()),
            *(((self.heads, 1),) if self.head_gate else ()),
        )
        bias = self.query_width + self.kv_heads * self.key_value_columns if self.qkv_bias else 0
        qkv = column_product("qkv" if self.own_keys else "queries", hidden, made, bias=bias)
        width = self.query_width + (self.kv_width if self.own_keys else 0)
        rotate = Vector(
            name="rotary",
            module="",
            region="tensor",
            forward_elements=2 * width,
            backward_elements=2 * width,
            parameters=self._scales,
        )
        kept = [Kept(name="queries", elements=self.query_width, role="attention", region="tensor")]
        if self.own_keys:
            both = self.kv_width + self.kv_heads * value_dim
            kept.append(Kept(name="keys and values", elements=both, role="attention", region="tensor"))
        if self.qk_norm:
            kept.append(Kept(name="query and key norm input", elements=width, role="activation", region="tensor"))
        if self._gates:
            read = self._gates + self.value_width
            kept.append(Kept(name="gate and what it gates", elements=read, role="activation", region="tensor"))
        ops: list[Op] = [qkv, rotate]
        if self.indexer is not None:
            ops += self.indexer.ops(hidden, hidden)
            kept += self.indexer.kept()
        return ops, kept
