"""Families with a mixture of experts: Mixtral, Phi-3.5-MoE, Qwen-MoE, gpt-oss, Llama 4, DeepSeek (and Kimi K2)."""

from __future__ import annotations

from meshwright.formats.huggingface.decoder import DecoderFamily, sliding_window
from meshwright.formats.huggingface.dense import qwen_window
from meshwright.formats.huggingface.fields import Fields
from meshwright.specs.layers import DenseMlp, LatentAttention, MoeMlp


def mixtral(fields: Fields) -> DecoderFamily:
    """Mixtral: every layer has experts."""
    return DecoderFamily(window=fields.maybe("sliding_window"), mlps=[_local_experts(fields)] * fields.layers())


def phimoe(fields: Fields) -> DecoderFamily:
    """Phi-3.5-MoE: Mixtral with LayerNorm and biases on attention and head."""
    bias = fields.flag("attention_bias", default=False)
    return DecoderFamily(
        window=fields.maybe("sliding_window"),
        qkv_bias=bias,
        out_bias=bias,
        norm="layernorm",
        head_bias=fields.flag("lm_head_bias", default=False),
        mlps=[_local_experts(fields)] * fields.layers(),
    )


def _local_experts(fields: Fields) -> MoeMlp:
    experts = fields.experts("num_local_experts", "num_experts")
    top_k = fields.top_k(experts)
    return MoeMlp(experts=experts, top_k=top_k, ffn_hidden=fields.whole("intermediate_size"), gated=True)


def qwen2_moe(fields: Fields) -> DecoderFamily:
    """Qwen1.5-MoE and Qwen2-MoE: a gated shared expert beside the routed ones; biases on query, key and value."""
    on = fields.flag("use_sliding_window", default=False)
    last = fields.whole("max_window_layers", default=28, low=0)
    window = fields.maybe("sliding_window", low=0) if on else None
    return DecoderFamily(
        qkv_bias=True,
        window=window or None,
        sliding=fields.sliding(fields.layers(), lambda number: on and number % 2 == 0 and number < last),
        mlps=_qwen_mlps(fields, shared=fields.whole("shared_expert_intermediate_size", low=0)),
    )


def qwen3_moe(fields: Fields) -> DecoderFamily:
    """Qwen3-MoE: no shared expert; norms on queries and keys."""
    window, _ = qwen_window(fields)
    bias = fields.flag("attention_bias", default=False)
    return DecoderFamily(
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        window=window,
        sliding=fields.sliding(fields.layers(), lambda number: True),
        mlps=_qwen_mlps(fields, shared=0),
    )


def _qwen_mlps(fields: Fields, *, shared: int) -> list[DenseMlp | MoeMlp]:
    layers = fields.layers()
    experts = fields.experts("num_experts", "num_local_experts", low=0)
    step = fields.whole("decoder_sparse_step", default=1)
    plain = fields.positions("mlp_only_layers", layers) or frozenset()
    sparse = [experts > 0 and i not in plain and (i + 1) % step == 0 for i in range(layers)]
    return _alternating(fields, sparse, experts, shared=shared, gate=shared > 0)


def _alternating(
    fields: Fields, sparse: list[bool], experts: int, *, shared: int, gate: bool = False
) -> list[DenseMlp | MoeMlp]:
    """MLP of each layer: experts of `moe_intermediate_size` in the sparse ones, dense in the others.

    A width that no layer uses may be missing or anything.
    """
    moe = MoeMlp(
        experts=experts or 1,
        top_k=fields.top_k(experts) if experts else 1,
        ffn_hidden=fields.whole("moe_intermediate_size") if any(sparse) else 1,
        gated=True,
        shared_ffn_hidden=shared,
        shared_gate=gate,
    )
    dense = DenseMlp(ffn_hidden=fields.whole("intermediate_size") if not all(sparse) else 1, gated=True)
    return [moe if is_sparse else dense for is_sparse in sparse]


