"""RWKV-5, -6 and -7: time mixing with a state per head, and channel mixing (arXiv 2404.05892, arXiv 2503.14456)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import FeedForward, LayerContext, PartWork
from meshwright.specs.layers.recurrent import (
    SquareStateMixer,
    chunked_scan,
    gated_norm,
    recurrent_work,
)
from meshwright.specs.operators import (
    Kept,
    Linear,
    Op,
    Vector,
    activation_pass,
    column_product,
    row_product,
    whole_product,
)

RANKS = {5: (), 6: ("mix_rank", "decay_rank"), 7: ("decay_rank", "rate_rank", "gate_rank")}
"""Low ranks that a version has; the value rank of version 7 is 0 in the first layer."""
MIXES = {5: 4, 6: 6, 7: 6}
"""Blends of a token with the one before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RwkvTimeMix(SquareStateMixer):
    """Receptance, key, value and gate of blends of two tokens, and a decayed state per head."""

    units = "RWKV heads"
    kind: Literal["rwkv"] = "rwkv"
    version: Literal[5, 6, 7]
    heads: int
    head_dim: int
    mix_rank: int = 0
    """Rank of the blends that depend on the token (RWKV-6)."""
    decay_rank: int = 0
    """Rank of the decays that depend on the token (RWKV-6, -7)."""
    rate_rank: int = 0
    """Rank of the in-context learning rates (RWKV-7)."""
    value_rank: int = 0
    """Rank of the blend with the first layer's values (RWKV-7, not in the first layer)."""
    gate_rank: int = 0
    """Rank of the gate (RWKV-7)."""
    chunk: int = 16
    """Tokens of a chunk in the kernels of BlinkDL/RWKV-LM, as of 2026-11."""

    def __post_init__(self) -> None:
        check = Check("RWKV time mixing")
        check.all_whole(self, "heads", "head_dim", "chunk")
        if check.that(self.version in RANKS, "version", self.version, "must be one of 5, 6, 7"):
            for name in ("mix_rank", "decay_rank", "rate_rank", "gate_rank"):
                asked = name in RANKS[self.version]
                if check.whole(name, getattr(self, name), 1 if asked else 0) and not asked:
                    check.that(getattr(self, name) == 0, name, getattr(self, name), f"RWKV-{self.version} has none")
            if check.whole("value_rank", self.value_rank, 0) and self.version != 7:
                check.that(self.value_rank == 0, "value_rank", self.value_rank, f"RWKV-{self.version} has none")
        check.done()

    @property
    def window_elements(self) -> int:
        """The last token."""
        return self.width

    @property
    def products(self) -> int:
        """Columns in widths: receptance, key, value, and the gate where it has no low rank."""
        return 3 if self.version == 7 else 4

    def _ranks(self) -> int:
        """Columns of all low ranks."""
        mixes = 5 * self.mix_rank
        return mixes + self.decay_rank + self.rate_rank + self.value_rank + self.gate_rank

    def _shifts(self) -> int:
        """Vectors of the width of the stream: blends, and what low ranks are added to."""
        own = {5: 0, 6: 0, 7: 1 + bool(self.value_rank)}[self.version]  # rate, value; the decay is a head's
        return MIXES[self.version] + own

    def _scales(self) -> int:
        """Vectors of the width of all heads: decay, bonus, norm with its shift; key scales in version 7."""
        return 4 + (2 if self.version == 7 else 0)

    def parameters(self, hidden: int) -> int:
        """Products, low ranks, blends, and scales of heads."""
        matrices = hidden * self.width * (self.products + 1)
        wide = hidden * 5 * self.mix_rank  # blends come back to the stream, the others to heads
        ranks = hidden * self._ranks() + wide + self.width * (self._ranks() - 5 * self.mix_rank)
        return matrices + ranks + hidden * self._shifts() + self.width * self._scales()

    def describe(self) -> dict[str, object]:
        """Version and heads."""
        return {"version": self.version, "heads": self.heads, "head_dim": self.head_dim, "chunk": self.chunk}

    def work(self, context: LayerContext) -> PartWork:
        """Blends on the stream, products, low ranks, scan, norm by heads with the gate, product out."""
        hidden, heads, dim = context.hidden, self.heads, self.head_dim
        blends = MIXES[self.version]
        ops: list[Op] = [_token_shift(hidden, blends, kernels=float(blends), parameters=hidden * self._shifts())]
        if self.mix_rank:
            down = whole_product("blends down", hidden, 5 * self.mix_rank)
            # Five matrices, each from its own rank.
            up = Linear(
                name="blends up",
                module="",
                inputs=((1, self.mix_rank),),
                outputs=((5, hidden),),
                split="replicated",
            )
            ops += [down, up]
        ops.append(column_product("receptance, keys and values", hidden, ((heads, self.products * dim),)))
        kept_ranks = 0
        for name in ("decay_rank", "rate_rank", "value_rank", "gate_rank"):
            rank = getattr(self, name)
            if not rank:
                continue
            word = name.removesuffix("_rank")
            kept_ranks += rank
            ops += [
                whole_product(f"{word} down", hidden, rank),
                column_product(f"{word} up", rank, ((heads, dim),)),
            ]
        ops += [
            chunked_scan(
                "time mixing",
                heads=heads,
                keys=(1.0, dim, dim),
                chunk=self.chunk,
                rule="delta" if self.version == 7 else "sum",
                decays=1 if self.version == 5 else dim,
            ),
            gated_norm(self.width, cut_parameters=self.width * self._scales()),
            row_product("time mixing out", ((heads, dim),), hidden),
        ]
        blended = Kept(name="blends", elements=blends * hidden, role="input", region="sequence")
        tensors = {
            "receptance, keys, values and gate": 4 * self.width,
            "scan output": self.width,
        }
        wide = {"decays and rates": self.width * (1 + (self.version == 7))}
        work = recurrent_work(context, tuple(ops), tensors, self.width, wide)
        return PartWork(ops=work.ops, kept=(blended, *work.kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class RwkvChannelMix(FeedForward):
    """Two matrices with a squared ReLU between, of a blend of two tokens; versions 5 and 6 gate by a third."""

    kind: Literal["rwkv"] = "rwkv"
    version: Literal[5, 6, 7]
    ffn_hidden: int

    def __post_init__(self) -> None:
        check = Check("RWKV channel mixing")
        check.whole("ffn_hidden", self.ffn_hidden)
        check.that(self.version in RANKS, "version", self.version, "must be one of 5, 6, 7")
        check.done()

    @property
    def gated(self) -> bool:
        """Whether receptances gate the output (all versions but 7)."""
        return self.version != 7

    @property
    def tensor_width(self) -> int:
        """Hidden width of the channel mixing."""
        return self.ffn_hidden

    def parameters(self, hidden: int) -> int:
        """Matrices and blends."""
        return 2 * hidden * self.ffn_hidden + (hidden * hidden + 2 * hidden if self.gated else hidden)

    def describe(self) -> dict[str, object]:
        """Version and width."""
        return {"version": self.version, "ffn_hidden": self.ffn_hidden}

    def work(self, context: LayerContext) -> PartWork:
        """Blend, up, square, down; the gate works on the rank's own tokens."""
        hidden, width, blends = context.hidden, self.ffn_hidden, 2 if self.gated else 1
        ops: list[Op] = [
            _token_shift(hidden, blends, kernels=1.0, parameters=blends * hidden),
            column_product("mlp up", hidden, ((width, 1),), module="mlp"),
            activation_pass("squared ReLU", width, module="mlp"),
            row_product("mlp down", ((width, 1),), hidden, module="mlp"),
        ]
        kept = [
            Kept(name="blends", elements=blends * hidden, role="input", region="sequence"),
            Kept(name="mlp up output", elements=width, role="activation", region="tensor", freed_by=("mlp",)),
            Kept(
                name="down input",
                elements=width,
                role="input",
                region="tensor",
                freed_by=("mlp",),
                weights_of=("mlp down",),
            ),
        ]
        if self.gated:
            ops.append(whole_product("mlp receptance", hidden, hidden, module="mlp"))
            kept.append(Kept(name="receptance", elements=2 * hidden, role="activation", region="sequence"))
        return PartWork(ops=tuple(ops), kept=tuple(kept))


def _token_shift(hidden: int, blends: int, *, kernels: float, parameters: int) -> Vector:
    """Blends of each token with the one before it."""
    return Vector(
        name="token shift",
        module="",
        region="sequence",
        forward_elements=(2 + blends) * hidden,
        backward_elements=(3 + 2 * blends) * hidden,
        kernels=kernels,
        parameters=parameters,
    )
