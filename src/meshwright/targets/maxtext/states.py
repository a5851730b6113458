"""What MaxText keeps of a parameter, and settings that train otherwise than its plain loop: read, or refused.

Source: maxtext/configs/types.py and base.yml, optimizers/optimizers.py of maxtext 0.2.5.
"""

from __future__ import annotations

from typing import Any

from meshwright.specs.precision import PRECISIONS, Precision, stated
from meshwright.targets.keys import KeyReader

_OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adamw", "sgd": "sgd", "muon": "muon"}
_FORMATS = {"float32": "fp32", "bfloat16": "bf16"}
_IN_16_BITS = {"reduce_dtype": "bf16", "moment_dtype": "bf16", "main_copy": "none"}
"""Formats where weights in bf16 are their own main copy; moments have the format of weights."""
_OTHERWISE = {
    "use_dpo": "each sequence runs through a reference model too",
    "use_grpo": "it trains a policy with rollouts",
    "use_multimodal": "encoders of images or sound are trained beside the decoder",
    "enable_lora": "which modules its adapters are on follows from a pattern of names",
    "mtp_num_layers": "prediction modules are trained beside the model's layers",
    "trainable_parameters_mask": "a part of the parameters is frozen, by a pattern of names",
    "optimizer_memory_host_offload": "its optimizer's states wait in host memory, and are not updated there",
    "parameter_memory_host_offload": "its weights wait in host memory, layer by layer",
    "shard_optimizer_over_data": "states are sharded over ranks that hold whole weights, beside the fsdp axis",
    "student_overrides.model_name": "a student is trained with its teacher beside it",
    "enable_diloco": "replicas synchronise after many steps",
}
"""Settings that change what a step computes or holds, each with how."""


def read_states(reader: KeyReader, precision: Precision) -> dict[str, Any]:
    """Fields of a workload: the optimizer and the formats of weights, gradients and moments.

    Args:
        reader: the keys; what cannot be planned becomes its problems.
        precision: the precision of products and activations, with weights in fp32.
    """
    for key, why in _OTHERWISE.items():
        value = reader.get(key)
        if value not in (None, False, 0, "", []) and str(value).lower() != "false":
            reader.refuse(key, value, why, "leave it out to check the rest")
    name = reader.word("opt_type", "adamw")
    if name not in _OPTIMIZERS:
        reader.refuse("opt_type", name, f"{', '.join(_OPTIMIZERS)} can be planned", "use adamw")
    weights, gradients = (reader.word(key, "float32") for key in ("weight_dtype", "grad_dtype"))
    moments = reader.word("mu_dtype") or weights
    for key, said in (("weight_dtype", weights), ("grad_dtype", gradients), ("mu_dtype", moments)):
        if said not in _FORMATS:
            reader.refuse(key, said, f"{' and '.join(_FORMATS)} can be planned", "use float32")
    if moments != weights:
        reader.refuse("mu_dtype", moments, "both moments have one format in plans, that of weights", f"use {weights}")
    roles = _IN_16_BITS if weights == "bfloat16" else {}
    if gradients == "bfloat16" or roles:
        roles = {"grad_dtype": _FORMATS.get(gradients, "fp32"), **roles}
    if roles and precision not in (PRECISIONS["bf16"], PRECISIONS["fp32"]):
        reader.refuse("weight_dtype", weights, "with quantized products, weights and gradients in fp32 are priced")
        roles = {}
    found = {"optimizer": _OPTIMIZERS.get(name, "adamw")}
    return found | ({"precision": stated(PRECISIONS["bf16"], roles)} if roles else {})
