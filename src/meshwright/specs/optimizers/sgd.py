"""Stochastic gradient descent, plain and with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwright.specs.optimizers.base import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd(Optimizer):
    """No states."""

    name: ClassVar[str] = "sgd"
    summary: ClassVar[str] = "no states"
    source: ClassVar[str] = "Robbins and Monro 1951"

    def each_bytes(self, moment_bytes: float) -> float:
        """None."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum(Optimizer):
    """One momentum."""

    name: ClassVar[str] = "sgd-momentum"
    summary: ClassVar[str] = "one momentum"
    source: ClassVar[str] = "Polyak 1964"

    def each_bytes(self, moment_bytes: float) -> float:
        """One number."""
        return moment_bytes
