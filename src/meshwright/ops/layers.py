"""LayerSpec -> operators and kept tensors.

Kept bytes follow Korthikanti et al. 2022 (arXiv 2205.05198, section 4) for GPT layers with dropout and materialised
scores, 34 s b h + 5 a s^2 b, and the same bookkeeping for gated, grouped-query and fused-attention layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from meshwright.ops.op import CoreAttention, Exchange, Kept, LayerWork, Linear, Op, Vector
from meshwright.specs.model import Attention, DenseMlp, LatentAttention, LayerSpec, ModelSpec, MoeMlp

AttentionKernel = Literal["flash", "materialised"]

# Kernels around the products of an expert layer: scores, top-k, balance loss, counts and their copy to the host; masks,
# offsets, gather or scatter of tokens and probabilities. Source: counted in megatron/core/transformer/moe of
# NVIDIA/Megatron-LM 0.12 (router.py, token_dispatcher.py, moe_utils.py).
ROUTER_KERNELS = 20.0
PERMUTE_KERNELS = 10.0


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
    for part_ops, part_kept in (_attention(layer, hidden, kernel), _mlp(layer, hidden)):
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


def _attention(layer: LayerSpec, hidden: int, kernel: AttentionKernel) -> tuple[list[Op], list[Kept]]:
    norm, residual = _split_norms(layer, hidden, "attention", first=True)
    project, keep_projection, core = _projections(layer.attention, hidden)
    output = Linear(
        name="attention out",
        module="",
        inputs=((layer.attention.heads, layer.attention.value_width // layer.attention.heads),),
        outputs=((1, hidden),),
        split="row",
        reduce=hidden,
        bias=hidden if isinstance(layer.attention, Attention) and layer.attention.out_bias else 0,
    )
    kept = [
        Kept(name="attention norm input", elements=hidden, role="activation", region="sequence"),
        Kept(name="qkv input", elements=hidden, role="input", region="sequence", freed_by=("layernorm",)),
        *keep_projection,
        *_kept_core(layer, core, kernel),
        Kept(name="attention out input", elements=layer.attention.value_width, role="input", region="tensor"),
    ]
    if layer.dropout:
        kept.append(Kept(name="attention dropout mask", elements=hidden, role="mask", region="sequence"))
    return [*norm, *project, core, output, *residual], kept


def _split_norms(layer: LayerSpec, hidden: int, name: str, *, first: bool) -> tuple[list[Op], list[Op]]:
    """Norms before and residual addition after; an odd single norm belongs to the attention half."""
    share = 0.5 if layer.norms % 2 == 0 else (1.0 if first else 0.0)
    parts: list[Op] = list(_norms(layer, hidden, name, share))
    return parts[:-1], parts[-1:]


def _projections(attention: Attention | LatentAttention, hidden: int) -> tuple[list[Op], list[Kept], CoreAttention]:
    core = CoreAttention(
        name="core attention",
        module="core_attn",
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        value_dim=attention.value_width // attention.heads,
        window=attention.window,
        causal=attention.causal,
    )
    if isinstance(attention, LatentAttention):
        return *_latent_projections(attention, hidden), core
    gate = attention.heads if attention.gate else 0
    qkv = Linear(
        name="qkv",
        module="",
        inputs=((1, hidden),),
        outputs=(
            (attention.heads + gate, attention.head_dim),
            (attention.kv_heads, 2 * attention.head_dim),
        ),
        split="column",
        gather=hidden,
        bias=attention.query_width + 2 * attention.kv_width if attention.qkv_bias else 0,
    )
    width = attention.query_width + attention.kv_width
    rotate = Vector(
        name="rotary",
        module="",
        region="tensor",
        forward_elements=2 * width,
        backward_elements=2 * width,
        parameters=(2 * attention.head_dim if attention.qk_norm else 0) + (attention.heads if attention.sinks else 0),
    )
    kept = [
        Kept(name="queries", elements=attention.query_width, role="activation", region="tensor"),
        Kept(name="keys and values", elements=2 * attention.kv_width, role="activation", region="tensor"),
    ]
    return [qkv, rotate], kept, core


def _latent_projections(attention: LatentAttention, hidden: int) -> tuple[list[Op], list[Kept]]:
    latent = attention.kv_rank + attention.rope_dim
    queries = attention.q_rank or 0
    ops: list[Op] = []
    down_out = queries + latent
    ops.append(
        Linear(
            name="latent down",
            module="",
            inputs=((1, hidden),),
            outputs=((1, down_out),),
            split="replicated",
        )
    )
    ops.append(
        Vector(
            name="latent norms",
            module="layernorm",
            region="sequence",
            forward_elements=2 * (queries + attention.kv_rank),
            backward_elements=4 * (queries + attention.kv_rank),
            parameters=queries + attention.kv_rank,
        )
    )
    query_in = attention.q_rank or hidden
    ops.append(
        Linear(
            name="query up",
            module="mla_up_proj",
            inputs=((1, query_in),),
            outputs=((attention.heads, attention.head_dim),),
            split="column",
            gather=query_in,
        )
    )
    ops.append(
        Linear(
            name="key-value up",
            module="mla_up_proj",
            inputs=((1, attention.kv_rank),),
            outputs=((attention.heads, attention.nope_dim + attention.value_dim),),
            split="column",
            gather=latent,
        )
    )
    width = attention.query_width * 2 + attention.value_width
    ops.append(
        Vector(
            name="rotary and concatenation",
            module="mla_up_proj",
            region="tensor",
            forward_elements=2 * width,
            backward_elements=2 * width,
        )
    )
    kept = [
        Kept(name="latents", elements=2 * down_out, role="activation", region="sequence"),
        Kept(
            name="queries",
            elements=attention.query_width,
            role="activation",
            region="tensor",
            freed_by=("mla_up_proj",),
        ),
        Kept(
            name="keys and values",
            elements=attention.query_width + attention.value_width,
            role="activation",
            region="tensor",
            freed_by=("mla_up_proj",),
        ),
    ]
    return ops, kept


def _kept_core(layer: LayerSpec, core: CoreAttention, kernel: AttentionKernel) -> Iterator[Kept]:
    if kernel == "flash":
        yield Kept(name="log-sum-exp", elements=core.heads, role="fp32", region="tensor", freed_by=("core_attn",))
        return
    for name, role in (("softmax", "activation"), ("score dropout mask", "mask"), ("dropped scores", "activation")):
        if name == "softmax" or layer.dropout:
            yield Kept(
                name=name,
                elements=core.heads,
                role=role,  # type: ignore[arg-type]
                region="tensor",
                freed_by=("core_attn",),
                per_key=True,
            )


def _mlp(layer: LayerSpec, hidden: int) -> tuple[list[Op], list[Kept]]:
    norm, residual = _split_norms(layer, hidden, "mlp", first=False)
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


@lru_cache(maxsize=64)
def edge_work(model: ModelSpec, part: Literal["embedding", "head", "mtp"]) -> LayerWork:
    """Embedding, head with loss, or the projection of one multi-token-prediction module, in the same form as a layer.

    Args:
        model: the model.
        part: `head` is final norm, projection and cross-entropy; `mtp` is what a module adds to its layer and its loss.

    Returns:
        Operators and kept tensors; the head keeps its logits in fp32 until backward.
    """
    hidden, vocab = model.hidden, model.vocab
    norm_width = hidden * (2 if model.final_norm == "layernorm" else 1)
    if part == "embedding":
        lookup = Vector(
            name="embedding lookup",
            module="",
            region="sequence",
            forward_elements=3 * hidden,
            backward_elements=3 * hidden,
            parameters=model.learned_positions * hidden + (2 * hidden if model.embedding_norm else 0),
            reduce=hidden,
            table=(vocab, hidden),
        )
        return LayerWork(ops=(lookup,), kept=(), input_width=0)
    norm = Vector(
        name="final norm",
        module="layernorm",
        region="sequence",
        forward_elements=2 * hidden,
        backward_elements=4 * hidden,
        parameters=norm_width if model.final_norm else 0,
    )
    if part == "mtp":
        project = Linear(
            name="mtp projection",
            module="",
            inputs=((1, 2 * hidden),),
            outputs=((1, hidden),),
            split="replicated",
        )
        norms = Vector(
            name="mtp norms",
            module="",
            region="sequence",
            forward_elements=4 * hidden,
            backward_elements=8 * hidden,
            parameters=2 * norm_width,
        )
        inputs = Kept(name="mtp inputs", elements=4 * hidden, role="activation", region="sequence")
        return LayerWork(ops=(norms, project), kept=(inputs,), input_width=2 * hidden)
    logits = Linear(
        name="logits",
        module="",
        inputs=((1, hidden),),
        outputs=((vocab, 1),),
        split="column",
        gather=hidden,
        bias=vocab if model.head_bias else 0,
    )
    # Cross-entropy over the local vocabulary: read logits, write fp32, reduce, exponentiate; backward writes gradients.
    loss = Vector(
        name="cross-entropy",
        module="",
        region="tensor",
        forward_elements=3 * vocab,
        backward_elements=2 * vocab,
        fp32=True,
    )
    kept = (
        Kept(name="final norm input", elements=hidden, role="activation", region="sequence"),
        Kept(name="logits input", elements=hidden, role="activation", region="sequence"),
        Kept(name="logits", elements=vocab, role="fp32", region="tensor"),
    )
    return LayerWork(ops=(norm, logits, loss), kept=kept, input_width=hidden)
