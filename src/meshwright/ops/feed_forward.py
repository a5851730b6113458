"""The feed-forward half of a layer: a dense MLP, or a router, experts and what travels to them."""

from __future__ import annotations

from meshwright.ops.norms import split_norms
from meshwright.ops.op import Exchange, Kept, Linear, Op, Vector
from meshwright.specs.model import DenseMlp, LayerSpec, MoeMlp

# Kernels around the products of an expert layer: scores, top-k, balance loss, counts and their copy to the host; masks,
# offsets, gather or scatter of tokens and probabilities. Source: counted in megatron/core/transformer/moe of
# NVIDIA/Megatron-LM 0.12 (router.py, token_dispatcher.py, moe_utils.py).
ROUTER_KERNELS = 20.0
PERMUTE_KERNELS = 10.0


def feed_forward_work(layer: LayerSpec, hidden: int) -> tuple[list[Op], list[Kept]]:
    """The feed-forward half of a layer.

    Args:
        layer: the layer.
        hidden: width of the residual stream.

    Returns:
        Operators in forward order and the tensors they keep.
    """
    norm, residual = split_norms(layer, hidden, "mlp", first=False)
    if isinstance(layer.mlp, DenseMlp):
        ops, kept = _dense_mlp(layer.mlp, hidden, "mlp", "mlp")
    else:
        ops, kept = _moe(layer.mlp, hidden)
    if not layer.parallel_block:
        kept.insert(0, Kept(name="mlp norm input", elements=hidden, role="activation", region="sequence"))
    if layer.dropout:
        kept.append(Kept(name="mlp dropout mask", elements=hidden, role="mask", region="sequence"))
    return [*norm, *ops, *residual], kept


def _dense_mlp(mlp: DenseMlp, hidden: int, name: str, module: str) -> tuple[list[Op], list[Kept]]:
    columns = 2 if mlp.gated else 1
    bias_up, bias_down = (columns * mlp.ffn_hidden, hidden) if mlp.bias else (0, 0)
    up = Linear(
        name=f"{name} up",
        module=module,
        inputs=((1, hidden),),
        outputs=((mlp.ffn_hidden, columns),),
        split="column",
        gather=hidden,
        bias=bias_up,
    )
    down = Linear(
        name=f"{name} down",
        module=module,
        inputs=((mlp.ffn_hidden, 1),),
        outputs=((1, hidden),),
        split="row",
        reduce=hidden,
        bias=bias_down,
    )
    activation = Vector(
        name=f"{name} activation",
        module=module,
        region="tensor",
        forward_elements=(columns + 1) * mlp.ffn_hidden,
        backward_elements=(2 * columns + 1) * mlp.ffn_hidden,
    )
    kept = [
        Kept(name=f"{name} input", elements=hidden, role="input", region="sequence", freed_by=("layernorm",)),
        Kept(
            name=f"{name} up output",
            elements=columns * mlp.ffn_hidden,
            role="activation",
            region="tensor",
            freed_by=(module,),
        ),
        Kept(name=f"{name} down input", elements=mlp.ffn_hidden, role="input", region="tensor", freed_by=(module,)),
    ]
    return [up, activation, down], kept


def _moe(moe: MoeMlp, hidden: int) -> tuple[list[Op], list[Kept]]:
    columns = 2 if moe.gated else 1
    bias_up, bias_down = (columns * moe.ffn_hidden, hidden) if moe.bias else (0, 0)
    ops: list[Op] = [
        Linear(
            name="router",
            module="moe",
            inputs=((1, hidden),),
            outputs=((1, moe.experts),),
            split="replicated",
            bias=moe.experts if moe.router_bias else 0,
        ),
        Vector(
            name="top-k",
            module="moe",
            region="sequence",
            forward_elements=4 * moe.experts,
            backward_elements=4 * moe.experts,
            fp32=True,
            kernels=ROUTER_KERNELS,
            parameters=hidden if moe.shared_gate else 0,
        ),
        Vector(
            name="permute",
            module="moe",
            region="sequence",
            forward_elements=2 * moe.top_k * hidden,
            backward_elements=2 * moe.top_k * hidden,
            kernels=PERMUTE_KERNELS,
        ),
        Exchange(name="dispatch", module="moe", width=hidden, direction="dispatch"),
        Linear(
            name="experts up",
            module="moe",
            inputs=((1, hidden),),
            outputs=((moe.ffn_hidden, columns),),
            split="expert-column",
            bias=bias_up,
            experts=moe.experts,
        ),
        Vector(
            name="experts activation",
            module="moe_act",
            region="expert",
            forward_elements=(columns + 1) * moe.ffn_hidden,
            backward_elements=(2 * columns + 1) * moe.ffn_hidden,
        ),
        Linear(
            name="experts down",
            module="moe",
            inputs=((moe.ffn_hidden, 1),),
            outputs=((1, hidden),),
            split="expert-row",
            bias=bias_down,
            experts=moe.experts,
        ),
        Exchange(name="combine", module="moe", width=hidden, direction="combine"),
        Vector(
            name="unpermute",
            module="moe",
            region="sequence",
            forward_elements=(moe.top_k + 1) * hidden,
            backward_elements=(moe.top_k + 1) * hidden,
            kernels=PERMUTE_KERNELS,
        ),
    ]
    # Routing weights are applied inside the activation, as current frameworks do, so expert outputs are not kept.
    kept = [
        Kept(name="router input", elements=hidden, role="activation", region="sequence", freed_by=("layernorm",)),
        Kept(name="router logits", elements=moe.experts, role="fp32", region="sequence", freed_by=("moe",)),
        Kept(name="routing map", elements=3 * moe.top_k, role="fp32", region="sequence", freed_by=("moe",)),
        Kept(name="dispatched tokens", elements=hidden, role="input", region="expert-in", freed_by=("moe",)),
        Kept(
            name="experts up output",
            elements=columns * moe.ffn_hidden,
            role="activation",
            region="expert",
            freed_by=("moe",),
        ),
        Kept(
            name="experts down input",
            elements=moe.ffn_hidden,
            role="input",
            region="expert",
            freed_by=("moe", "moe_act"),
        ),
        Kept(name="combined tokens", elements=hidden, role="activation", region="sequence", freed_by=("moe",)),
    ]
    if moe.shared_ffn_hidden:
        shared = DenseMlp(ffn_hidden=moe.shared_ffn_hidden, gated=moe.gated)
        shared_ops, shared_kept = _dense_mlp(shared, hidden, "shared expert", "shared_experts")
        ops += shared_ops
        kept += shared_kept[1:]  # its input is the router's
    return ops, kept
