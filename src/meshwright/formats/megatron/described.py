"""The model that the options of a script describe, for scripts that are checked without naming one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec

SIZES = ("num_layers", "hidden", "heads", "norm", "gated", "biases")
"""Sizes without which options describe no model."""


def describes(facts: Mapping[str, Any]) -> bool:
    """Whether `read_facts` found a whole model but for its vocabulary."""
    return "hybrid" in facts or all(name in facts for name in SIZES)


def described_model(facts: Mapping[str, Any], *, name: str, vocab: int, notes: tuple[str, ...] = ()) -> ModelSpec:
    """A model of these facts, so that `model_facts` of it are the same.

    Args:
        facts: the facts as `read_facts` words them.
        name: the name of the model.
        vocab: tokens of the vocabulary.
        notes: printed with the answer.

    Raises:
        InputError: sizes contradict each other.
    """
    if "hybrid" in facts:
        from meshwright.formats.megatron.hybrid import hybrid_model  # few options describe such

        return replace(hybrid_model(facts["hybrid"], name=name, vocab=vocab), notes=notes)
    longest = facts["max_positions"]
    layers = [_layer(facts, index) for index in range(facts["num_layers"])]
    runs = tuple(LayerRun(layers=(layer,), repeats=len(list(same))) for layer, same in groupby(layers))
    return ModelSpec(
        name=name,
        family="megatron",
        hidden=facts["hidden"],
        vocab=vocab,
        max_seq_len=longest,
        runs=runs,
        tied_embeddings=facts["tied_embeddings"],
        learned_positions=longest if facts["learned_positions"] else 0,
        final_norm=facts["norm"],
        mtp_layers=facts["mtp_layers"],
        source=f"options of {name}",
        notes=notes,
    )


def _layer(facts: Mapping[str, Any], index: int) -> LayerSpec:
    qkv, out, linear = facts["biases"]
    experts = "experts" in facts and facts["moe_layers"][index]
    return LayerSpec(
        attention=_latent(facts) if "kv_rank" in facts else _attention(facts, index, qkv_bias=qkv, out_bias=out),
        mlp=_experts(facts, index, bias=linear)
        if experts
        else DenseMlp(ffn_hidden=facts["ffn_hidden"], gated=facts["gated"], bias=linear),
        norm=facts["norm"],
        dropout=facts["dropout"],
    )


def _attention(facts: Mapping[str, Any], index: int, *, qkv_bias: bool, out_bias: bool) -> Attention:
    return Attention(
        **{name: facts[name] for name in ("heads", "kv_heads", "head_dim", "qk_norm")},
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        window=facts["windows"][index],
        gate=facts["output_gate"],
        sinks=facts["sinks"],
    )


def _latent(facts: Mapping[str, Any]) -> LatentAttention:
    names = ("heads", "q_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim")
    return LatentAttention(**{name: facts[name] for name in names})


def _experts(facts: Mapping[str, Any], index: int, *, bias: bool) -> MoeMlp:
    (groups, chosen), experts = facts["router_groups"], facts["experts"]
    return MoeMlp(
        experts=experts if isinstance(experts, int) else experts[sum(facts["moe_layers"][:index])],
        top_k=facts["top_k"],
        ffn_hidden=facts["expert_ffn_hidden"],
        gated=facts["gated"],
        shared_ffn_hidden=facts["shared_ffn_hidden"],
        shared_gate=facts["shared_gate"],
        residual=facts.get("residual", False),
        bias=bias,
        router_bias=bias,
        groups=groups,
        groups_per_token=chosen,
    )
