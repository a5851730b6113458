"""How the ranks of a tensor group hold the operands of a matrix product, and what they gather and sum around it.

A tensor strategy says it once, without a framework; the runtime writes the products of a model from it. A layer's
matrices go in pairs: the first leads from the stream to a wide inner tensor, the second back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Names = tuple[str, ...]
"""Axes of a tensor group, the outermost first."""

Side = Literal["samples", "length", "width"]
"""What an axis of activations [samples, length, width] counts."""

SIDES: tuple[Side, ...] = ("samples", "length", "width")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationBlocks:
    """Axes of the group over which each axis of [samples, length, width] is split."""

    samples: Names = ()
    length: Names = ()
    width: Names = ()

    def over(self, side: Side) -> Names:
        """Axes of the group along one axis of the activations."""
        found: Names = getattr(self, side)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProduct:
    """Y = X W on one rank: gather blocks of X and of W, multiply, sum over ranks into a block of Y."""

    rows: Names = ()
    """Axes over which the rows of W are split while it is multiplied, as the columns of X are."""
    columns: Names = ()
    """Axes over which its columns are split while it is multiplied."""
    row_shards: Names = ()
    """Axes over which rows are split besides, and gathered for the product."""
    column_shards: Names = ()
    """Axes over which columns are split besides, and gathered."""
    gather: tuple[Side, Names] = ("width", ())
    """Axis of X that is gathered before the product, and over which axes."""
    scatter: tuple[Side, Names] = ("samples", ())
    """Axis of Y along which partial sums are reduced and scattered, and over which axes."""
    total: Names = ()
    """Axes over which partial sums are reduced, of which every rank has all."""
    again: bool = True
    """Whether backward gathers again what forward gathered, instead of keeping it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBlocks:
    """A tensor group as a grid of ranks."""

    axes: tuple[tuple[str, int], ...]
    """Names and sizes of its axes, the outermost first."""
    stream: ActivationBlocks
    inner: ActivationBlocks
    into: BlockProduct
    """Product from the stream to the inner tensor."""
    out: BlockProduct
    """Product from the inner tensor back to the stream."""
    table: Names
    """Axes over which the rows of the embedding table are split; partial rows are summed and scattered over them."""
    keys: Names | None = None
    """Axes over which heads of keys and values are split, where others hold the same; None for those of all heads."""

    parts: int = 1
    """Parts of a rank's samples that layers compute one beside the other, so that one waits while another computes."""

    def size(self, names: Names) -> int:
        """Ranks along some axes."""
        found, size = dict(self.axes), 1
        for name in names:
            size *= found[name]
        return size
