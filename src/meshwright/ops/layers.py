from __future__ import annotations

from functools import lru_cache

from meshwright.ops.norms import split_norms
from meshwright.specs.layers.base import AttentionKernel, LayerContext, LayerPart
from meshwright.specs.model import LayerSpec
from meshwright.specs.operators import Kept, LayerWork, Op


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
        norm, residual = split_norms(layer, hidden, name, first=name == "attention")
        work = part.work(context)
        ops += [*norm, *work.ops, *residual]
        if own_input:
            kept.append(Kept(name=f"{name} norm input", elements=hidden, role="activation", region="sequence"))
        kept += work.kept
        if layer.dropout:
            kept.append(Kept(name=f"{name} dropout mask", elements=hidden, role="mask", region="sequence"))
    return LayerWork(
        ops=tuple(ops),
        kept=tuple(kept),
        input_width=hidden,
        top_k=layer.mlp.visited_experts,
        experts=layer.mlp.routed_experts,
    )
