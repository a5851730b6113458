"""DeepSeek V2 and V3 (Kimi K2 shares the layers): latent attention, shared experts, first layers dense, MTP."""

from __future__ import annotations

from meshwright.formats.huggingface.fields import Fields, fold
from meshwright.specs.layers import DenseMlp, LatentAttention, MoeMlp
from meshwright.specs.model import LayerSpec, ModelSpec


def read_deepseek_v2(fields: Fields) -> ModelSpec:
    """DeepSeek-V2 and V2-Lite, which projects queries directly."""
    return _read(fields, "deepseek_v2")


def read_deepseek_v3(fields: Fields) -> ModelSpec:
    """DeepSeek-V3, V3.1 and R1.

    The 256 balancing biases a layer are not counted: they are moved by the load, not by a gradient.
    """
    return _read(fields, "deepseek_v3")


def _read(fields: Fields, family: str) -> ModelSpec:
    hidden = fields.whole("hidden_size")
    layers = fields.layers()
    heads = fields.whole("num_attention_heads")
    # null says that queries have no latent; a missing key says nothing.
    q_rank = fields.maybe("q_lora_rank") if fields.has("q_lora_rank") else fields.whole("q_lora_rank")
    kv_rank = fields.whole("kv_lora_rank")
    nope_dim = fields.whole("qk_nope_head_dim")
    rope_dim = fields.whole("qk_rope_head_dim")
    value_dim = fields.whole("v_head_dim")

    experts = fields.experts("n_routed_experts", "num_local_experts", low=0, default=0)
    top_k = fields.top_k(experts) if experts else 1
    shared_experts = fields.whole("n_shared_experts", low=0, default=0, high=1024)
    first = fields.whole("first_k_dense_replace", low=0, default=0)
    every = fields.whole("moe_layer_freq", default=1)
    sparse = [experts > 0 and i >= first and i % every == 0 for i in range(layers)]
    dense_width = fields.whole("intermediate_size") if not all(sparse) else 1
    expert_width = fields.whole("moe_intermediate_size") if any(sparse) else 1

    vocab = fields.vocab()
    max_seq_len = fields.max_seq_len()
    tied = fields.flag("tie_word_embeddings", default=False)
    mtp_layers = fields.whole("num_nextn_predict_layers", low=0, default=0, high=64)
    dropout = fields.dropout("attention_dropout")
    if fields.flag("attention_bias", default=False):
        fields.refuse("attention_bias", True, "latent attention with biases cannot be planned", "set it to false")
    fields.done()

    attention = LatentAttention(
        heads=heads, q_rank=q_rank, kv_rank=kv_rank, nope_dim=nope_dim, rope_dim=rope_dim, value_dim=value_dim
    )
    dense = LayerSpec(attention=attention, mlp=DenseMlp(ffn_hidden=dense_width, gated=True), dropout=dropout)
    moe = LayerSpec(
        attention=attention,
        mlp=MoeMlp(
            experts=experts or 1,
            top_k=top_k,
            ffn_hidden=expert_width,
            gated=True,
            shared_ffn_hidden=shared_experts * expert_width,
        ),
        dropout=dropout,
    )
    return ModelSpec(
        name=fields.name,
        family=family,
        hidden=hidden,
        vocab=vocab,
        max_seq_len=max_seq_len,
        runs=fold([moe if is_sparse else dense for is_sparse in sparse]),
        tied_embeddings=tied,
        mtp_layers=mtp_layers,
    )
