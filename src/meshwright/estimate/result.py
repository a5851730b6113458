"""What an estimate says: one plan's time, memory and verdict, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.estimate.memory import MEMORY_KINDS, fits
from meshwright.records import fields_of
from meshwright.specs.calibration import UNMEASURED_TIE
from meshwright.specs.device import Basis

# Half-widths of the range around a predicted step, by the weakest basis among the numbers it rests on; the high side is
# wider because what is not modelled only ever slows a step.
RANGE_BY_BASIS: dict[str, tuple[float, float]] = {
    "measured": (0.05, 0.08),
    "fitted": (0.08, 0.12),
    "datasheet": (0.15, 0.30),
    "literature": (0.15, 0.30),
    "assumed": (0.20, 0.40),
    "extrapolated": (0.25, 0.50),
}
BASIS_ORDER: tuple[Basis, ...] = ("measured", "fitted", "literature", "datasheet", "assumed", "extrapolated")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """One worker of a pipeline."""

    pipeline: int
    stage: int
    layers: tuple[tuple[int, int], ...]
    """Inclusive ranges, one per chunk."""
    group: str
    devices: int
    tp: int
    cp: int
    ep: int
    dp: int
    mbs: int
    memory_bytes: tuple[tuple[str, float], ...]
    """Bytes by kind, in the order of MEMORY_KINDS; they sum to the peak."""
    peak_memory_bytes: float
    capacity_bytes: float
    peak_moment: str
    busy_s: float
    """Seconds of the whole step that the worker computes."""
    host_bytes: float = 0.0
    """Bytes of one device's states and activations in the memory of its host."""
    host_capacity_bytes: float | None = None
    """The device's share of what a job may take there; None where the host's memory is not stated."""
    disk_bytes: float = 0.0
    """Bytes of one device's states on the disks of its host."""
    disk_capacity_bytes: float | None = None

    @property
    def fits_host(self) -> bool:
        """Whether what is away has room, as far as the host states how much there is."""
        away = ((self.host_bytes, self.host_capacity_bytes), (self.disk_bytes, self.disk_capacity_bytes))
        return all(room is None or size <= room for size, room in away)

    @property
    def fits(self) -> str:
        """`yes`, `tight` or `no`, on the device and on its host."""
        return fits(self.peak_memory_bytes, self.capacity_bytes) if self.fits_host else "no"

    def to_dict(self) -> dict[str, object]:
        """As data; what is away from the device only where something is."""
        away = {
            name: getattr(self, name)
            for name in ("host_bytes", "host_capacity_bytes", "disk_bytes", "disk_capacity_bytes")
            if self.host_bytes or self.disk_bytes
        }
        return {
            "pipeline": self.pipeline,
            "stage": self.stage,
            "layers": [list(pair) for pair in self.layers],
            "group": self.group,
            "devices": self.devices,
            "tp": self.tp,
            "cp": self.cp,
            "ep": self.ep,
            "dp": self.dp,
            "mbs": self.mbs,
            "memory_bytes": dict(self.memory_bytes),
            "peak_memory_bytes": self.peak_memory_bytes,
            "capacity_bytes": self.capacity_bytes,
            "peak_moment": self.peak_moment,
            "busy_s": self.busy_s,
            **away,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTraffic:
    """What one step sends over the link between two groups, both directions together."""

    between: tuple[str, str]
    activation_bytes: float
    """Bytes between stages: activations and their gradients."""
    gradient_bytes: float
    """Bytes of parameters' gradients between pipelines."""
    price_per_step: float
    """0 where the link is free."""

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return self.activation_bytes + self.gradient_bytes

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return fields_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """How sequences of unequal lengths fill a step."""

    packing: str
    tokens_per_step: float
    """Real ones."""
    sequences_per_step: float
    padding: float
    """Share of the computed tokens that is padding."""
    cut: float
    """Share of the sequences that is longer than a row and cut."""
    fullest_rank: float
    """Attended pairs of the fullest data-parallel rank over the mean, expected."""
    fixed_cp_step_time_s: float | None = None
    """The same step with every sequence over all context ranks, where each has as few as it needs."""
    micro_batches: float | None = None
    """Micro-batches of a data-parallel rank, where they differ in size."""
    packed_step_time_s: float | None = None
    """The same step with rows packed instead, where micro-batches differ in size."""

    def to_dict(self) -> dict[str, object]:
        """As data."""
        alike = () if self.micro_batches is not None else ("micro_batches", "packed_step_time_s")
        fixed = () if self.fixed_cp_step_time_s is not None else ("fixed_cp_step_time_s",)
        return fields_of(self, *alike, *fixed)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrice:
    """One plan's step, of whatever it is priced."""

    step_time_s: float
    breakdown_s: tuple[tuple[str, float], ...]
    """Sums to the step."""
    stages: tuple[StageEstimate, ...]
    fits: str
    """`yes`, `tight` or `no`: the worst of the stages."""
    price_per_step: float | None = None
    """USD of the devices that are used and of what crosses priced links; None where a price is not known."""
    traffic: tuple[LinkTraffic, ...] = ()
    """Bytes over the links between groups."""
    energy_j: float | None = None
    """Energy of a step on the devices that are used, with what the site adds; None where a power is not known. An upper
    bound where it rests on the limit of a device."""
    tie: float = UNMEASURED_TIE
    """Relative difference below which two plans of the job cannot be told apart."""

    @property
    def traffic_price_per_step(self) -> float:
        """USD of what crosses priced links."""
        return sum(link.price_per_step for link in self.traffic)

    @property
    def peak_memory_bytes(self) -> float:
        """Peak bytes of the fullest stage."""
        return max(stage.peak_memory_bytes for stage in self.stages)

    @property
    def capacity_bytes(self) -> float:
        """Capacity of the fullest stage's device."""
        return self.fullest.capacity_bytes

    @property
    def fullest(self) -> StageEstimate:
        """The stage with the least headroom."""
        return max(self.stages, key=lambda stage: stage.peak_memory_bytes / stage.capacity_bytes)

    def place(self, stage: StageEstimate) -> str:
        """What to call a stage: `stage 1`, with its pipeline where there are several."""
        several = self.stages[-1].pipeline > 0
        return f"pipeline {stage.pipeline} stage {stage.stage}" if several else f"stage {stage.stage}"

    def to_dict(self) -> dict[str, object]:
        """As data: the `estimate` of a plan set, without what only data sheets tell."""
        return fields_of(self, "tie", "energy_j") | {"breakdown_s": dict(self.breakdown_s)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate(StepPrice):
    """One plan's step, from a model and data sheets."""

    step_time_low_s: float
    step_time_high_s: float
    tokens_per_s_per_device: float
    mfu: float
    """Model FLOP (6 N per token, causal attention once) over what the devices could do in the compute format."""
    hfu: float
    """The same with what is computed again."""
    basis: Basis
    """The weakest basis among the numbers used."""
    filling: Filling | None = None
    """How unequal sequences fill the step; None where all are as long as a row."""

    def to_dict(self) -> dict[str, object]:
        """As data: the `estimate` of a plan set."""
        unsaid = ("tie",) if self.filling is not None else ("tie", "filling")
        return fields_of(self, *unsaid) | {"breakdown_s": dict(self.breakdown_s)}


__all__ = ["BASIS_ORDER", "MEMORY_KINDS", "RANGE_BY_BASIS", "LinkTraffic", "StageEstimate", "StepEstimate", "StepPrice"]