def gpt_oss(fields: Fields) -> DecoderFamily:
    """gpt-oss: biases everywhere, one sink a head; even layers see a window of 128, odd ones everything."""
    bias = fields.flag("attention_bias", default=True)
    experts = fields.experts("num_local_experts", "num_experts")
    # The first configs say `experts_per_token` beside the usual name.
    top_k = fields.top_k(experts, "experts_per_token")
    width = fields.whole("intermediate_size")
    mlp = MoeMlp(experts=experts, top_k=top_k, ffn_hidden=width, gated=True, router_bias=True, bias=True)
    return DecoderFamily(
        defaults={"head_dim": 64},
        qkv_bias=bias,
        out_bias=bias,
        sinks=True,
        window=sliding_window(fields, 128),
        sliding=fields.sliding(fields.layers(), lambda number: number % 2 == 0),
        mlps=[mlp] * fields.layers(),
    )


def llama4(fields: Fields) -> DecoderFamily:
    """Llama 4 text model: routed experts and a shared one as wide in each `interleave_moe_layer_step`-th layer.

    Its norm on queries and keys has no weights and is not counted. Three layers in four attend within chunks; a
    chunk is planned as a window of its size, the same for sequences up to one chunk and an upper bound beyond.
    """
    layers = fields.layers()
    chunk = sliding_window(fields, 8192, "attention_chunk_size")
    interval = fields.whole("no_rope_layer_interval", default=4)
    chunked = fields.sliding(layers, lambda number: (number + 1) % interval != 0)
    bias = fields.flag("attention_bias", default=False)
    experts = fields.experts("num_local_experts", "num_experts")
    top_k = fields.top_k(experts)
    step = fields.whole("interleave_moe_layer_step", default=1)
    chosen = fields.positions("moe_layers", layers)
    sparse = [i in chosen if chosen is not None else (i + 1) % step == 0 for i in range(layers)]
    width = fields.whole("intermediate_size")
    moe = MoeMlp(experts=experts, top_k=top_k, ffn_hidden=width, gated=True, shared_ffn_hidden=width)
    dense = DenseMlp(ffn_hidden=fields.whole("intermediate_size_mlp") if not all(sparse) else 1, gated=True)
    noted = chunk is not None and any(chunked)
    return DecoderFamily(
        defaults={"head_dim": 128},
        qkv_bias=bias,
        out_bias=bias,
        window=chunk,
        sliding=chunked,
        mlps=[moe if is_sparse else dense for is_sparse in sparse],
        notes=(f"attention within chunks of {chunk} is planned as a window of {chunk}",) if noted else (),
    )


def deepseek_v2(fields: Fields) -> DecoderFamily:
    """DeepSeek-V2 and V2-Lite, which projects queries directly: latent attention, first layers dense, MTP."""
    layers = fields.layers()
    attention = LatentAttention(
        heads=fields.whole("num_attention_heads"),
        # null says that queries have no latent; a missing key says nothing.
        q_rank=fields.maybe("q_lora_rank") if fields.has("q_lora_rank") else fields.whole("q_lora_rank"),
        kv_rank=fields.whole("kv_lora_rank"),
        nope_dim=fields.whole("qk_nope_head_dim"),
        rope_dim=fields.whole("qk_rope_head_dim"),
        value_dim=fields.whole("v_head_dim"),
    )
    experts = fields.experts("n_routed_experts", "num_local_experts", low=0, default=0)
    first = fields.whole("first_k_dense_replace", low=0, default=0)
    every = fields.whole("moe_layer_freq", default=1)
    sparse = [experts > 0 and i >= first and i % every == 0 for i in range(layers)]
    shared = fields.whole("n_shared_experts", low=0, default=0, high=1024)
    width = fields.whole("moe_intermediate_size") if any(sparse) else 1
    if fields.flag("attention_bias", default=False):
        fields.refuse("attention_bias", True, "latent attention with biases cannot be planned", "set it to false")
    return DecoderFamily(
        attention=attention,
        mlps=_alternating(fields, sparse, experts, shared=shared * width),
        mtp_layers=fields.whole("num_nextn_predict_layers", low=0, default=0, high=64),
    )


def deepseek_v3(fields: Fields) -> DecoderFamily:
    """DeepSeek-V3, V3.1 and R1, whose layers Kimi K2 shares: those of V2.

    The 256 balancing biases a layer are not counted: they are moved by the load, not by a gradient.
    """
    return deepseek_v2(fields)
