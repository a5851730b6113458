"""A layer as operators: its parts, each between its norm and its residual addition."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from meshwright.ops.tuned import tuned_work
from meshwright.specs.layers.base import AttentionKernel, LayerContext, LayerPart
from meshwright.specs.model import LayerSpec, TunedLayer
from meshwright.specs.operators import Kept, LayerWork, Op, Vector


@lru_cache(maxsize=256)
def layer_work(layer: LayerSpec, hidden: int, kernel: AttentionKernel) -> LayerWork:
    """The operators of one layer: mixer and feed-forward part, each between its norm and its residual addition.

    Args:
        layer: the layer.
        hidden: width of the residual stream.
        kernel: of attention.

    Returns:
        Operators in forward order and the tensors they keep.
    """
    context = LayerContext(hidden=hidden, kernel=kernel, dropout=layer.dropout)
    ops: list[Op] = []
    kept: list[Kept] = []
    parts: tuple[tuple[str, LayerPart, bool], ...] = (
        ("attention", layer.attention, True),
        ("mlp", layer.mlp, not layer.parallel_block),
    )
    for name, part, own_input in parts:
        if part.absent:
            continue
        norm, residual = _split_norms(layer, hidden, name, first=name == "attention")
        work = part.work(context)
        ops += [*norm, *work.ops, *residual]
        if own_input:
            kept.append(Kept(name=f"{name} norm input", elements=hidden, role="activation", region="sequence"))
        kept += work.kept
        if layer.dropout:
            kept.append(Kept(name=f"{name} dropout mask", elements=hidden, role="mask", region="sequence"))
    work = LayerWork(
        ops=tuple(ops),
        kept=tuple(kept),
        input_width=hidden,
        top_k=layer.mlp.visited_experts,
        experts=layer.mlp.routed_experts,
    )
    return tuned_work(work, layer) if isinstance(layer, TunedLayer) else work


def _split_norms(layer: LayerSpec, hidden: int, name: str, *, first: bool) -> tuple[list[Op], list[Op]]:
    """Norms before and residual addition after; an odd norm belongs to the attention half, all norms to a single part.

    Args:
        layer: the layer.
        hidden: width of the residual stream.
        name: of the half.
        first: whether it is the attention half.
    """
    share = 0.5 if layer.norms % 2 == 0 else (1.0 if first else 0.0)
    share = 1.0 if layer.single else share
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
