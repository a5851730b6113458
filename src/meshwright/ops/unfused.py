"""What a layer keeps where norms and gated functions run operator by operator, as in eager PyTorch.

    norm        x in fp32, from which the mean square and the normalised input are made: 4 bytes instead of 2
    SwiGLU      gate, SiLU of the gate, up: three tensors instead of two
    loss        log-softmax of the logits in fp32, and the logits themselves where the output holds them

Source: Lightning-AI/litgpt, tutorials/resource-tables.md (October 2023): 5.96 MB per token of Llama-2-7B with LoRA of
rank 8 on queries and values; fused kernels would keep 3.9.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from meshwright.specs.operators import Kept, LayerWork, Linear


@lru_cache(maxsize=256)
def unfused_work(work: LayerWork, *, layers: bool = True, held_logits: float = 0.0) -> LayerWork:
    """The same operators with what they keep one by one.

    Args:
        work: a layer, or what stands before and behind the layers.
        layers: whether norms and gated functions run so.
        held_logits: logits that the model's output holds beside those of the loss, over those.
    """
    if held_logits:
        grown = (
            replace(one, elements=one.elements * (1.0 + held_logits)) if one.name == "logits" else one
            for one in work.kept
        )
        work = replace(work, kept=tuple(grown))
    if not layers:
        return work
    gated = {
        op.name.removesuffix(" up")
        for op in work.ops
        if isinstance(op, Linear) and op.name.endswith(" up") and len(op.outputs) == 1 and op.outputs[0][1] == 2
    }
    kept: list[Kept] = []
    for one in work.kept:
        kept.append(replace(one, role="fp32") if one.name.endswith("norm input") else one)
        if one.role == "function" and one.name.removesuffix(" up output") in gated:
            kept.append(replace(one, name=f"{one.name}, gated", elements=one.elements / 2, role="activation"))
    return replace(work, kept=tuple(kept))
