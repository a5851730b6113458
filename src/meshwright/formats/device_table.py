"""The keys of a device file, checked when a user's file is read; see `device_file` for what they mean."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, create_model

from meshwright.formats.problems import Share, TableProblems, Text, key
from meshwright.specs.cluster import MAX_DEVICES
from meshwright.specs.device import Basis

_MAX_TILE = 65_536


def _file_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", name):
        raise ValueError(
            "a name is up to 64 letters, digits, dots, dashes and underscores, as it becomes a file name; "
            "other spellings go to aliases"
        )
    return name


class _Source(TableProblems):
    basis: Basis = key('"datasheet"', required=True)
    source: Text = key('"NVIDIA H100 data sheet"', required=True)
    date: Text = key()


class _Efficiency(TableProblems):
    basis: Basis = key()
    source: Text = key()
    tile_m: PositiveInt = key(le=_MAX_TILE)
    tile_n: PositiveInt = key(le=_MAX_TILE)
    flash_tile: PositiveInt = key(le=_MAX_TILE)
    gemm_fraction: Share = key()
    gemm_fraction_fp8: NonNegativeFloat = key(le=1)
    gemm_fraction_fp32: NonNegativeFloat = key(le=1)
    gemm_fraction_fp4: Share = key()
    flash_fa1_share: Share = key()
    flash_fa2_share: Share = key()
    flash_trained_share: Share = key()
    burst_fraction: NonNegativeFloat = key(le=1)
    k_half: NonNegativeFloat = key()
    flash_forward_fraction: Share = key()
    flash_backward_fraction: Share = key()
    flash_keys_half: NonNegativeFloat = key()
    flash_dim_half: NonNegativeFloat = key()
    memory_fraction: Share = key()
    launch_us: NonNegativeFloat = key()
    dispatch_us: NonNegativeFloat = key()
    overlap_slowdown: NonNegativeFloat = key()
    context_gib: NonNegativeFloat = key()
    power_exponent: NonNegativeFloat = key(le=1.5)
    power_w_per_tflop: NonNegativeFloat = key()
    power_fixed_w: NonNegativeFloat = key()
    product_dtypes: list[Literal["bf16", "fp8", "fp8-block", "nvfp4"]] = key()
    product_k_half: list[NonNegativeFloat] = key()
    product_joint: list[Annotated[float, Field(ge=1)]] = key()
    flash_tail: NonNegativeFloat = key(le=1)
    flash_dims: list[PositiveInt] = key()
    flash_dim_rates: list[PositiveFloat] = key()
    flash_latent_share: PositiveFloat = key(le=2)


class _NodeKeys(TableProblems):
    devices: PositiveInt = key("8", le=MAX_DEVICES)
    scaleup_domain: PositiveInt = key("8", le=MAX_DEVICES)
    scaleup_name: Text = key()
    scaleup_gb_s: PositiveFloat = key("450")
    scaleup_efficiency: Share = key()
    scaleup_latency_us: NonNegativeFloat = key()
    scaleup_in_switch_efficiency: NonNegativeFloat = key(le=1)
    scaleup_base_us: NonNegativeFloat = key()
    scaleup_quick_base_us: NonNegativeFloat = key()
    scaleup_quick_step_us: NonNegativeFloat = key()
    scaleup_quick_share: Share = key()
    scaleup_few_ranks: NonNegativeFloat = key(le=1)
    scaleup_in_switch_us: NonNegativeFloat = key()
    scaleup_topology: Literal["switch", "mesh", "torus"] = key()
    host_name: Text = key()
    host_gb_s: PositiveFloat = key()
    host_efficiency: Share = key()
    fabric_name: Text = key()
    fabric_gb_s: PositiveFloat = key("50")
    fabric_shared: bool = key()
    fabric_efficiency: Share = key()
    fabric_latency_us: NonNegativeFloat = key()


class _DeviceKeys(TableProblems):
    name: Annotated[Text, AfterValidator(_file_name)] = key('"H100-custom"', required=True)
    vendor: Text = key()
    year: PositiveInt = key(le=2200)
    generation: Text = key('"hopper"', required=True)
    aliases: list[Text] = key()
    fp64_tflops: PositiveFloat = key("33.5")
    fp32_tflops: PositiveFloat = key("66.9")
    tf32_tflops: PositiveFloat = key("494.7")
    bf16_tflops: PositiveFloat = key("989.4")
    fp16_tflops: PositiveFloat = key("989.4")
    fp8_tflops: PositiveFloat = key("1979")
    mxfp8_tflops: PositiveFloat = key("4500")
    int8_tflops: PositiveFloat = key("1979")
    fp4_tflops: PositiveFloat = key("9000")
    mxfp4_tflops: PositiveFloat = key("10066")
    memory_gib: PositiveFloat = key("79.1", required=True)
    memory_gb_s: PositiveFloat = key("3350", required=True)
    units: PositiveInt = key("132", le=1_000_000)
    host_gb_s: PositiveFloat = key("50")
    power_w: PositiveFloat = key()
    idle_power_w: NonNegativeFloat = key()
    price_per_hour: NonNegativeFloat = key()
    notes: Text = key()
    unified_memory: bool = key()
    any_operand_order: bool = key()
    host_issue: PositiveFloat = key("2.5")


def _sources(*names: str) -> Any:
    """The table that names a source for any of these keys."""
    entries: dict[str, Any] = {name: (_Source, key()) for name in names}
    return create_model("_Sources", __base__=TableProblems, **entries), key()


_NODE: Any = create_model("_Node", __base__=_NodeKeys, source=_sources(*_NodeKeys.model_fields, "default"))
DEVICE_TABLE: Any = create_model(
    "_Device",
    __base__=_DeviceKeys,
    node=(_NODE, key()),
    efficiency=(_Efficiency, key()),
    source=_sources(*_DeviceKeys.model_fields, "peaks", "default"),
)
"""The whole file."""
