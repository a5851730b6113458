"""One layer as a spec: a mixer and a feed-forward part, and periods of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from meshwright.specs.check import ByKind, Check, HashedOnce, hashed_once
from meshwright.specs.layers import CROSS_MIXERS, FEED_FORWARDS, MIXERS
from meshwright.specs.layers.base import FeedForward, Mixer
from meshwright.specs.tuning import LayerTuning


@hashed_once
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec(HashedOnce):
    """One layer: a mixer and a feed-forward part, of which one may be absent."""

    attention: Annotated[Mixer, ByKind(MIXERS)]
    """The mixer, of whatever kind."""
    mlp: Annotated[FeedForward, ByKind(FEED_FORWARDS)]
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norms: int = 2
    """Norms of width hidden: 2 usually, 4 with post-norms (Gemma 2), 1 when attention and MLP share one."""
    parallel_block: bool = False
    """Attention and MLP read the same input (GPT-NeoX, Falcon)."""
    dropout: bool = False
    residuals: int = 1
    """Copies of the residual stream; more than one are mixed into and out of every part (hyper-connections of
    DeepSeek-V4, arXiv 2512.24880)."""
    residual_mixing: bool = True
    """Whether copies are also mixed with each other around a part, not only read and written (Hunyuan 4 does not)."""
    altup: bool = False
    """The copies are predicted before a layer that works on one of them, and corrected after it (AltUp, Baykal et al.
    2023, arXiv 2301.13310; Gemma 3n)."""
    residual_blocks: int = 0
    """Blocks of layers whose summed outputs every part attends to, in place of one residual stream; 0 for the stream
    (block attention residuals, arXiv 2603.15031; Kimi K3). A part sees those before it: half of them on average."""
    block_layers: int = 0
    """Layers of such a block."""
    wide: bool = False
    """Computes in the format of activations where the recipe's products are in 8 or 4 bits."""
    stream: str = ""
    """Name in `ModelSpec.streams` of the stream whose tokens it works on; empty for the text."""
    cross: Annotated[Mixer, ByKind(CROSS_MIXERS)] | None = None
    """Cross attention between attention and MLP (the decoder of Vaswani et al. 2017)."""

    @property
    def memory(self) -> str:
        """The stream that its cross attention reads; empty for none."""
        return (self.cross or self.attention).reads

    def __post_init__(self) -> None:
        check = Check("layer")
        absent = self.attention.absent and self.mlp.absent
        check.that(not absent, "mlp", "absent", "a layer has a mixer, a feed-forward part, or both")
        if check.whole("residuals", self.residuals):
            plain = self.residuals == 1 or not (self.parallel_block or self.cross or self.stream)
            check.that(plain, "residuals", self.residuals, "copies are mixed around mixer and MLP of a decoder alone")
            copies = self.residuals > 1 or not self.altup
            check.that(
                copies, "altup", self.altup, "it predicts copies of the residual stream, of which there are none"
            )
            mixed = self.residual_mixing or (self.residuals > 1 and not self.altup)
            why = "only copies of the residual stream that are read and written by weights may stay unmixed"
            check.that(mixed, "residual_mixing", self.residual_mixing, why)
        if check.whole("residual_blocks", self.residual_blocks, 0):
            plain = not self.residual_blocks or (self.residuals == 1 and not (self.parallel_block or self.cross))
            why = "outputs of blocks stand in place of the one stream of a decoder's layers, part behind part"
            check.that(plain, "residual_blocks", self.residual_blocks, why)
            sized = (self.block_layers > 0) is (self.residual_blocks > 0)
            check.that(
                sized, "block_layers", self.block_layers, "is given where there are residual blocks, and only there"
            )
        check.done()

    @property
    def blocks_seen(self) -> float:
        """Outputs of earlier blocks that a part attends to, on average over the layers; 0 for a residual stream."""
        return (self.residual_blocks + 1) / 2 if self.residual_blocks else 0.0

    @property
    def input_width(self) -> float:
        """Elements a token that a layer starts from, in widths of the stream: copies, or its share of blocks beside it.

        All layers of a block start from the same outputs of earlier blocks.
        """
        return self.residuals + (self.blocks_seen / self.block_layers if self.block_layers else 0)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The mixers of the layer: one, or several side by side."""
        return self.attention.each

    @property
    def single(self) -> bool:
        """Whether it has one part only."""
        return self.attention.absent or self.mlp.absent

    def parameters(self, hidden: int) -> int:
        """Everything in the layer."""
        return self._mixers(hidden) + self.mlp.parameters(hidden)

    def active_parameters(self, hidden: int) -> int:
        """What one token visits."""
        return self._mixers(hidden) + self.mlp.active_parameters(hidden)

    def _mixers(self, hidden: int) -> int:
        cross = self.cross.parameters(hidden) if self.cross else 0
        return self.attention.parameters(hidden) + cross + self.norm_parameters(hidden) + self.mixing_parameters(hidden)

    def mixing_parameters(self, hidden: int) -> int:
        """Parameters that mix copies of the residual stream: in and out of n copies, and n x n, around every part.

        AltUp has a router with a norm, n x n^2 weights that predict, n x n that correct, and scales, once a layer.
        Attention to blocks has a query and a norm of keys, for every part.
        """
        if self.residual_blocks:
            return (1 if self.single else 2) * 2 * hidden
        if self.residuals == 1:
            return 0
        if self.altup:
            return (2 + self.residuals) * hidden + self.residuals**3 + self.residuals**2
        made = self.mixing_weights
        scales = 3 if self.residual_mixing else 2
        return (1 if self.single else 2) * (made * self.residuals * hidden + made + scales)

    @property
    def mixing_weights(self) -> int:
        """Numbers a token that say how a part reads, writes and mixes n copies."""
        return (2 + (self.residuals if self.residual_mixing else 0)) * self.residuals

    def describe(self, hidden: int) -> dict[str, object]:
        """Sizes of the layer by name.

        Args:
            hidden: width of the model.
        """
        return {
            "parameters": self.parameters(hidden),
            "active_parameters": self.active_parameters(hidden),
            "attention": self.attention.kind,
            **self.attention.describe(),
            "mlp": self.mlp.kind,
            **self.mlp.describe(),
            **({"stream": self.stream} if self.stream else {}),
            **({"cross": self.cross.describe()} if self.cross else {}),
        }

    def norm_parameters(self, hidden: int) -> int:
        """Scales, and shifts for LayerNorm."""
        return self.norms * hidden * (2 if self.norm == "layernorm" else 1)

    def has(self, part: str) -> bool:
        """Whether it has a part, as `specs.tuning.PARTS` names them."""
        if part == "attention":
            return not self.attention.absent
        if self.mlp.absent and part != "norms":
            return False
        if part in ("experts", "router"):
            return self.mlp.routed_experts > 0
        if part == "mlp":
            return self.mlp.routed_experts == 0 or self.mlp.tensor_width > 0
        return part != "norms" or self.norms > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedLayer(LayerSpec):
    """A layer of which not everything is trained."""

    tuning: LayerTuning

    @staticmethod
    def of(layer: LayerSpec, tuning: LayerTuning | None) -> LayerSpec:
        """A layer trained as stated; itself where all of it is."""
        if tuning is None:
            return layer
        return TunedLayer(**{f.name: getattr(layer, f.name) for f in fields(LayerSpec)}, tuning=tuning)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """A period of layers repeated: 48 equal layers are one period of one, alternating kinds one period of two."""

    layers: tuple[LayerSpec, ...]
    repeats: int

    def __post_init__(self) -> None:
        check = Check("layer run")
        check.that(len(self.layers) > 0, "layers", self.layers, "must hold at least one layer")
        check.whole("repeats", self.repeats)
        check.done()


MAX_PERIOD = 32
"""Longest repeating pattern of layers that is looked for."""


def layer_runs(layers: Sequence[LayerSpec]) -> tuple[LayerRun, ...]:
    """Layers in order as runs of the shortest period that covers most: 5 sliding + 1 full, ten times, is one run.

    Args:
        layers: the layers from the first to the last.

    Returns:
        Runs whose layers, written out, are `layers`.
    """
    numbers: dict[LayerSpec, int] = {}
    kinds = [numbers.setdefault(layer, len(numbers)) for layer in layers]
    runs: list[LayerRun] = []
    start = 0
    while start < len(kinds):
        best_period, best_repeats = 1, 1
        for period in range(1, min(MAX_PERIOD, len(kinds) - start) + 1):
            end = start + period
            while end < len(kinds) and kinds[end] == kinds[end - period]:
                end += 1
            repeats = (end - start) // period
            if (repeats > 1 or period == 1) and period * repeats > best_period * best_repeats:
                best_period, best_repeats = period, repeats
        runs.append(LayerRun(layers=tuple(layers[start : start + best_period]), repeats=best_repeats))
        start += best_period * best_repeats
    return tuple(runs)
