"""Attention over a window and over compressed earlier tokens (DeepSeek-V4 report, 2026-04, section 2.3).

Shapes as in `modeling_deepseek_v4.py` of transformers, as of 2026-11. One head of keys, which are the values too;
queries through a latent; the output through a product of low rank per group of heads. Beyond the window a layer sees
nothing (`rate` 0), every entry that stands for `rate` tokens (128: heavily compressed), or those that an indexer picks
among entries of overlapping tokens (4: compressed sparse).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.layers.core_attention import AttentionMixer, kept_scores
from meshwright.specs.layers.indexer import Indexer
from meshwright.specs.operators import (
    CoreAttention,
    Kept,
    Linear,
    Op,
    Scores,
    Vector,
    column_product,
    norm_pass,
    row_product,
    whole_product,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention(AttentionMixer):
    """Multi-query attention whose earlier keys stand for several tokens each."""

    kind: Literal["compressed"] = "compressed"
    heads: int
    head_dim: int
    q_rank: int
    output_groups: int
    """Groups of heads that share a product of low rank."""
    output_rank: int
    """Rank of each group's output product."""
    window: int
    rate: int = 0
    """Tokens that an entry beyond the window stands for; 0 for a layer without such entries."""
    indexer: Indexer | None = None
    """Picks entries; without it a query sees all of them."""
    causal: bool = True

    def __post_init__(self) -> None:
        check = Check("compressed attention")
        good = check.all_whole(self, "heads", "head_dim", "q_rank", "output_groups", "output_rank", "window")
        if check.whole("rate", self.rate, 0) and self.indexer is not None:
            check.that(self.rate > 0, "rate", self.rate, "an indexer picks among entries, of which there are none")
        check.that(self.causal or not self.rate, "causal", self.causal, "entries represent earlier tokens")
        if good:
            fits = self.heads % self.output_groups == 0
            check.that(fits, "output_groups", self.output_groups, f"must divide heads = {self.heads}")
        check.done()

    @property
    def kv_heads(self) -> int:
        """One for all heads."""
        return 1

    @property
    def value_width(self) -> int:
        """Columns of the attention output."""
        return self.heads * self.head_dim

    @property
    def divided(self) -> tuple[tuple[str, int], ...]:
        """Heads, in whole groups."""
        return (("attention heads", self.heads), ("output groups", self.output_groups))

    @property
    def series(self) -> int:
        """Copies of keys that a token makes: two where entries overlap."""
        return 2 if self.indexer else 1

    def _entries(self, width: int) -> int:
        """Weights of what makes entries of this width: a bias per place of a token in its entry, and a norm."""
        return self.rate * self.series * width + width

    def parameters(self, hidden: int) -> int:
        """Queries, keys, output, sinks; what makes entries; what makes and scores the indexer's."""
        queries = hidden * self.q_rank + self.q_rank + self.q_rank * self.value_width
        keys = hidden * self.head_dim + self.head_dim
        grouped = self.output_groups * self.output_rank
        out = self.value_width * self.output_rank + grouped * hidden + self.heads
        entries = 0
        if self.rate:
            entries = 2 * hidden * self.series * self.head_dim + self._entries(self.head_dim)
        return queries + keys + out + entries + self._index_parameters(hidden)

    def _index_parameters(self, hidden: int) -> int:
        index = self.indexer
        if index is None:
            return 0
        made = hidden * (2 * self.series * index.dim + index.heads)
        return made + self.q_rank * index.heads * index.dim + self._entries(index.dim)

    def state_bytes(self, seq_len: int, element_bytes: float = 2.0) -> float:
        """The window's keys, and entries of attention and indexer; arguments as `Mixer.state_bytes`."""
        entries = seq_len // self.rate if self.rate else 0
        width = self.head_dim + (self.indexer.dim if self.indexer else 0)
        return float((min(seq_len, self.window) * self.head_dim + entries * width) * element_bytes)

    def describe(self) -> dict[str, object]:
        """Heads, window and entries."""
        sizes = {"heads": self.heads, "head_dim": self.head_dim, "window": self.window, "rate": self.rate}
        return {**sizes, "picked": self.indexer.top_k if self.indexer else None}

    def work(self, context: LayerContext) -> PartWork:
        """Down and up to queries, entries, the picking, core attention, two products out."""
        hidden, heads, dim = context.hidden, self.heads, self.head_dim
        core = CoreAttention(
            name="core attention",
            module="core_attn",
            heads=heads,
            kv_heads=1,
            head_dim=dim,
            value_dim=dim,
            window=self.window,
            causal=self.causal,
            entry=self.rate,
            picked=self.indexer.top_k if self.indexer else None,
        )
        ops: list[Op] = [
            _products("queries and keys down", hidden, self.q_rank, dim),
            norm_pass("latent norms", self.q_rank + dim, parameters=self.q_rank + dim),
            column_product("query up", self.q_rank, ((heads, dim),), module="mla_up_proj", gather=self.q_rank + dim),
            Vector(
                name="norm and rotary",
                module="mla_up_proj",
                region="tensor",
                forward_elements=4 * self.value_width,
                backward_elements=4 * self.value_width,
                parameters=heads,
            ),
            *self._entry_ops(hidden),
            core,
            # Each group of heads has a matrix of its own: a sum of rows, without the columns of other groups.
            Linear(
                name="grouped output",
                module="",
                inputs=((heads, dim),),
                outputs=((1, self.output_rank),),
                split="row",
            ),
            row_product("attention out", ((self.output_groups, self.output_rank),), hidden),
        ]
        grouped = self.output_groups * self.output_rank
        kept = (
            Kept(
                name="qkv input",
                elements=hidden,
                role="input",
                region="sequence",
                freed_by=("layernorm",),
                weights_of=tuple(op.name for op in ops if isinstance(op, Linear) and op.inputs == ((1, hidden),)),
            ),
            Kept(name="latents", elements=2 * (self.q_rank + dim), role="activation", region="sequence"),
            Kept(
                name="queries",
                elements=self.value_width,
                role="activation",
                region="tensor",
                freed_by=("mla_up_proj",),
            ),
            *self._entries_kept(),
            *kept_scores(core, context),
            Kept(name="attention output", elements=self.value_width, role="activation", region="tensor"),
            Kept(
                name="attention out input",
                elements=grouped,
                role="input",
                region="tensor",
                weights_of=("attention out",),
            ),
        )
        return PartWork(ops=tuple(ops), kept=kept)

    def _entry_ops(self, hidden: int) -> list[Op]:
        if not self.rate:
            return []
        width, index = self.series * self.head_dim, self.indexer
        ops: list[Op] = [
            _products("entries and their gates", hidden, width, width),
            norm_pass("pooled entries", 2 * width, parameters=self._entries(self.head_dim)),
        ]
        if index is None:
            return ops
        return [
            *ops,
            whole_product("entry queries", self.q_rank, index.heads * index.dim),
            _products("index entries, gates and weights", hidden, *[self.series * index.dim] * 2, index.heads),
            norm_pass("pooled index entries", 2 * self.series * index.dim, parameters=self._entries(index.dim)),
            Scores(
                name="index scores",
                module="core_attn",
                heads=index.heads,
                dim=index.dim,
                picked=index.top_k,
                entry=self.rate,
            ),
        ]

    def _entries_kept(self) -> list[Kept]:
        if not self.rate:
            return []
        made = Kept(
            name="entries and their gates",
            elements=2 * self.series * self.head_dim,
            role="activation",
            region="sequence",
        )
        if self.indexer is None:
            return [made]
        width = self.indexer.heads * (self.indexer.dim + 1) + 2 * self.series * self.indexer.dim
        inputs = Kept(name="index inputs", elements=width, role="activation", region="sequence")
        picks = Kept(name="picked entries", elements=self.indexer.top_k, role="fp32", region="sequence")
        return [made, inputs, picks]


def _products(name: str, inputs: int, *widths: int) -> Linear:
    """Products of one input that every tensor rank holds whole, priced as one."""
    return replace(whole_product(name, inputs, sum(widths)), outputs=tuple((1, width) for width in widths))
