"""Families with a mixture of experts and grouped-query attention: Mixtral, Phi-3.5-MoE, Qwen-MoE, gpt-oss, Llama 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from meshwright.formats.huggingface.dense import qwen_window
from meshwright.formats.huggingface.fields import Fields, fold
from meshwright.specs.layers import Attention, DenseMlp, MoeMlp
from meshwright.specs.model import LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """What every family here reads the same way."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_seq_len: int
    tied: bool
    dropout: bool

    @classmethod
    def read(cls, fields: Fields, *, head_dim: int | None = None) -> Trunk:
        """The shared keys; `head_dim` is what a missing one means."""
        hidden = fields.whole("hidden_size")
        heads = fields.whole("num_attention_heads")
        return cls(
            hidden=hidden,
            layers=fields.layers(),
            heads=heads,
            kv_heads=fields.kv_heads(heads, required=True),
            head_dim=fields.head_dim(hidden, heads, default=head_dim),
            vocab=fields.vocab(),
            max_seq_len=fields.max_seq_len(),
            tied=fields.flag("tie_word_embeddings", default=False),
            dropout=fields.dropout("attention_dropout"),
        )

    def layer(
        self,
        mlp: DenseMlp | MoeMlp,
        *,
        window: int | None = None,
        qkv_bias: bool = False,
        out_bias: bool = False,
        qk_norm: bool = False,
        sinks: bool = False,
        norm: Literal["rmsnorm", "layernorm"] = "rmsnorm",
    ) -> LayerSpec:
        """A layer with this trunk's attention."""
        return LayerSpec(
            attention=Attention(
                heads=self.heads,
                kv_heads=self.kv_heads,
                head_dim=self.head_dim,
                window=window,
                qkv_bias=qkv_bias,
                out_bias=out_bias,
                qk_norm=qk_norm,
                sinks=sinks,
            ),
            mlp=mlp,
            norm=norm,
            dropout=self.dropout,
        )

    def model(
        self,
        name: str,
        family: str,
        layers: Sequence[LayerSpec],
        *,
        final_norm: Literal["rmsnorm", "layernorm"] = "rmsnorm",
        head_bias: bool = False,
        notes: tuple[str, ...] = (),
    ) -> ModelSpec:
        """The model of these layers."""
        return ModelSpec(
            name=name,
            family=family,
            hidden=self.hidden,
            vocab=self.vocab,
            max_seq_len=self.max_seq_len,
            runs=fold(layers),
            tied_embeddings=self.tied,
            final_norm=final_norm,
            head_bias=head_bias,
            notes=notes,
        )


def read_mixtral(fields: Fields) -> ModelSpec:
    """Mixtral: every layer has experts."""
    trunk = Trunk.read(fields)
    window = fields.maybe("sliding_window")
    mlp = _local_experts(fields)
    return trunk.model(fields.name, "mixtral", [trunk.layer(mlp, window=window)] * trunk.layers)


def read_phimoe(fields: Fields) -> ModelSpec:
    """Phi-3.5-MoE: Mixtral with LayerNorm and biases on attention and head."""
    trunk = Trunk.read(fields)
    window = fields.maybe("sliding_window")
    bias = fields.flag("attention_bias", default=False)
    head_bias = fields.flag("lm_head_bias", default=False)
    mlp = _local_experts(fields)
    layer = trunk.layer(mlp, window=window, qkv_bias=bias, out_bias=bias, norm="layernorm")
    return trunk.model(fields.name, "phimoe", [layer] * trunk.layers, final_norm="layernorm", head_bias=head_bias)


def _local_experts(fields: Fields) -> MoeMlp:
    experts = fields.experts("num_local_experts", "num_experts")
    top_k = fields.top_k(experts)
    ffn_hidden = fields.whole("intermediate_size")
    fields.done()
    return MoeMlp(experts=experts, top_k=top_k, ffn_hidden=ffn_hidden, gated=True)


def read_qwen2_moe(fields: Fields) -> ModelSpec:
    """Qwen1.5-MoE and Qwen2-MoE: a gated shared expert beside the routed ones; biases on query, key and value."""
    trunk = Trunk.read(fields)
    shared = fields.whole("shared_expert_intermediate_size", low=0)
    on = fields.flag("use_sliding_window", default=False)
    last = fields.whole("max_window_layers", default=28, low=0)
    window = fields.maybe("sliding_window", low=0) if on else None
    sliding = fields.sliding(trunk.layers, lambda number: on and number % 2 == 0 and number < last)
    return _qwen_moe(fields, "qwen2_moe", trunk, shared, window or None, sliding, qkv_bias=True)


def read_qwen3_moe(fields: Fields) -> ModelSpec:
    """Qwen3-MoE: no shared expert; norms on queries and keys."""
    trunk = Trunk.read(fields)
    window, _ = qwen_window(fields)
    sliding = fields.sliding(trunk.layers, lambda number: True)
    bias = fields.flag("attention_bias", default=False)
    return _qwen_moe(fields, "qwen3_moe", trunk, 0, window, sliding, qkv_bias=bias, out_bias=bias, qk_norm=True)


