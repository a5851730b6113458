"""GPT-style families with LayerNorm: GPT-2, GPT-NeoX, OPT, BLOOM, Falcon, Phi-2, and plain shapes of papers."""

from __future__ import annotations

from typing import Literal

from meshwright.formats.huggingface.fields import MAX_SEQ_LEN, Fields, fold
from meshwright.specs.layers import Attention, DenseMlp
from meshwright.specs.model import LayerSpec, ModelSpec


def _model(
    fields: Fields,
    family: str,
    *,
    hidden: int,
    layers: int,
    heads: int,
    vocab: int,
    max_seq_len: int,
    tied: bool,
    ffn_hidden: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    gated: bool = False,
    qkv_bias: bool = True,
    out_bias: bool = True,
    mlp_bias: bool = True,
    norm: Literal["rmsnorm", "layernorm"] = "layernorm",
    norms: int = 2,
    parallel_block: bool = False,
    dropout: bool = False,
    learned_positions: int = 0,
    embedding_norm: bool = False,
    final_norm: bool = True,
    head_bias: bool = False,
) -> ModelSpec:
    """Equal layers, after all problems are raised; left out are heads of hidden / heads and an MLP of 4 hidden."""
    size = head_dim or fields.head_dim(hidden, heads)
    fields.done()
    layer = LayerSpec(
        attention=Attention(
            heads=heads,
            kv_heads=kv_heads or heads,
            head_dim=size,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
        ),
        mlp=DenseMlp(ffn_hidden=ffn_hidden or 4 * hidden, gated=gated, bias=mlp_bias),
        norm=norm,
        norms=norms,
        parallel_block=parallel_block,
        dropout=dropout,
    )
    return ModelSpec(
        name=fields.name,
        family=family,
        hidden=hidden,
        vocab=vocab,
        max_seq_len=max_seq_len,
        runs=fold([layer] * layers),
        tied_embeddings=tied,
        learned_positions=learned_positions,
        embedding_norm=embedding_norm,
        final_norm=norm if final_norm else None,
        head_bias=head_bias,
    )


def read_gpt2(fields: Fields) -> ModelSpec:
    """GPT-2: learned positions, biases everywhere, tied embeddings."""
    positions = fields.max_seq_len("n_positions", "n_ctx")
    return _model(
        fields,
        "gpt2",
        hidden=fields.whole("hidden_size", "n_embd"),
        layers=fields.layers("n_layer"),
        heads=fields.whole("num_attention_heads", "n_head"),
        vocab=fields.vocab(),
        max_seq_len=positions,
        tied=fields.flag("tie_word_embeddings", default=True),
        ffn_hidden=fields.maybe("n_inner"),
        learned_positions=positions,
        dropout=fields.dropout("attn_pdrop", "resid_pdrop", default=0.1),
    )


def read_gpt_neox(fields: Fields) -> ModelSpec:
    """GPT-NeoX and Pythia: rotary, two norms even where attention and MLP are parallel, untied."""
    bias = fields.flag("attention_bias", default=True)
    return _model(
        fields,
        "gpt_neox",
        hidden=fields.whole("hidden_size"),
        layers=fields.layers(),
        heads=fields.whole("num_attention_heads"),
        vocab=fields.vocab(),
        max_seq_len=fields.max_seq_len(),
        tied=fields.flag("tie_word_embeddings", default=False),
        ffn_hidden=fields.whole("intermediate_size"),
        qkv_bias=bias,
        out_bias=bias,
        parallel_block=fields.flag("use_parallel_residual", default=True),
        dropout=fields.dropout("attention_dropout", "hidden_dropout"),
    )


def read_opt(fields: Fields) -> ModelSpec:
    """OPT: a table of two positions more than the longest sequence (the offset of its padding index)."""
    hidden = fields.whole("hidden_size", "d_model")
    positions = fields.max_seq_len()
    bias = fields.flag("enable_bias", default=True)
    narrow = fields.maybe("word_embed_proj_dim")
    if narrow not in (None, hidden) and not fields.bad("word_embed_proj_dim", "hidden_size", "d_model"):
        fields.refuse(
            "word_embed_proj_dim", narrow, f"only embeddings as wide as hidden_size = {hidden} can be planned"
        )
    pre_norm = fields.flag("do_layer_norm_before", default=True)
    removed = fields.flag("_remove_final_layer_norm", default=False)
    return _model(
        fields,
        "opt",
        hidden=hidden,
        layers=fields.layers(),
        heads=fields.whole("num_attention_heads"),
        vocab=fields.vocab(),
        max_seq_len=positions,
        tied=fields.flag("tie_word_embeddings", default=True),
        ffn_hidden=fields.whole("ffn_dim"),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        learned_positions=positions + 2,
        final_norm=pre_norm and not removed,
        dropout=fields.dropout("dropout", default=0.1) or fields.dropout("attention_dropout", "activation_dropout"),
    )


