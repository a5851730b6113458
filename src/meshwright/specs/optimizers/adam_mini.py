"""Adam-mini: Adam with one mean square for each block of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwright.specs.optimizers.base import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamMini(Optimizer):
    """One momentum. The mean squares, one for each row of a matrix or for each head, are below 0.1% of it: left out."""

    name: ClassVar[str] = "adam-mini"
    summary: ClassVar[str] = "one momentum; mean squares by blocks of weights"
    source: ClassVar[str] = "Zhang et al. 2024 (arXiv 2406.16793)"
    on_host: ClassVar[bool] = False

    def each_bytes(self, moment_bytes: float) -> float:
        """One number."""
        return moment_bytes
