"""The numbers that a fit to measured runs replaces, with their uncertainty."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z90 = 1.645
"""Half-width of the central 90 % of a normal distribution."""
WIDEST = math.log(3.0)
"""A step that takes three times the prediction is of another run."""
UNMEASURED_TIE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One fitted number."""

    value: float
    low: float
    """Of the central 90 %."""
    high: float
    prior: float
    """Without the fit."""

    @property
    def log_deviation(self) -> float:
        """Standard deviation of the logarithm; a range cut off by a bound says less than its uncut side."""
        return max(math.log(self.high / self.value), math.log(self.value / self.low)) / Z90


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan:
    """The configuration one step was measured on, and how far it alone is from the moved numbers."""

    model: str
    plan: str
    """In its one-line form, the batch with it."""
    device: str
    devices: int
    seq_len: int
    dtype: str
    framework: str
    measured_s: float
    own: float
    """Measured over predicted under the file's numbers: what is this plan's alone."""
    low: float
    """Of the step over the measurement, central 90 %."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Widths of ranges that hold for sources a fit has not seen; every doubt only widens."""

    base: float
    """Logarithm of the half-width of ln(measured / predicted), nothing else being in doubt."""
    host: float
    """What waiting for the host adds to it, per share of the step."""
    experts: float
    new_device: float
    """For a generation without runs in the fit."""
    new_framework: float
    own: float
    """Standard deviation of what one run is off by and others of its source are not."""
    tie: float
    """Relative difference of two plans of one job below which fewer than three of four such pairs were in order."""
    generations: tuple[str, ...]
    """With runs in the fit."""
    frameworks: tuple[str, ...]

    def half_width(self, *, host_share: float, experts: bool, new_device: bool, new_framework: bool) -> float:
        """Of ln(measured / predicted), central 90 %; at most WIDEST."""
        new = math.exp(self.base + self.new_device * new_device + self.new_framework * new_framework)
        return min(new * self.doubt(host_share=host_share, experts=experts), WIDEST)

    def doubt(self, *, host_share: float, experts: bool) -> float:
        """How much further off than plain ones runs of this kind are."""
        return math.exp(self.host * host_share + self.experts * experts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What one fit found."""

    date: str
    source: str
    numbers: tuple[tuple[str, Fitted], ...]
    """By name: `device.hopper.gemm_fraction`, `software.megatron-core.vector_passes`."""
    spread: tuple[tuple[str, float], ...] = ()
    """What is left over: the standard deviation of ln(predicted / measured) by kind of run, sources left out."""
    ranges: Ranges | None = None
    run: MeasuredPlan | None = None
    """The run it was measured on, where it comes from one; its framework is what a workload runs under by default."""

    @property
    def origin(self) -> str:
        """When it was fitted and to what."""
        return f"fitted on {self.date} to {self.source}"

    @property
    def tie(self) -> float:
        """Relative difference below which two plans of one job cannot be told apart."""
        return UNMEASURED_TIE if self.ranges is None else self.ranges.tie

    def of(self, scope: str, owner: str) -> dict[str, float]:
        """Field to value of one owner."""
        start = f"{scope}.{owner}."
        return {name.removeprefix(start): found.value for name, found in self.numbers if name.startswith(start)}

    def pace(self, generation: str, framework: str) -> Fitted | None:
        """Speed of one machine's runs over what the other numbers give, where a step was measured there."""
        return dict(self.numbers).get(pace_name(generation, framework))


def pace_name(generation: str, framework: str) -> str:
    """`run.hopper.megatron-core.pace`."""
    return f"run.{generation}.{framework}.pace"


NOTHING = Calibration(date="", source="", numbers=())
"""Predict with published numbers alone."""
