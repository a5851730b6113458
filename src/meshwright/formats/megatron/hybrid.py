"""Models of several kinds of layers, as the pattern of `pretrain_mamba.py` describes them.

Source: megatron/core/ssm/mamba_hybrid_layer_allocation.py and mamba_mixer.py of megatron-core 0.16.1: a letter is a
layer, M Mamba 2, * attention, - MLP, E experts; sizes that no option says follow from the hidden size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.megatron.model_options import read_vocabulary
from meshwright.formats.megatron.options import Values
from meshwright.specs.model import ModelSpec

PATTERN = "hybrid_override_pattern"
_FLAGS = ("--hybrid-override-pattern", "--hybrid-layer-pattern")
_EXPAND = 2
"""Width of a Mamba layer over the hidden size."""
_CONVOLUTION = 4


def hybrid_facts(values: Values) -> tuple[dict[str, Any], list[Problem]]:
    """What options say of a model whose pattern they give, in the words of its config.json, and what is wrong in it.

    Args:
        values: options as they were read.

    Returns:
        Nothing of models that its words do not describe: gated or biased layers, other norms, stages in the pattern.
    """
    said = next((values.given[flag][0] for flag in _FLAGS if values.given.get(flag)), "")
    hidden, heads = values.whole("--hidden-size"), values.whole("--num-attention-heads")
    if not re.fullmatch(r"[M*E-]+", said) or not hidden or not heads or not _plain(values):
        return {}, []
    for flag in _FLAGS:
        values.has(flag)
    layers, problems = values.whole("--num-layers", len(said)), list[Problem]()
    if layers != len(said):
        why = f"the pattern has {len(said)} layers, and it stops where they differ"
        problems.append(
            Problem(what=f"--num-layers is {layers}", why=why, fix=f"use {len(said)}", field="--num-layers")
        )
    grouped = values.has("--group-query-attention")
    head = values.whole("--mamba-head-dim", 64)
    width = values.whole("--ffn-hidden-size", 4 * hidden)
    found: dict[str, Any] = {
        "model_type": "nemotron_h",
        PATTERN: said,
        "num_hidden_layers": len(said),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": values.whole("--num-query-groups", 1) if grouped else heads,
        "head_dim": values.whole("--kv-channels", hidden // heads),
        "intermediate_size": width,
        "mamba_num_heads": values.whole("--mamba-num-heads", _EXPAND * hidden // max(1, head)),
        "mamba_head_dim": head,
        "ssm_state_size": values.whole("--mamba-state-dim", 128),
        "n_groups": values.whole("--mamba-num-groups", 8),
        "conv_kernel": _CONVOLUTION,
        "mlp_hidden_act": "relu2",
        "use_bias": False,
        "max_position_embeddings": values.whole("--max-position-embeddings") or values.whole("--seq-length", 1024),
        "tie_word_embeddings": not values.has("--untie-embeddings-and-output-weights"),
        "hidden_dropout": values.number("--hidden-dropout", 0.1),
        "attention_dropout": values.number("--attention-dropout", 0.1),
    }
    if "E" in said:
        shared = values.whole("--moe-shared-expert-intermediate-size")
        found |= {
            "n_routed_experts": values.whole("--num-experts"),
            "num_experts_per_tok": values.whole("--moe-router-topk", 2),
            "moe_intermediate_size": values.whole("--moe-ffn-hidden-size", width),
            "n_shared_experts": int(shared > 0),
            "moe_shared_expert_intermediate_size": shared or width,
        }
    return {"hybrid": found, **read_vocabulary(values)}, problems


def _plain(values: Values) -> bool:
    """Whether layers have the norms, biases and positions that the words of a config.json know."""
    others = ("--swiglu", "--quick-geglu", "--multi-latent-attention", "--moe-latent-size", "--mtp-num-layers")
    positions = values.text("--position-embedding-type", "learned_absolute")
    norm = values.text("--normalization", "LayerNorm")
    biased = not values.has("--disable-bias-linear") or values.has("--add-qkv-bias")
    return norm == "RMSNorm" and positions in ("none", "rope") and not biased and not any(map(values.has, others))


def hybrid_model(config: Mapping[str, Any], *, name: str, vocab: int) -> ModelSpec:
    """The model of these words.

    Args:
        config: the configuration of `hybrid_facts`.
        name: the name of the model.
        vocab: tokens of the vocabulary.

    Raises:
        InputError: sizes contradict each other.
    """
    from meshwright.formats.huggingface import read_config

    return read_config({**config, "vocab_size": vocab}, name, source=f"options of {name}")
