"""Layers of a single part (Nemotron-H, arXiv 2504.03624, section 2.1; Mamba): the other part is absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.layers.base import FeedForward, LayerContext, LayerPart, Mixer, PartWork

NOTHING = PartWork(ops=(), kept=())


class AbsentPart(LayerPart):
    """A part of which nothing is there."""

    __slots__ = ()

    @property
    def absent(self) -> bool:
        """True: this part is absent."""
        return True

    def parameters(self, hidden: int) -> int:
        """None."""
        return 0

    def describe(self) -> dict[str, object]:
        """Nothing."""
        return {}

    def work(self, context: LayerContext) -> PartWork:
        """Nothing."""
        return NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMixer(AbsentPart, Mixer):
    """No mixer: a feed-forward part alone."""

    kind: Literal["none"] = "none"

    @property
    def heads(self) -> int:
        """None."""
        return 0

    @property
    def divided(self) -> tuple[tuple[str, int], ...]:
        """Nothing."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMlp(AbsentPart, FeedForward):
    """No feed-forward part: a mixer alone."""

    kind: Literal["none"] = "none"
