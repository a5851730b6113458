"""GPT-style families with LayerNorm: GPT-2, GPT-NeoX, OPT, BLOOM, Falcon, Phi-2, and plain shapes of papers."""

from __future__ import annotations

from meshwright.formats.huggingface.decoder import DecoderFamily
from meshwright.formats.huggingface.fields import MAX_SEQ_LEN, Fields

BLOOM_KEYS = {
    "hidden_size": ("n_embed",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
}
"""Spellings that BLOOM's and Falcon's first configs have."""


def gpt2(fields: Fields) -> DecoderFamily:
    """GPT-2: learned positions, biases everywhere, tied embeddings."""
    return DecoderFamily(
        synonyms={
            "hidden_size": ("n_embd",),
            "num_hidden_layers": ("n_layer",),
            "num_attention_heads": ("n_head",),
            "max_position_embeddings": ("n_positions", "n_ctx"),
        },
        tied=True,
        kv_heads="heads",
        qkv_bias=True,
        out_bias=True,
        ffn_key="n_inner",
        ffn_optional=True,
        gated=False,
        mlp_bias=True,
        norm="layernorm",
        learned_positions=0,
        dropout=fields.dropout("attn_pdrop", "resid_pdrop", default=0.1),
    )


def gpt_neox(fields: Fields) -> DecoderFamily:
    """GPT-NeoX and Pythia: rotary, two norms even where attention and MLP are parallel, untied."""
    bias = fields.flag("attention_bias", default=True)
    return DecoderFamily(
        kv_heads="heads",
        qkv_bias=bias,
        out_bias=bias,
        gated=False,
        mlp_bias=True,
        norm="layernorm",
        parallel_block=fields.flag("use_parallel_residual", default=True),
        dropout=fields.dropout("attention_dropout", "hidden_dropout"),
    )


def opt(fields: Fields) -> DecoderFamily:
    """OPT: a table of two positions more than the longest sequence (the offset of its padding index)."""
    hidden = fields.whole("hidden_size", "d_model")
    bias = fields.flag("enable_bias", default=True)
    narrow = fields.maybe("word_embed_proj_dim")
    if narrow not in (None, hidden) and not fields.bad("word_embed_proj_dim", "hidden_size", "d_model"):
        fields.refuse(
            "word_embed_proj_dim", narrow, f"only embeddings as wide as hidden_size = {hidden} can be planned"
        )
    pre_norm = fields.flag("do_layer_norm_before", default=True)
    removed = fields.flag("_remove_final_layer_norm", default=False)
    return DecoderFamily(
        synonyms={"hidden_size": ("d_model",)},
        tied=True,
        kv_heads="heads",
        qkv_bias=bias,
        out_bias=bias,
        ffn_key="ffn_dim",
        gated=False,
        mlp_bias=bias,
        norm="layernorm",
        learned_positions=2,
        final_norm=pre_norm and not removed,
        dropout=fields.dropout("dropout", default=0.1) or fields.dropout("attention_dropout", "activation_dropout"),
    )


def bloom(fields: Fields) -> DecoderFamily:
    """BLOOM: ALiBi, a norm after the embedding, tied."""
    return DecoderFamily(
        synonyms=BLOOM_KEYS,
        tied=True,
        max_seq_len=fields.whole("seq_length", default=2048, high=MAX_SEQ_LEN),
        kv_heads="heads",
        qkv_bias=True,
        out_bias=True,
        ffn_key="n_inner",
        ffn_optional=True,
        gated=False,
        mlp_bias=True,
        norm="layernorm",
        embedding_norm=True,
        dropout=fields.dropout("attention_dropout", "hidden_dropout"),
    )


def falcon(fields: Fields) -> DecoderFamily:
    """Falcon: one key-value head and one norm (7B), or groups and a norm for each branch (40B, 180B, 11B)."""
    heads = fields.whole("num_attention_heads", "n_head")
    modern = fields.flag("new_decoder_architecture", default=False)
    multi_query = fields.flag("multi_query", default=True)
    parallel = fields.flag("parallel_attn", default=True)
    old = 1 if multi_query else heads
    bias = fields.flag("bias", default=False)
    return DecoderFamily(
        synonyms=BLOOM_KEYS,
        defaults={"max_position_embeddings": 2048},
        tied=True,
        kv_heads=fields.kv_heads(heads, "num_kv_heads", "n_head_kv") if modern else old,
        qkv_bias=bias,
        out_bias=bias,
        ffn_key="ffn_hidden_size",
        ffn_optional=True,
        gated=False,
        mlp_bias=bias,
        norm="layernorm",
        norms=fields.whole("num_ln_in_parallel_attn", default=2 if modern else 1, high=2) if parallel else 2,
        parallel_block=parallel,
        dropout=fields.dropout("attention_dropout", "hidden_dropout"),
    )


def phi(fields: Fields) -> DecoderFamily:
    """Phi-1, 1.5 and 2: attention and MLP read one norm; biases everywhere, the head included."""
    if fields.flag("qk_layernorm", default=False):
        fields.refuse("qk_layernorm", True, "LayerNorm on queries and keys cannot be planned", "set it to false")
    return DecoderFamily(
        kv_heads="optional",
        qkv_bias=True,
        out_bias=True,
        ffn_optional=True,
        gated=False,
        mlp_bias=True,
        norm="layernorm",
        norms=1,
        parallel_block=True,
        head_bias=True,
        dropout=fields.dropout("attention_dropout", "resid_pdrop"),
    )


def gpt(fields: Fields) -> DecoderFamily:
    """A plain shape as papers print it; not a Hugging Face family.

    Beside the usual keys: `gated_mlp` (false), `bias` (true), `norm` (layernorm | rmsnorm), `parallel_block` (false,
    with one norm for both branches), `learned_positions` (true), `tie_word_embeddings` (true), `dropout` (0).
    """
    bias = fields.flag("bias", default=True)
    parallel = fields.flag("parallel_block", default=False)
    norm = fields.word("norm", ("layernorm", "rmsnorm"), "layernorm")
    return DecoderFamily(
        tied=True,
        kv_heads="optional",
        qkv_bias=bias,
        out_bias=bias,
        ffn_optional=True,
        gated=fields.flag("gated_mlp", default=False),
        mlp_bias=bias,
        norm="rmsnorm" if norm == "rmsnorm" else "layernorm",
        norms=1 if parallel else 2,
        parallel_block=parallel,
        learned_positions=0 if fields.flag("learned_positions", default=True) else None,
        dropout=fields.dropout("dropout"),
    )