def read_bloom(fields: Fields) -> ModelSpec:
    """BLOOM: ALiBi, a norm after the embedding, tied."""
    return _model(
        fields,
        "bloom",
        hidden=fields.whole("hidden_size", "n_embed"),
        layers=fields.layers("n_layer"),
        heads=fields.whole("num_attention_heads", "n_head"),
        vocab=fields.vocab(),
        max_seq_len=fields.whole("seq_length", default=2048, high=MAX_SEQ_LEN),
        tied=fields.flag("tie_word_embeddings", default=True),
        ffn_hidden=fields.maybe("n_inner"),
        embedding_norm=True,
        dropout=fields.dropout("attention_dropout", "hidden_dropout"),
    )


def read_falcon(fields: Fields) -> ModelSpec:
    """Falcon: one key-value head and one norm (7B), or groups and a norm for each branch (40B, 180B, 11B)."""
    heads = fields.whole("num_attention_heads", "n_head")
    modern = fields.flag("new_decoder_architecture", default=False)
    multi_query = fields.flag("multi_query", default=True)
    parallel = fields.flag("parallel_attn", default=True)
    old = 1 if multi_query else heads
    kv_heads = fields.kv_heads(heads, "num_kv_heads", "n_head_kv") if modern else old
    norms = fields.whole("num_ln_in_parallel_attn", default=2 if modern else 1, high=2) if parallel else 2
    bias = fields.flag("bias", default=False)
    return _model(
        fields,
        "falcon",
        hidden=fields.whole("hidden_size", "n_embed"),
        layers=fields.layers("n_layer"),
        heads=heads,
        kv_heads=kv_heads,
        vocab=fields.vocab(),
        max_seq_len=fields.max_seq_len(default=2048),
        tied=fields.flag("tie_word_embeddings", default=True),
        ffn_hidden=fields.maybe("ffn_hidden_size"),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        norms=norms,
        parallel_block=parallel,
        dropout=fields.dropout("attention_dropout", "hidden_dropout"),
    )


def read_phi(fields: Fields) -> ModelSpec:
    """Phi-1, 1.5 and 2: attention and MLP read one norm; biases everywhere, the head included."""
    heads = fields.whole("num_attention_heads")
    if fields.flag("qk_layernorm", default=False):
        fields.refuse("qk_layernorm", True, "LayerNorm on queries and keys cannot be planned", "set it to false")
    return _model(
        fields,
        "phi",
        hidden=fields.whole("hidden_size"),
        layers=fields.layers(),
        heads=heads,
        kv_heads=fields.kv_heads(heads),
        vocab=fields.vocab(),
        max_seq_len=fields.max_seq_len(),
        tied=fields.flag("tie_word_embeddings", default=False),
        ffn_hidden=fields.maybe("intermediate_size"),
        norms=1,
        parallel_block=True,
        head_bias=True,
        dropout=fields.dropout("attention_dropout", "resid_pdrop"),
    )


def read_gpt(fields: Fields) -> ModelSpec:
    """A plain shape as papers print it; not a Hugging Face family.

    Beside the usual keys: `gated_mlp` (false), `bias` (true), `norm` (layernorm | rmsnorm), `parallel_block` (false,
    with one norm for both branches), `learned_positions` (true), `tie_word_embeddings` (true), `dropout` (0).
    """
    hidden = fields.whole("hidden_size")
    heads = fields.whole("num_attention_heads")
    positions = fields.max_seq_len()
    bias = fields.flag("bias", default=True)
    parallel = fields.flag("parallel_block", default=False)
    learned = fields.flag("learned_positions", default=True)
    norm = fields.word("norm", ("layernorm", "rmsnorm"), "layernorm")
    return _model(
        fields,
        "gpt",
        hidden=hidden,
        layers=fields.layers(),
        heads=heads,
        kv_heads=fields.kv_heads(heads),
        head_dim=fields.head_dim(hidden, heads),
        vocab=fields.vocab(),
        max_seq_len=positions,
        tied=fields.flag("tie_word_embeddings", default=True),
        ffn_hidden=fields.maybe("intermediate_size"),
        gated=fields.flag("gated_mlp", default=False),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        norm="rmsnorm" if norm == "rmsnorm" else "layernorm",
        norms=1 if parallel else 2,
        parallel_block=parallel,
        learned_positions=positions if learned else 0,
        dropout=fields.dropout("dropout"),
    )
