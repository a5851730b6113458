"""Attention over a window and compressed earlier tokens, from the fields of a config (DeepSeek-V4)."""

from __future__ import annotations

from dataclasses import replace

from meshwright.formats.huggingface.fields import Fields
from meshwright.specs.layers.compressed_attention import CompressedAttention
from meshwright.specs.layers.indexer import Indexer

DRAFTS = ("dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids", "dspark_markov_rank")
"""Keys of layers behind the others that draft tokens (DeepSeek-V4-Flash of 2026-07)."""
SPARSE_RATE = 4
"""Tokens of an entry in layers whose entries an indexer picks; entries of more tokens are all seen."""


def read_compressed(fields: Fields, layers: int) -> list[CompressedAttention]:
    """The mixer of each layer, and of each module for more tokens behind them.

    Args:
        fields: the config.
        layers: how many there are.
    """
    rates = _rates(fields, layers)
    heads, groups = fields.whole("num_attention_heads"), fields.whole("o_groups")
    fields.has("qk_rope_head_dim", "layer_types", "compress_rope_theta")  # no weights, and no more work
    if fields.whole("num_key_value_heads", default=1) != 1:
        why = "one head of keys and values serves all queries"
        fields.problem("num_key_value_heads", fields.raw("num_key_value_heads"), why)
    if not fields.bad("o_groups", "num_attention_heads") and heads % groups:
        fields.problem("o_groups", groups, f"must divide the {heads} attention heads")
    windowed = CompressedAttention(
        heads=heads,
        head_dim=fields.whole("head_dim"),
        q_rank=fields.whole("q_lora_rank"),
        output_groups=1 if fields.bad("o_groups", "num_attention_heads") else groups,
        output_rank=fields.whole("o_lora_rank"),
        window=fields.whole("sliding_window"),
    )
    indexer = None
    if SPARSE_RATE in rates:
        indexer = Indexer(
            heads=fields.whole("index_n_heads"), dim=fields.whole("index_head_dim"), top_k=fields.whole("index_topk")
        )
    kinds = {
        rate: replace(windowed, rate=rate, indexer=indexer if rate == SPARSE_RATE else None) for rate in set(rates)
    }
    return [kinds[rate] for rate in rates]


def read_residuals(fields: Fields) -> int:
    """Copies of the residual stream, 1 where the config has none."""
    fields.has("hc_sinkhorn_iters", "hc_magnitude")  # normalisations of a few numbers per token
    return fields.whole("hc_mult", default=1, high=64)


def _rates(fields: Fields, layers: int) -> list[int]:
    """One number a layer; modules for more tokens may have theirs behind."""
    stated = fields.raw("compress_ratios")
    modules = fields.whole("num_nextn_predict_layers", low=0, default=0, high=64)
    whole = isinstance(stated, (list, tuple)) and all(type(rate) is int and rate >= 0 for rate in stated)
    if fields.has(*DRAFTS) and whole and len(stated) > layers:  # type: ignore[arg-type]
        fields.remark("the layers that draft tokens for its decoding (dspark) are left out")
        stated = stated[:layers]  # type: ignore[index]
    if not whole or len(stated) not in (layers, layers + modules):  # type: ignore[arg-type]
        why = f"must be a whole number for each of {layers} layers, and for modules of more tokens if they have any"
        fields.problem("compress_ratios", stated, why)
        return [0] * layers
    return list(stated)  # type: ignore[call-overload]
