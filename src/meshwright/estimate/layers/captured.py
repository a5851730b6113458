"""What CUDA graphs of parts of a layer hold: the host launches such a part at once, and the rest operator by operator.

Source: NVIDIA/Megatron-LM, megatron/core/transformer/transformer_config.py (`cuda_graph_modules`, before
`cuda_graph_scope`): `attn` is what _forward_attention runs, `mlp` _forward_mlp of a dense layer, `moe_router` that of a
layer of experts up to its router, with shared experts that run beside no exchange, and `moe_preprocess` what
MoELayer.preprocess makes of the choice before tokens travel.
"""

from __future__ import annotations

from meshwright.specs.operators import LayerWork, Op

_ROUTER = ("router", "top-k")
_PREPARES = "permute"


def captured_parts(work: LayerWork, captured: tuple[str, ...], *, shared_beside: bool) -> list[str]:
    """The captured part that each operator of a layer belongs to; empty for one that is launched by itself.

    Args:
        work: the layer's operators in forward order, mixer before feed-forward part.
        captured: names of parts.
        shared_beside: whether shared experts run beside exchanges, which no graph holds.
    """
    found, feeds_forward = [], False
    for op in work.ops:
        feeds_forward = feeds_forward or op.name.startswith("mlp ")
        part = "attn" if not feeds_forward else _of_experts(op, shared_beside=shared_beside) if work.experts else "mlp"
        found.append(part if part in captured else "")
    return found


def _of_experts(op: Op, *, shared_beside: bool) -> str:
    if op.module == "shared_experts":
        return "" if shared_beside else "moe_router"
    if op.name == _PREPARES:
        return "moe_preprocess"
    before = op.name in _ROUTER or (op.name.startswith("mlp ") and op.name != "mlp residual")
    return "moe_router" if before else ""
