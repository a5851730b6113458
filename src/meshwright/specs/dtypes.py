"""Number formats by name and their size."""

from __future__ import annotations

DTYPE_BYTES: dict[str, float] = {
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "fp8-block": 1,
    "mxfp8": 1,
    "int8": 1,
    "fp4": 0.5,
    "nvfp4": 0.5,
    "mxfp4": 0.5,
    "int4": 0.5,
}
"""Bytes per element, without scales of blocks."""

SCALE_BYTES: dict[str, float] = {"fp8-block": 4 / 128, "mxfp8": 1 / 32, "nvfp4": 1 / 16, "mxfp4": 1 / 32}
"""Bytes of block scales per element where a tensor is stored or moved: one fp32 scale for 128 elements in a row, one
e8m0 scale for 32, one e4m3 scale for 16.

Source: DeepSeek-V3 technical report (arXiv 2412.19437), section 3.3; Open Compute Project, Microscaling Formats 1.0,
2023; NVIDIA, Transformer Engine user guide, NVFP4, 2026.
"""

PEAK_DTYPE: dict[str, str] = {"fp8-block": "fp8", "nvfp4": "fp4", "mxfp4": "fp4", "int4": "fp4"}
"""Which data-sheet peak a format computes at, where it is not its own."""

PRODUCT_CURVE: dict[str, str] = {"fp16": "bf16", "mxfp8": "fp8-block", "int8": "fp8", "fp4": "nvfp4", "mxfp4": "nvfp4"}
"""Which format's measured products a format behaves like, where it is not its own."""


def stored_bytes(dtype: str) -> float:
    """Bytes per element with its share of the block's scale."""
    return DTYPE_BYTES[dtype] + SCALE_BYTES.get(dtype, 0.0)
