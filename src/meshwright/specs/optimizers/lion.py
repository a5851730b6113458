"""Lion: the sign of one interpolated momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwright.specs.optimizers.base import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Lion(Optimizer):
    """One momentum."""

    name: ClassVar[str] = "lion"
    summary: ClassVar[str] = "one momentum"
    source: ClassVar[str] = "Chen et al. 2023 (arXiv 2302.06675)"

    def each_bytes(self, moment_bytes: float) -> float:
        """One number."""
        return moment_bytes
