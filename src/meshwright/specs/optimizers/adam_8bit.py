"""Adam with moments in 8 bits, in blocks with a scale each; paged: in host memory between updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwright.specs.optimizers.base import FP32_BYTES, Optimizer

BLOCK = 256
"""Elements with one fp32 scale. Source: bitsandbytes 0.50, optim/optimizer.py, 2026."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam8bit(Optimizer):
    """Two moments of 1 + 4/256 bytes; those of lookup tables stay in fp32."""

    name: ClassVar[str] = "adamw-8bit"
    summary: ClassVar[str] = "two moments in 8 bits, blocks of 256 with a scale; of lookup tables in fp32"
    source: ClassVar[str] = "Dettmers et al. 2021 (arXiv 2110.02861); tables: transformers 5, Trainer, 2026"
    own_formats: ClassVar[bool] = True
    on_host: ClassVar[bool] = False

    def each_bytes(self, moment_bytes: float) -> float:
        """Two bytes and two shares of a scale."""
        return 2 * (1 + FP32_BYTES / BLOCK)

    def table_bytes(self, moment_bytes: float) -> float:
        """Two numbers in fp32."""
        return 2 * FP32_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedAdam8bit(Adam8bit):
    """The same in unified memory: pages come to the device for the update and leave it for activations.

    How much of them the device has room for between updates changes within a step; here all of them leave.
    """

    name: ClassVar[str] = "paged-adamw-8bit"
    summary: ClassVar[str] = "moments in 8 bits, in host memory between updates"
    source: ClassVar[str] = "Dettmers et al. 2023 (arXiv 2305.14314), section 3: paged optimizers"
    paged: ClassVar[bool] = True
