"""The model that keys of MaxText describe, where they name none: decoders of its Llama block.

Source: src/maxtext/configs/base.yml and get_individual_scales of src/maxtext/configs/types.py of MaxText (2026-11).
"""

from __future__ import annotations

from typing import Any

from meshwright.targets.keys import KeyReader

_BLOCKS = ("llama2", "mistral", "default")
"""Decoder blocks that are described by their sizes alone."""
_SIZES = {
    "base_emb_dim": 2048,
    "base_num_query_heads": 16,
    "base_num_kv_heads": 16,
    "base_mlp_dim": 7168,
    "base_num_decoder_layers": 16,
    "head_dim": 128,
    "vocab_size": 32_000,
    "max_target_length": 2048,
}
"""Keys with MaxText's own defaults."""
EARLIER = ("base_num_heads", "max_eval_target_length")
"""Keys of 2023: heads of queries, keys and values together, and a length that only evaluation has."""
_GATED = (["silu", "linear"], ["gelu", "linear"])
_PLAIN = (["gelu"], ["relu"], ["silu"])


def described(reader: KeyReader) -> dict[str, Any]:
    """Facts of the model in the words of `formats.megatron.model_facts`; nothing where keys describe another kind.

    Args:
        reader: the keys; sizes that are wrong become its problems.
    """
    block, experts = reader.word("decoder_block", "llama2"), reader.get("num_experts", 1)
    activations = reader.get("mlp_activations", _GATED[0])
    known = block in _BLOCKS and experts == 1 and activations in (*_GATED, *_PLAIN)
    if not known or reader.word("attention_type", "global") != "global":
        return {}
    heads = reader.degree("base_num_heads", _SIZES["base_num_query_heads"])
    usual = _SIZES | dict.fromkeys(("base_num_query_heads", "base_num_kv_heads"), heads)
    sizes = {name: reader.degree(name, number) for name, number in usual.items()}
    layers, width, wider, inner = _scales(reader)
    positions = reader.degree("max_position_embeddings", sizes["max_target_length"])
    return {
        "num_layers": sizes["base_num_decoder_layers"] * layers,
        "hidden": sizes["base_emb_dim"] * width,
        "heads": sizes["base_num_query_heads"] * wider,
        "kv_heads": sizes["base_num_kv_heads"] * wider,
        "head_dim": sizes["head_dim"],
        "ffn_hidden": sizes["base_mlp_dim"] * inner,
        "vocab": sizes["vocab_size"],
        "tokenizer": ("", ""),
        "gated": activations in _GATED,
        "norm": "rmsnorm",
        "biases": (False, False, False),
        "dropout": bool(reader.get("dropout_rate", 0.0)),
        "tied_embeddings": reader.switch("logits_via_embedding"),
        "learned_positions": False,
        "max_positions": positions,
        "mtp_layers": 0,
        "qk_norm": reader.switch("use_qk_norm"),
        "output_gate": False,
        "sinks": False,
        "windows": [None] * (sizes["base_num_decoder_layers"] * layers),
    }


def _scales(reader: KeyReader) -> tuple[int, int, int, int]:
    """Factors of layers, width, heads and inner width: each doubling of the model goes to one of three in turn."""
    whole = reader.degree("global_parameter_scale")
    doublings = whole.bit_length() - 1
    if 2**doublings != whole:
        reader.refuse("global_parameter_scale", whole, "must be a power of two")
        return 1, 1, 1, 1
    each, rest = divmod(doublings, 3)
    heads = 2 ** (each + (rest > 0))
    return 2**each, 2 ** (each + (rest > 1)), heads, heads
