"""Number formats by name and their size."""

from __future__ import annotations

DTYPE_BYTES: dict[str, float] = {
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "mxfp8": 1,
    "int8": 1,
    "fp4": 0.5,
    "nvfp4": 0.5,
    "int4": 0.5,
}
"""Bytes per element; block scales of the mx and nv formats (under 7%) are priced where they are moved, not here."""

PEAK_DTYPE: dict[str, str] = {"mxfp8": "fp8", "nvfp4": "fp4", "int4": "fp4", "int8": "fp8"}
"""Which data-sheet peak a format computes at, where it is not its own."""
