"""Every device runs the whole model on a share of the samples; its state whole or split (ZeRO)."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.compiler.methods.method import Method
from meshwright.compiler.shardings import DataSharding


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel(Method):
    """Every device holds the whole model and a share of the samples; gradients are all-reduced once a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero2Parallel(Method):
    """Data parallel with optimizer state and gradients split over the devices (ZeRO-2), reduced once a step."""

    @property
    def sharding(self) -> DataSharding:
        """State and gradients split."""
        return DataSharding(stage=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero3Parallel(Method):
    """Data parallel with parameters split too (ZeRO-3, FSDP)."""

    @property
    def sharding(self) -> DataSharding:
        """Everything split."""
        return DataSharding(stage=3)
