"""The attention half of a layer: projections, core attention, and what they keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from meshwright.ops.norms import split_norms
from meshwright.ops.op import CoreAttention, Kept, Linear, Op, Vector
from meshwright.specs.model import Attention, LatentAttention, LayerSpec

AttentionKernel = Literal["flash", "materialised"]


def attention_work(layer: LayerSpec, hidden: int, kernel: AttentionKernel) -> tuple[list[Op], list[Kept]]:
    """The attention half of a layer.

    Args:
        layer: the layer.
        hidden: width of the residual stream.
        kernel: see `layer_work`.

    Returns:
        Operators in forward order and the tensors they keep.
    """
    norm, residual = split_norms(layer, hidden, "attention", first=True)
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
