"""Sensitivity of a plan: its step priced again with each number of its devices and links a little worse and better."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from meshwright.estimate.price import estimate_plan
from meshwright.records import Record
from meshwright.specs.cluster import ClusterSpec, DomainSpec, NodeGroup
from meshwright.specs.device import Basis, KernelEfficiency
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan

SURE = ("measured", "fitted")
SURE_STEP, UNSURE_STEP = 0.10, 0.20
"""How far a number is moved, by its basis."""
LEAST_EFFECT = 0.001
"""Numbers that move the step by less are not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect(Record):
    """What one number does to the step."""

    name: str
    basis: Basis
    change: float
    """Relative change of the number, up and down."""
    step_time_worse_s: float
    step_time_better_s: float
    other_plan: str | None = None
    """A plan that would be quicker than this one if the number were worse or better."""


def sensitivities(job: Job, rivals: Sequence[tuple[str, ExecutionPlan]] = ()) -> tuple[Effect, ...]:
    """Effects of every assumed number, the largest first.

    Args:
        job: the plan.
        rivals: plans of the same job that might overtake it.

    Returns:
        Numbers that move the step by 0.1% or more.
    """
    base_s = _time(job, job.plan, job.cluster)
    found = []
    for number in numbers_of(job):
        change = SURE_STEP if number.basis in SURE else UNSURE_STEP
        worse, better = number.make(1 - change), number.make(1 + change)
        worse_s, better_s = _time(job, job.plan, worse), _time(job, job.plan, better)
        if max(worse_s, better_s) - min(worse_s, better_s) < LEAST_EFFECT * base_s:
            continue
        found.append(
            Effect(
                name=number.name,
                basis=number.basis,
                change=change,
                step_time_worse_s=worse_s,
                step_time_better_s=better_s,
                other_plan=_overtakes(job, rivals, ((worse, worse_s), (better, better_s))),
            )
        )
    return tuple(sorted(found, key=lambda e: e.step_time_better_s - e.step_time_worse_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNumber:
    """One number of a cluster, and how to multiply it."""

    name: str
    basis: Basis
    value: float
    """The number as it is stated."""
    unit: str
    """`B/s`, or `share` of a peak."""
    make: Callable[[float], ClusterSpec]


def numbers_of(job: Job) -> Iterator[ClusterNumber]:
    """The numbers of every group that the plan uses, and of the links between them, each as a way to scale it."""
    cluster, plan = job.cluster, job.plan
    starts = list(accumulate((group.devices for group in cluster.groups), initial=0))
    firsts = [first for pipeline in plan.pipelines for worker in pipeline.workers for first, _ in worker.devices]
    used = sorted({bisect_right(starts, first) - 1 for first in firsts})
    for number in used:
        group = cluster.groups[number]
        for name, basis, make in scalable_numbers(group):
            label = name if cluster.homogeneous else f"{group.name}: {name}"
            scaled = partial(_with_group, cluster, number, make)
            yield ClusterNumber(name=label, basis=basis, value=make.value, unit=make.unit, make=scaled)
    names = {cluster.groups[number].name for number in used}
    for number, link in enumerate(cluster.links):
        if names.issuperset(link.between):
            yield ClusterNumber(
                name=f"link {' - '.join(link.between)}",
                basis=link.basis,
                value=link.bandwidth_bytes_per_s,
                unit="B/s",
                make=partial(_with_link, cluster, number),
            )


def _with_group(cluster: ClusterSpec, number: int, make: _Scaled, factor: float) -> ClusterSpec:
    groups = list(cluster.groups)
    groups[number] = make(factor)
    return replace(cluster, groups=tuple(groups))


def _with_link(cluster: ClusterSpec, number: int, factor: float) -> ClusterSpec:
    links = list(cluster.links)
    links[number] = replace(links[number], bandwidth_bytes_per_s=links[number].bandwidth_bytes_per_s * factor)
    return replace(cluster, links=tuple(links))


def _time(job: Job, plan: ExecutionPlan, cluster: ClusterSpec) -> float:
    return estimate_plan(plan, job.model, cluster, job.workload).step_time_s


def _overtakes(
    job: Job, rivals: Sequence[tuple[str, ExecutionPlan]], cases: Sequence[tuple[ClusterSpec, float]]
) -> str | None:
    """The rival that is quicker by the most in one of the cases."""
    gains = [(1 - _time(job, plan, cluster) / time_s, name) for cluster, time_s in cases for name, plan in rivals]
    gain, name = max(gains, default=(0.0, ""))
    return name if gain > 0.001 else None


_TOGETHER = {
    "flash": ("flash_forward_fraction", "flash_backward_fraction"),
    # The clock, which other kernels share, stays.
    "gemm_fraction": ("gemm_fraction", "burst_fraction"),
}


class _Scaled:
    """A group with one number multiplied."""

    def __init__(self, group: NodeGroup, name: str, domain: int | None = None) -> None:
        self.group, self.name, self.domain = group, name, domain

    @property
    def value(self) -> float:
        """The number as it is stated."""
        if self.domain is not None:
            return self.group.domains[self.domain].bandwidth_bytes_per_s
        field = "flash_forward_fraction" if self.name == "flash" else self.name
        return float(getattr(self.group.device.efficiency, field))

    @property
    def unit(self) -> str:
        """Unit of the number."""
        return "share" if self.domain is None else "B/s"

    def __call__(self, factor: float) -> NodeGroup:
        group = self.group
        if self.domain is None:
            efficiency = group.device.efficiency
            fields = _TOGETHER.get(self.name, (self.name,))
            scaled = {field: min(1.0, getattr(efficiency, field) * factor) for field in fields}
            changed: KernelEfficiency = replace(efficiency, **scaled)
            return replace(group, device=replace(group.device, efficiency=changed))
        domains = list(group.domains)
        domain: DomainSpec = domains[self.domain]
        domains[self.domain] = replace(domain, bandwidth_bytes_per_s=domain.bandwidth_bytes_per_s * factor)
        return replace(group, domains=tuple(domains))


def scalable_numbers(group: NodeGroup) -> Iterator[tuple[str, Basis, _Scaled]]:
    """Name, basis and how to scale each number."""
    basis = group.device.efficiency.basis
    for name, field in (
        ("16-bit GEMM speed", "gemm_fraction"),
        ("fp8 GEMM speed", "gemm_fraction_fp8"),
        ("fp32 GEMM speed", "gemm_fraction_fp32"),
        ("fused attention speed", "flash"),
        ("memory bandwidth", "memory_fraction"),
    ):
        yield name, basis, _Scaled(group, field)
    for number, domain in enumerate(group.domains):
        if domain.size > 1:
            yield f"{domain.name} bandwidth", domain.basis, _Scaled(group, "", number)
