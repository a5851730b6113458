"""LayerSpec -> operators and kept tensors.

Kept bytes follow Korthikanti et al. 2022 (arXiv 2205.05198, section 4) for GPT layers with dropout and materialised
scores, 34 s b h + 5 a s^2 b, and the same bookkeeping for gated, grouped-query and fused-attention layers.
"""

from __future__ import annotations

from functools import lru_cache

from meshwright.ops.attention import AttentionKernel, attention_work
from meshwright.ops.feed_forward import feed_forward_work
from meshwright.ops.op import Kept, LayerWork, Op
from meshwright.specs.model import LayerSpec, MoeMlp


@lru_cache(maxsize=256)
def layer_work(layer: LayerSpec, hidden: int, kernel: AttentionKernel) -> LayerWork:
    """The operators of one layer.

    Args:
        layer: the layer.
        hidden: width of the residual stream.
        kernel: `flash` keeps no scores and computes only attended pairs; `materialised` keeps and computes the square.

    Returns:
        Operators in forward order and the tensors they keep.
    """
    ops: list[Op] = []
    kept: list[Kept] = []
    for part_ops, part_kept in (attention_work(layer, hidden, kernel), feed_forward_work(layer, hidden)):
        ops += part_ops
        kept += part_kept
    moe = layer.mlp if isinstance(layer.mlp, MoeMlp) else None
    return LayerWork(
        ops=tuple(ops),
        kept=tuple(kept),
        input_width=hidden,
        top_k=moe.top_k if moe else 0,
        experts=moe.experts if moe else 0,
    )
