"""A learned residual of low rank beside attention (LAuReL-LR, arXiv 2411.07501, section 2.2; Gemma 3n).

It reads what attention reads, and a norm follows it; both outputs are added. Ranks hold it whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import LayerContext, Mixer, PartWork
from meshwright.specs.operators import Kept, norm_pass, whole_product


@dataclass(frozen=True, slots=True, kw_only=True)
class Laurel(Mixer):
    """Two products of low rank and a norm, each token by itself."""

    kind: Literal["laurel"] = "laurel"
    rank: int

    def __post_init__(self) -> None:
        check = Check("learned residual")
        check.whole("rank", self.rank)
        check.done()

    @property
    def heads(self) -> int:
        """None that ranks could share: it stands beside a mixer that has some."""
        return 1

    @property
    def divided(self) -> tuple[tuple[str, int], ...]:
        """Nothing: every rank holds it whole."""
        return ()

    def parameters(self, hidden: int) -> int:
        """Two matrices and a norm's scales."""
        return 2 * hidden * self.rank + hidden

    def describe(self) -> dict[str, object]:
        """Rank of the residual, by name."""
        return {"rank": self.rank}

    def work(self, context: LayerContext) -> PartWork:
        """Down, up, norm."""
        hidden, down, up = context.hidden, "residual low rank in", "residual low rank out"
        ops = (
            whole_product(down, hidden, self.rank),
            whole_product(up, self.rank, hidden),
            norm_pass("residual norm", hidden, parameters=hidden),
        )
        kept = (
            Kept(name="learned residual input", elements=hidden, role="input", region="sequence", weights_of=(down,)),
            Kept(name="low rank", elements=self.rank, role="input", region="sequence", weights_of=(up,)),
            Kept(name="learned residual norm input", elements=hidden, role="activation", region="sequence"),
        )
        return PartWork(ops=ops, kept=kept)
