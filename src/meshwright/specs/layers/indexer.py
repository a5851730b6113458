"""The lightning indexer of sparse attention (DeepSeek-V3.2-Exp report, 2025-09, section 2.1).

A small product scores every earlier key; a query then attends to the best `top_k` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.specs.check import Check
from meshwright.specs.operators import Kept, Op, Scores, norm_pass, whole_product


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Heads of queries and one head of keys that pick keys; a layer may use the picks of the layer before it."""

    heads: int
    dim: int
    top_k: int
    """Keys that a query attends to."""
    own: bool = True
    """False where the layer takes over the picks of an earlier one (GLM-5.2)."""
    block: int = 1
    """Keys that are picked together, by the best score among them (MiniMax-M3); `top_k` counts keys."""
    weighted: bool = True
    """Scores of heads are added up by weights of their own; otherwise each group of heads picks for itself."""

    def __post_init__(self) -> None:
        check = Check("indexer")
        if check.all_whole(self, "heads", "dim", "top_k", "block"):
            whole = self.top_k % self.block == 0
            check.that(whole, "block", self.block, f"must divide top_k = {self.top_k}", "give top_k in keys")
        check.done()

    def parameters(self, hidden: int, query_in: int) -> int:
        """Queries from their latent, keys, a weight per head; a LayerNorm of keys, or scales of both.

        Args:
            hidden: width of the residual stream.
            query_in: width that queries are made of.
        """
        if not self.own:
            return 0
        return query_in * self.heads * self.dim + hidden * self._key_columns + 2 * self.dim

    @property
    def _key_columns(self) -> int:
        return self.dim + (self.heads if self.weighted else 0)

    def ops(self, hidden: int, query_in: int) -> list[Op]:
        """Operators; every tensor rank has the indexer whole and works on its own tokens. Arguments as `parameters`."""
        if not self.own:
            return []
        return [
            whole_product("index queries", query_in, self.heads * self.dim),
            replace(
                whole_product("index keys and weights", hidden, self._key_columns),
                outputs=((1, self.dim), (self.heads, 1)) if self.weighted else ((1, self.dim),),
            ),
            norm_pass("index norm", (self.heads + 1) * self.dim, parameters=2 * self.dim),
            Scores(
                name="index scores",
                module="core_attn",
                heads=self.heads,
                dim=self.dim,
                picked=self.top_k,
                block=self.block,
            ),
        ]

    def kept(self) -> list[Kept]:
        """Queries, keys, weights, and the places of the picked keys in 32 bits."""
        sets = 1 if self.weighted else self.heads
        picks = Kept(name="picked keys", elements=sets * self.top_k / self.block, role="fp32", region="sequence")
        if not self.own:
            return []
        width = self.heads * self.dim + self._key_columns
        return [Kept(name="index inputs", elements=width, role="activation", region="sequence"), picks]
