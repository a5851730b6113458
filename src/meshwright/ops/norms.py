"""Norms and residual additions around the halves of a layer."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.specs.model import LayerSpec
from meshwright.specs.operators import Op, Vector


def split_norms(layer: LayerSpec, hidden: int, name: str, *, first: bool) -> tuple[list[Op], list[Op]]:
    """Norms before and residual addition after; an odd single norm belongs to the attention half.

    Args:
        layer: the layer.
        hidden: width of the residual stream.
        name: of the half.
        first: whether it is the attention half.
    """
    share = 0.5 if layer.norms % 2 == 0 else (1.0 if first else 0.0)
    parts: list[Op] = list(_norms(layer, hidden, name, share))
    return parts[:-1], parts[-1:]


def _norms(layer: LayerSpec, hidden: int, name: str, share: float) -> Iterator[Vector]:
    """The norms on one half of the layer with the residual addition; LayerNorm has a shift too."""
    count = layer.norms * share
    width = hidden * (2 if layer.norm == "layernorm" else 1)
    if count:
        # One pass reads the residual and writes the normalised input; backward reads both and the gradient, writes one.
        yield Vector(
            name=f"{name} norm",
            module="layernorm",
            region="sequence",
            forward_elements=2 * hidden * count,
            backward_elements=4 * hidden * count,
            parameters=int(width * count),
        )
    mask = hidden if layer.dropout else 0
    yield Vector(
        name=f"{name} residual",
        module="",
        region="sequence",
        forward_elements=3 * hidden + mask,
        backward_elements=2 * hidden + mask,
    )
