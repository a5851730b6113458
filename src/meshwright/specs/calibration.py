"""The numbers that a fit to measured runs replaces, with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.specs.check import HashedOnce, hashed_once

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
    """Lower end of the central 90 %."""
    high: float
    prior: float
    """The value before the fit."""

    @property
    def log_deviation(self) -> float:
        """Standard deviation of the logarithm; a range cut off by a bound says less than its uncut side."""
        return max(math.log(self.high / self.value), math.log(self.value / self.low)) / Z90


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan:
    """The configuration one step was measured on, and how far it alone is from the moved numbers."""

    model: str
    plan: str
    """The plan in one line, its batch included."""
    device: str
    devices: int
    seq_len: int
    dtype: str
    framework: str
    measured_s: float
    own: float
    """Measured over predicted under the file's numbers: what is this plan's alone."""
    low: float
    """Lower end of the step over the measurement, central 90 %."""
    high: float


DOUBTS = ("base", "host", "experts", "long", "device", "format", "framework", "software", "like")
"""What a range depends on, in the order of `KindOfRun.doubts`."""
LONG = 8192
"""Tokens of a sequence above which it counts as long."""
NARROW = 4096
"""Width of a model below which its products are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindOfRun:
    """What is known of a step before it runs, as far as predictions of some are better than of others."""

    host_share: float
    """Share of the step that waits for the host to issue kernels, 0-1."""
    experts: bool
    seq_len: int
    generation: str
    """Architecture generation of the device."""
    bits: float
    """Bits of the operands of matrix products."""
    software: str
    """Generation of the framework, as `library.software.canonical` names it."""
    device: str = ""
    narrow: bool = False
    """Whether the model is less than NARROW wide."""

    @property
    def framework(self) -> str:
        """Line of the framework."""
        return self.software.partition("@")[0]

    @property
    def experience(self) -> tuple[str, ...]:
        """Names under which runs like it are counted: architecture, format on it, framework, its generation, device,
        and all at once: the device in this format under this framework, with this kind of model."""
        width = f"{self.generation}.{self.bits:g}"
        kind = "experts" if self.experts else "narrow" if self.narrow else "wide"
        like = f"{kind} {self.device}.{self.bits:g} {self.framework}"
        return (self.generation, width, self.framework, f"software {self.software}", f"device {self.device}", like)

    def doubts(self, seen: Mapping[str, int]) -> tuple[float, ...]:
        """1; shares and octaves; 1 / (1 + sources with runs like it), in the order of DOUBTS.

        Args:
            seen: sources by name of experience.
        """
        octaves = max(0.0, math.log2(self.seq_len / LONG))
        counted = (*self.experience[:4], self.experience[-1])
        few = (1.0 / (1.0 + seen.get(name, 0)) for name in counted)
        return (1.0, self.host_share, float(self.experts), octaves, *few)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Widths of ranges that hold for sources a fit has not seen; every doubt only widens."""

    weights: tuple[tuple[str, float], ...]
    """What each of DOUBTS adds to the logarithm of the half-width of ln(measured / predicted)."""
    own: float
    """Standard deviation of what one run is off by and others of its source are not."""
    tie: float
    """Relative difference of two plans of one job below which fewer than three of four such pairs were in order."""
    seen: tuple[tuple[str, int], ...]
    """Sources with runs in the fit, by name of experience."""
    most_devices: int = 0
    """Devices of the largest run in the fit."""

    def half_width(self, kind: KindOfRun) -> float:
        """Half-width of the central 90 % of ln(measured / predicted); at most WIDEST."""
        values = kind.doubts(dict(self.seen))
        logarithm = sum(weight * x for (_, weight), x in zip(self.weights, values, strict=True))
        # Compared before the power is taken: large weights would overflow it.
        return WIDEST if logarithm >= math.log(WIDEST) else math.exp(logarithm)

    def doubt(self, *, host_share: float, experts: bool) -> float:
        """How much further off than plain ones runs of this kind are."""
        weights = dict(self.weights)
        return math.exp(weights["host"] * host_share + weights["experts"] * experts)

    def sources(self, name: str) -> int:
        """Number of sources that have runs of one kind in the fit."""
        return dict(self.seen).get(name, 0)


@hashed_once
@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(HashedOnce):
    """What one fit found."""

    date: str
    source: str
    numbers: tuple[tuple[str, Fitted], ...]
    """The fitted numbers by name: `device.hopper.gemm_fraction`, `software.megatron-core.vector_passes`."""
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
