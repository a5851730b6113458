"""Options of a Megatron-LM script as Megatron-Core's own configuration, made as its training loop makes it."""

from __future__ import annotations

import dataclasses
import enum
import math
import typing
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from meshwright.formats.megatron.model import VOCAB_MULTIPLE
from meshwright.formats.megatron.model_options import read_pattern

Options = dict[str, str]
"""Options by name, empty where an option is a switch."""

_NAMES = {
    "--num-experts": "num_moe_experts",
    "--norm-epsilon": "layernorm_epsilon",
    "--num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size",
}
"""Options whose field in TransformerConfig has another name."""


def configuration(options: Options) -> tuple[Any, list[str]]:
    """Megatron-Core's own configuration from options, as its training loop makes it, and what to know about it."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    latent = "--multi-latent-attention" in options
    kind = MLATransformerConfig if latent else TransformerConfig
    fields = {one.name for one in dataclasses.fields(kind)}
    types_ = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for flag, value in options.items():
        name = _NAMES.get(flag, flag.removeprefix("--").replace("-", "_"))
        if name in fields and name != "cp_comm_type":
            values[name] = _typed(value, types_[name], name)
    dtype = torch.bfloat16 if "--bf16" in options else torch.float16 if "--fp16" in options else torch.float32
    if values.get("tensor_model_parallel_size", 1) == 1:
        # Its training loop leaves it out there.
        values.pop("sequence_parallel", None)
    values |= {
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "perform_initialization": False,
        "add_bias_linear": "--disable-bias-linear" not in options,
        "gradient_accumulation_fusion": "--no-gradient-accumulation-fusion" not in options,
        "deallocate_pipeline_outputs": True,
        "batch_p2p_comm": "--overlap-p2p-communication" not in options,
        "virtual_pipeline_model_parallel_size": chunks_of_rank(options),
        "apply_rope_fusion": False,
        "bias_dropout_fusion": "--no-bias-dropout-fusion" not in options,
        "tp_comm_overlap": False,
        "fp8": None,
    }
    values |= _activation(options, biased=values["add_bias_linear"])
    if "--pipeline-model-parallel-layout" in options:
        values["pipeline_model_parallel_layout"] = options["--pipeline-model-parallel-layout"]
    if "--group-query-attention" not in options:
        values.pop("num_query_groups", None)
    if "--recompute-activations" in options:
        values.setdefault("recompute_granularity", "selective")
    if values.get("recompute_granularity") == "selective":
        values.setdefault("recompute_modules", ["core_attn"])
    if "num_moe_experts" in values:
        values.setdefault("moe_router_load_balancing_type", "aux_loss")
        values |= _of_experts(options, values["num_layers"])
    made = kind(**{name: value for name, value in values.items() if name in fields})
    return made, list(_otherwise_in_the_job(options, experts="num_moe_experts" in values))


def _activation(options: Options, *, biased: bool) -> dict[str, Any]:
    """The activation function of an MLP, and whether its bias is added in the same kernel."""
    if "--swiglu" in options:
        return {"gated_linear_unit": True, "activation_func": functional.silu, "bias_activation_fusion": True}
    if "--squared-relu" in options:
        return {"activation_func": lambda x: functional.relu(x).pow(2), "bias_activation_fusion": False}
    return {"bias_activation_fusion": biased and "--no-bias-gelu-fusion" not in options}


def _of_experts(options: Options, layers: int) -> dict[str, Any]:
    """What experts run with here: equally many tokens each, exchanged by the one dispatcher that needs no GPU."""
    fused = ("moe_router_fusion", "moe_permute_fusion", "moe_shared_expert_overlap")
    return {
        "moe_grouped_gemm": True,
        "moe_expert_capacity_factor": 1.0,
        "moe_pad_expert_input_to_capacity": True,
        "moe_token_dispatcher_type": "alltoall",
        "moe_layer_freq": _frequency(options.get("--moe-layer-freq", "1"), layers),
        **dict.fromkeys(fused, False),
    }


def _otherwise_in_the_job(options: Options, *, experts: bool) -> Iterator[str]:
    """What the job does otherwise than this rank."""
    if experts:
        yield "experts get equally many tokens"
        asked = options.get("--moe-token-dispatcher-type", "allgather")
        if asked != "alltoall":
            yield f"tokens go to their experts by alltoall here, by {asked} in the job"
    for flag, what in (
        ("--fp8-format", "products run in 16 bits here, in 8 in the job"),
        ("--tp-comm-overlap", "collectives that overlap products run after them here"),
        ("--context-parallel-size", "the exchange of keys and values over cp is inside Transformer Engine, unseen"),
    ):
        if flag in options and options[flag] != "1":
            yield what


def _typed(text: str, hint: Any, name: str) -> Any:
    """The value of a field in the type it is annotated with."""
    kinds = [one for one in (typing.get_args(hint) or (hint,)) if one is not type(None)]
    if text == "" and bool in kinds:
        return True
    if name in ("recompute_modules",) or any(typing.get_origin(one) is list for one in kinds):
        return text.split() if name.endswith("modules") else [int(one) for one in text.split()]
    named = next((one for one in kinds if isinstance(one, enum.EnumMeta)), None)
    if named is not None:
        return named[text]
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def _frequency(text: str, layers: int) -> Any:
    found = read_pattern(text, layers)
    return [int(one) for one in found] if found else 1


def whole_option(options: Options, name: str, default: int) -> int:
    """A whole number that an option says, or the default where it is not given."""
    return int(float(options.get(name) or default))


def chunks_of_rank(options: Options) -> int | None:
    """Chunks of a rank; None where it holds one piece."""
    stages = whole_option(options, "--pipeline-model-parallel-size", 1)
    layout = options.get("--pipeline-model-parallel-layout")
    if layout:
        from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

        pieces = PipelineParallelLayerLayout.from_str(layout, stages).virtual_pipeline_model_parallel_size
        return pieces if pieces > 1 else None
    if "--num-virtual-stages-per-pipeline-rank" in options:
        return whole_option(options, "--num-virtual-stages-per-pipeline-rank", 1)
    each = whole_option(options, "--num-layers-per-virtual-pipeline-stage", 0)
    return whole_option(options, "--num-layers", 0) // stages // each if each else None


def position_embedding(options: Options) -> str:
    """Kind of positions that the model gets."""
    if "--use-rotary-position-embeddings" in options:
        return "rope"
    return options.get("--position-embedding-type", "learned_absolute")


def padded_vocab(vocab: int, options: Options) -> int:
    """Entries of the vocabulary, filled up so that tensor ranks divide it."""
    multiple = whole_option(options, "--make-vocab-size-divisible-by", VOCAB_MULTIPLE)
    multiple *= whole_option(options, "--tensor-model-parallel-size", 1)
    return math.ceil(vocab / multiple) * multiple
