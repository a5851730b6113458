"""The whole configuration of a run of Megatron-Bridge, `run_config.yaml`, as options of Megatron-LM by their names.

Source: ConfigContainer.to_yaml of megatron/bridge/training/config.py and utils/yaml_utils.py of megatron-bridge 0.3.1;
AttnBackend of megatron-core 0.16.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshwright.errors import Problem, UnsupportedError

_PARTS = ("dataset", "mixed_precision", "comm_overlap", "optimizer", "ddp", "train", "model", "checkpoint")
"""Tables whose keys say a plan and its model; those of the last stand over those before."""
_RENAMED = {
    "sequence_length": "seq_length",
    "num_moe_experts": "num_experts",
    "layernorm_epsilon": "norm_epsilon",
    "fp8": "fp8_format",
    "fp4": "fp4_format",
    "fp8_param": "fp8_param_gather",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage",
}
"""Fields of its classes by the names of Megatron-LM's options."""
SAID_BY = {name: field for field, name in _RENAMED.items()} | {
    "swiglu": "gated_linear_unit",
    "squared_relu": "activation_func",
    "untie_embeddings_and_output_weights": "share_embeddings_and_output_weights",
    "group_query_attention": "num_query_groups",
    "grad_reduce_in_bf16": "grad_reduce_in_fp32",
}
"""The field that says an option, where it has another name."""
_BACKENDS = ("auto", "flash", "fused", "unfused", "local", "auto")
"""Attention by its number."""
_FORMATS = {"torch.bfloat16": "bf16", "torch.float32": "fp32", "torch.float16": "fp16", "torch.uint8": "fp8"}
_SEES = re.compile(r"vl|vision|audio|omni", re.IGNORECASE)
_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def run_values(data: Mapping[str, Any]) -> dict[str, object]:
    """Values by the names that Megatron-LM's options have in its program.

    Args:
        data: the table of the file.

    Raises:
        UnsupportedError: it trains adapters, or a model that sees or hears.
    """
    model = data.get("model") if isinstance(data.get("model"), dict) else {}
    assert isinstance(model, dict)
    _refuse(data, model)
    found: dict[str, object] = {}
    for part in _PARTS:
        table = data.get(part)
        for key, value in table.items() if isinstance(table, dict) else ():
            if value is not None and not key.startswith("_"):
                found[_RENAMED.get(str(key), str(key))] = _plain(value)
    found["swiglu"] = found.get("gated_linear_unit") is True
    found["squared_relu"] = "squared_relu" in str(model.get("activation_func"))
    found["untie_embeddings_and_output_weights"] = found.get("share_embeddings_and_output_weights") is False
    found["group_query_attention"] = "num_query_groups" in found
    found["grad_reduce_in_bf16"] = found.get("grad_reduce_in_fp32") is False
    backend = model.get("attention_backend")
    number = (backend.get("_args_") or [0])[0] if isinstance(backend, dict) else backend
    if isinstance(number, int):
        found["attention_backend"] = _BACKENDS[number] if 0 <= number < len(_BACKENDS) else "auto"
    if isinstance(freq := found.get("moe_layer_freq"), list):
        found["moe_layer_freq"] = f"({str(freq).replace(' ', '')})"
    if isinstance(layout := found.get("pipeline_model_parallel_layout"), list):
        stages = ("".join(_LETTERS.get(str(one), "?") for one in stage) for stage in layout if isinstance(stage, list))
        found["pipeline_model_parallel_layout"] = "|".join(stages)
    if found.get("cpu_offloading") is not True:
        found.pop("cpu_offloading_num_layers", None)
    return {name: value for name, value in found.items() if not isinstance(value, dict)}


def _plain(value: Any) -> Any:
    """A value, formats by the names of options."""
    target = value.get("_target_") if isinstance(value, dict) else None
    return _FORMATS.get(str(target), value)


def _refuse(data: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    if isinstance(data.get("peft"), dict):
        why = "which adapters it trains is not read from the configuration of a run"
        raise UnsupportedError(Problem(what="peft is given", why=why, fix="check the script or recipe", field="peft"))
    name = str(model.get("_target_", "")).rpartition(".")[2]
    if _SEES.search(name) or any(str(key).startswith("vision_") for key in model):
        why = "images or sound go through a tower before the text, which a plan of its decoder leaves out"
        raise UnsupportedError(Problem(what=f"the model is {name[:60]}", why=why, fix="check a run of a text model"))
