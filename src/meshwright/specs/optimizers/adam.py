"""Adam and AdamW: two moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwright.specs.optimizers.base import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(Optimizer):
    """First and second moment of every parameter."""

    name: ClassVar[str] = "adam"
    summary: ClassVar[str] = "two moments"
    source: ClassVar[str] = "Kingma and Ba 2014 (arXiv 1412.6980)"

    def each_bytes(self, moment_bytes: float) -> float:
        """Two numbers."""
        return 2 * moment_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay, which keeps nothing more."""

    name: ClassVar[str] = "adamw"
    source: ClassVar[str] = "Loshchilov and Hutter 2017 (arXiv 1711.05101)"