def _qwen_moe(
    fields: Fields,
    family: str,
    trunk: Trunk,
    shared: int,
    window: int | None,
    sliding: list[bool],
    *,
    qkv_bias: bool,
    out_bias: bool = False,
    qk_norm: bool = False,
) -> ModelSpec:
    experts = fields.experts("num_experts", "num_local_experts", low=0)
    top_k = fields.top_k(experts or 1) if experts else 1
    step = fields.whole("decoder_sparse_step", default=1)
    plain = fields.positions("mlp_only_layers", trunk.layers) or frozenset()
    sparse = [experts > 0 and i not in plain and (i + 1) % step == 0 for i in range(trunk.layers)]
    # A width that no layer uses may be missing or anything.
    dense_width = fields.whole("intermediate_size") if not all(sparse) else 1
    expert_width = fields.whole("moe_intermediate_size") if any(sparse) else 1
    fields.done()
    moe = MoeMlp(
        experts=experts or 1,
        top_k=top_k,
        ffn_hidden=expert_width,
        gated=True,
        shared_ffn_hidden=shared,
        shared_gate=shared > 0,
    )
    dense = DenseMlp(ffn_hidden=dense_width, gated=True)
    kinds = {
        (is_sparse, slides): trunk.layer(
            moe if is_sparse else dense,
            window=window if slides else None,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            qk_norm=qk_norm,
        )
        for is_sparse in (False, True)
        for slides in (False, True)
    }
    return trunk.model(fields.name, family, [kinds[pair] for pair in zip(sparse, sliding, strict=True)])


def read_gpt_oss(fields: Fields) -> ModelSpec:
    """gpt-oss: biases everywhere, one sink a head; even layers see a window of 128, odd ones everything."""
    trunk = Trunk.read(fields, head_dim=64)
    window = fields.maybe("sliding_window") if fields.has("sliding_window") else 128
    sliding = fields.sliding(trunk.layers, lambda number: number % 2 == 0)
    bias = fields.flag("attention_bias", default=True)
    experts = fields.experts("num_local_experts", "num_experts")
    # The first configs say `experts_per_token` beside the usual name.
    top_k = fields.top_k(experts, "experts_per_token")
    ffn_hidden = fields.whole("intermediate_size")
    fields.done()
    mlp = MoeMlp(experts=experts, top_k=top_k, ffn_hidden=ffn_hidden, gated=True, router_bias=True, bias=True)
    narrow, full = (trunk.layer(mlp, window=view, qkv_bias=bias, out_bias=bias, sinks=True) for view in (window, None))
    return trunk.model(fields.name, "gpt_oss", [narrow if slides else full for slides in sliding])


def read_llama4(fields: Fields) -> ModelSpec:
    """Llama 4 text model: routed experts and a shared one as wide in each `interleave_moe_layer_step`-th layer.

    Its norm on queries and keys has no weights and is not counted. Three layers in four attend within chunks; a
    chunk is planned as a window of its size, the same for sequences up to one chunk and an upper bound beyond.
    """
    trunk = Trunk.read(fields, head_dim=128)
    chunk = fields.maybe("attention_chunk_size") if fields.has("attention_chunk_size") else 8192
    interval = fields.whole("no_rope_layer_interval", default=4)
    chunked = fields.sliding(trunk.layers, lambda number: (number + 1) % interval != 0)
    bias = fields.flag("attention_bias", default=False)
    experts = fields.experts("num_local_experts", "num_experts")
    top_k = fields.top_k(experts)
    step = fields.whole("interleave_moe_layer_step", default=1)
    chosen = fields.positions("moe_layers", trunk.layers)
    sparse = [i in chosen if chosen is not None else (i + 1) % step == 0 for i in range(trunk.layers)]
    width = fields.whole("intermediate_size")
    dense_width = fields.whole("intermediate_size_mlp") if not all(sparse) else 1
    fields.done()
    moe = MoeMlp(experts=experts, top_k=top_k, ffn_hidden=width, gated=True, shared_ffn_hidden=width)
    dense = DenseMlp(ffn_hidden=dense_width, gated=True)
    kinds = {
        (is_sparse, narrow): trunk.layer(
            moe if is_sparse else dense, window=chunk if narrow else None, qkv_bias=bias, out_bias=bias
        )
        for is_sparse in (False, True)
        for narrow in (False, True)
    }
    notes: tuple[str, ...] = ()
    if chunk is not None and any(chunked):
        notes = (f"attention within chunks of {chunk} is planned as a window of {chunk}",)
    return trunk.model(fields.name, "llama4", [kinds[pair] for pair in zip(sparse, chunked, strict=True)], notes=notes)
