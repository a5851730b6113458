"""The layers of one transformer block, in the order in which they run.

Which layers there are depends on the application's structure, on whether tensor traffic overlaps and on the kind of
attention, so blocks are priced in groups of one overlap setting and one attention type.

Source: Isaev et al., SC'23, and the formulas of Calculon 0.1.0 (github.com/calculon-ai/calculon).
"""

from __future__ import annotations

import numpy as np

from meshwright.calculon.inputs import (
    ATTN_ONLY,
    FLASH,
    FULL,
    GROUPED,
    MULTIQUERY,
    P2P_RS_AG,
    RS_AG,
    Application,
)
from meshwright.calculon.layer_kinds import Builder
from meshwright.calculon.layers import Amount, BlockKeys, Flag, Layer


def block_layers(app: Application, keys: BlockKeys, *, overlap: bool, attention: int, fixed: bool) -> list[Layer]:
    """The layers of a block in the order in which they run.

    Args:
        app: the application.
        keys: distinct blocks that share the two settings below.
        overlap: whether tensor traffic overlaps with matrix products.
        attention: code of `attention_type`.
        fixed: repair the errors of the original.
    """
    build = Builder(keys=keys, fixed=fixed)
    _attention(build, app, overlap=overlap, attention=attention)
    _mlp(build, app, overlap=overlap)
    return build.layers


def _residual_stream(app: Application, keys: BlockKeys) -> tuple[Amount, Amount, Amount]:
    """Tokens of a micro-batch, elements of its activations, and of the residual stream on one rank."""
    tokens = keys.microbatch * app.seq_size
    whole = (tokens * app.hidden).astype(np.float64)
    part = (tokens // keys.tensor_par * app.hidden).astype(np.float64)
    return tokens.astype(np.float64), whole, np.where(keys.comm_type == RS_AG, part, whole)


def _attention(build: Builder, app: Application, *, overlap: bool, attention: int) -> None:
    keys, llama = build.keys, app.structure_type == "llama"
    tokens, whole, stream = _residual_stream(app, keys)
    t = keys.tensor_par
    full = keys.recompute == FULL
    core = full | (keys.recompute == ATTN_ONLY)
    redo = core | keys.redo
    h, s, k = app.hidden, float(app.seq_size), app.attn_size
    heads = float(app.attn_heads * k)
    kv_heads = app.kv_heads or app.attn_heads
    gathered_kv = attention == MULTIQUERY
    if attention in (GROUPED, FLASH):
        kv_width = np.maximum(kv_heads, t) * k / t
    else:
        kv_width = np.full(t.shape, float(k)) if gathered_kv else heads / t

    build.fork("AttnBlock_Fork", stream, 2, recomputed=full)
    build.norm("AttnBlock_LayerNorm", stream, h, rms=llama, recomputed=full)
    if not overlap:
        build.tensor_comm("AttnBlock_F", whole, gather_first=True, comm_redone=redo)
        build.fork("AttnBlock_Multihead_Fork", whole, 3, recomputed=redo, keeps_input=~redo)
        for name, width in (("Query", heads / t), ("Key", kv_width), ("Value", kv_width)):
            build.linear(f"AttnBlock_{name}", tokens, h, width, recomputed=full, reused=True, keeps_input=False)
    elif gathered_kv:
        build.overlapped_linear(
            "AttnBlock_Query_AG", tokens, h, heads, gather_first=True, recomputed=full, comm_redone=redo
        )
        build.fork("AttnBlock_KV_Fork", whole, 2, recomputed=redo, keeps_input=~redo)
        for name in ("Key", "Value"):
            build.linear(f"AttnBlock_{name}", tokens, h, kv_width, recomputed=full, reused=True, keeps_input=False)
    else:
        width = heads + 2 * kv_width * t
        build.overlapped_linear(
            "AttnBlock_QKV_AG", tokens, h, width, gather_first=True, recomputed=full, comm_redone=redo
        )
    if llama:
        build.rotary("AttnBlock_Rotary", tokens * (heads / t + kv_width), recomputed=full)

    batch = (keys.microbatch * app.attn_heads // t).astype(np.float64)
    if attention == FLASH:
        build.flash_attention("AttnBlock_Multihead", batch, s, k, dropout=not llama, recomputed=full)
    else:
        scores = (app.attn_heads // t * app.seq_size * app.seq_size * keys.microbatch).astype(np.float64)
        build.batch_matmul("AttnBlock_Multihead_Key_Query", batch, s, k, s, recomputed=core, keeps_output=~core)
        build.softmax("AttnBlock_Multihead_SoftMax", scores, recomputed=core, keeps_output=~core)
        if not llama:
            build.dropout("AttnBlock_Multihead_DropOut", scores, recomputed=core, keeps_input=~core)
        build.batch_matmul("AttnBlock_Multihead_Attn", batch, s, s, k, recomputed=full, keeps_output=True)

    _back(build, app, "AttnBlock", "MLP", heads, overlap=overlap)


def _mlp(build: Builder, app: Application, *, overlap: bool) -> None:
    keys, llama = build.keys, app.structure_type == "llama"
    tokens, whole, stream = _residual_stream(app, keys)
    t = keys.tensor_par
    full = keys.recompute == FULL
    redo = full | keys.redo
    h, wide = app.hidden, float(app.feedforward)
    first = 2 * wide if llama else wide
    """Gate and up projection in one product."""

    build.fork("MlpBlock_Fork", stream, 2, recomputed=full)
    build.norm("MlpBlock_LayerNorm", stream, h, rms=llama, recomputed=full)
    if overlap:
        build.overlapped_linear(
            "MlpBlock_Mlp1_AG", tokens, h, first, gather_first=True, recomputed=full, comm_redone=redo
        )
    else:
        build.tensor_comm("MlpBlock_F", whole, gather_first=True, comm_redone=redo)
        build.linear("MlpBlock_Mlp1", tokens, h, first / t, recomputed=full, keeps_input=~redo)
    activated = np.floor(wide * tokens / t)
    if llama:
        build.swiglu("MlpBlock_SwiGLU", activated, recomputed=full)
    else:
        build.gelu("MlpBlock_GeLU", activated, recomputed=full)
    _back(build, app, "MlpBlock", "Mlp2", wide, overlap=overlap)


def _back(build: Builder, app: Application, block: str, name: str, wide: float, *, overlap: bool) -> None:
    """Add the layers from `wide` elements of a token, over all ranks, back to the residual stream."""
    tokens, whole, stream = _residual_stream(app, build.keys)
    full = build.keys.recompute == FULL
    if overlap:
        build.overlapped_linear(
            f"{block}_{name}_RS", tokens, wide, app.hidden, gather_first=False, recomputed=full, comm_redone=full
        )
    else:
        build.linear(f"{block}_{name}", tokens, wide / build.keys.tensor_par, app.hidden, recomputed=full)
        build.tensor_comm(f"{block}_G", whole, gather_first=False, comm_redone=full, keeps_input=False)
    if app.structure_type != "llama":
        build.dropout(f"{block}_DropOut", stream, recomputed=full)
    build.residual(f"{block}_Residual", stream, recomputed=full)


def split_collectives(keys: BlockKeys, *, edge: bool) -> Flag:
    """Where a reduce-scatter and an all-gather replace the all-reduce: rs_ag, and p2p_rs_ag in a stage's edge block."""
    return (keys.comm_type == RS_AG) | (edge & (keys.comm_type == P2P_RS_AG))
