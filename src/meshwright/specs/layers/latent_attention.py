"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.layers.core_attention import AttentionMixer, attention_work, output_gate
from meshwright.specs.layers.indexer import Indexer
from meshwright.specs.operators import Kept, Op, Vector, column_product, norm_pass, whole_product


@dataclass(frozen=True, slots=True, kw_only=True)
class Absorbed:
    """Sizes of attention whose keys and values are one latent for all heads (multi-query mode, same report)."""

    heads: int
    kv_rank: int
    rope_dim: int
    top_k: int
    kv_heads: int = 1
    causal: bool = True

    @property
    def head_dim(self) -> int:
        """The latent and the rotary part."""
        return self.kv_rank + self.rope_dim

    @property
    def value_width(self) -> int:
        """The latent, of every head."""
        return self.heads * self.kv_rank

    @property
    def window(self) -> int:
        """Keys that a query sees at most: those picked."""
        return self.top_k


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(AttentionMixer):
    """Multi-head latent attention: queries and keys/values through low-rank latents (DeepSeek-V2, section 2.1)."""

    kind: Literal["latent"] = "latent"
    heads: int
    q_rank: int | None
    """Width of the query latent; None projects queries directly."""
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    causal: bool = True
    indexer: Indexer | None = None
    """Queries attend to keys that an indexer picks, all heads to the same: keys and values stay latents, whose
    up-projections go to queries and outputs (DeepSeek-V3.2, GLM-5)."""
    latent_norms: bool = True
    """Norms on the latents."""
    gate: Literal["none", "head", "wide", "latent"] = "none"
    """Output gates: a number a head (Ling 3), as wide as the values (Hunyuan 4), or made with the queries of the query
    latent and its norm side by side (A.X K2)."""
    sinks: bool = False
    """One learned sink logit per head."""
    window: int | None = None
    """Keys that a query sees at most; None for all (dots3.note has layers of both kinds)."""

    def __post_init__(self) -> None:
        check = Check("latent attention")
        check.all_whole(self, "heads", "kv_rank", "nope_dim", "value_dim")
        check.whole("rope_dim", self.rope_dim, low=0)
        check.one_of("gate", self.gate, ("none", "head", "wide", "latent"))
        if self.q_rank is not None:
            check.whole("q_rank", self.q_rank)
        if self.window is not None:
            check.whole("window", self.window)
        picks = self.indexer is not None
        check.that(self.causal or not picks, "causal", self.causal, "an indexer picks among earlier keys")
        check.done()

    @property
    def kv_heads(self) -> int:
        """Every head has its own keys and values after the up-projection."""
        return self.heads

    @property
    def head_dim(self) -> int:
        """Width of a query or key head."""
        return self.nope_dim + self.rope_dim

    @property
    def query_width(self) -> int:
        """Columns of all query heads."""
        return self.heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Columns of the attention output."""
        return self.heads * self.value_dim

    def parameters(self, hidden: int) -> int:
        """Weights of the down- and up-projections, the norms on the latents, the indexer."""
        queries = hidden * self.query_width
        if self.q_rank is not None:
            queries = hidden * self.q_rank + self._query_in(hidden) * self.heads * self._query_columns
        latents = hidden * (self.kv_rank + self.rope_dim)
        up = self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
        picks = self.indexer.parameters(hidden, self.q_rank or hidden) if self.indexer else 0
        gates = hidden * self.heads * self._gate_columns + (self.heads if self.sinks else 0)
        return queries + latents + self._scales + up + self.value_width * hidden + picks + gates

    def _query_in(self, hidden: int) -> int:
        """Width that queries are made of."""
        return (self.q_rank or hidden) * (2 if self.gate == "latent" else 1)

    @property
    def _query_columns(self) -> int:
        """Columns per head of the product that makes queries."""
        return self.head_dim + (self.value_dim if self.gate == "latent" else 0)

    @property
    def _gate_columns(self) -> int:
        """Columns per head of the separate product that makes gates."""
        return {"head": 1, "wide": self.value_dim}.get(self.gate, 0)

    @property
    def _scales(self) -> int:
        return (self.q_rank or 0) + self.kv_rank if self.latent_norms else 0

    def state_bytes(self, seq_len: int, element_bytes: float = 2.0) -> float:
        """The latents, and the indexer's keys; arguments as `Mixer.state_bytes`."""
        index = self.indexer.dim if self.indexer and self.indexer.own else 0
        return float(seq_len * (self.kv_rank + self.rope_dim + index) * element_bytes)

    def work(self, context: LayerContext) -> PartWork:
        """Down to the latents, norms on them, up to heads; every head has keys and values of its own.

        With an indexer all heads see one key and value, the latent, and the products that would make keys and values
        of it are done on queries and outputs instead: as many FLOP.
        """
        ops, kept = self._projections(context.hidden)
        gate = None if self.gate == "none" else self._output_gate(context.hidden, ops, kept)
        if self.indexer is None:
            return attention_work(self, context, ops, kept, gate=gate)
        absorbed = Absorbed(heads=self.heads, kv_rank=self.kv_rank, rope_dim=self.rope_dim, top_k=self.indexer.top_k)
        return attention_work(absorbed, context, ops, kept, value_dim=self.value_dim, gate=gate)

    def _output_gate(self, hidden: int, ops: list[Op], kept: list[Kept]) -> Vector:
        """What multiplies the output; the product that makes it and what it keeps are added to the others."""
        if self._gate_columns:
            ops.append(column_product("output gates", hidden, ((self.heads, self._gate_columns),)))
        read = self.value_width + self.heads * (self._gate_columns or self.value_dim)
        kept.append(Kept(name="gate and what it gates", elements=read, role="activation", region="tensor"))
        return output_gate(self.value_width + read)

    def _projections(self, hidden: int) -> tuple[list[Op], list[Kept]]:
        latent = self.kv_rank + self.rope_dim
        queries = self.q_rank or 0
        down_out = queries + latent
        query_in = self._query_in(hidden)
        own = ((1, queries),) if queries else ()
        up = "key-value up" if self.indexer is None else "keys and values absorbed"
        pairs = ((self.heads, self.nope_dim + self.value_dim),)
        ops: list[Op] = [
            replace(whole_product("latent down", hidden, down_out), outputs=(*own, (1, latent))),
            norm_pass("latent norms", queries + self.kv_rank, parameters=self._scales),
            column_product(
                "query up" if own else "latent queries",
                query_in,
                ((self.heads, self._query_columns),),
                module="mla_up_proj",
            ),
            column_product(up, self.kv_rank, pairs, module="mla_up_proj", gather=latent),
        ]
        width = self.query_width * 2 + self.value_width
        if self.indexer is not None:
            ops += self.indexer.ops(hidden, self.q_rank or hidden)
            width = 2 * self.heads * (self.kv_rank + self.rope_dim)
        ops.append(
            Vector(
                name="rotary and concatenation",
                module="mla_up_proj",
                region="tensor",
                forward_elements=2 * width,
                backward_elements=2 * width,
                parameters=self.heads if self.sinks else 0,
            )
        )
        if self.indexer is not None:
            wide = self.heads * (self.kv_rank + self.rope_dim)
            kept = [
                Kept(name="latents", elements=2 * down_out, role="activation", region="sequence"),
                Kept(name="queries", elements=wide, role="activation", region="tensor", freed_by=("mla_up_proj",)),
                Kept(name="latent outputs", elements=self.heads * self.kv_rank, role="activation", region="tensor"),
                *self.indexer.kept(),
            ]
            return ops, kept
        kept = [
            Kept(name="latents", elements=2 * down_out, role="activation", region="sequence"),
            Kept(
                name="queries",
                elements=self.query_width,
                role="activation",
                region="tensor",
                freed_by=("mla_up_proj",),
            ),
            Kept(
                name="keys and values",
                elements=self.query_width + self.value_width,
                role="activation",
                region="tensor",
                freed_by=("mla_up_proj",),
            ),
        ]
        return ops, kept
