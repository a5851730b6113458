"""What a plan's numbers say, in sentences: the verdict, its reasons, and why another plan loses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from meshwright.estimate.result import StepEstimate, StepPrice
from meshwright.library.calibration import calibration
from meshwright.search.result import Certificate
from meshwright.specs.job import Job
from meshwright.units import DAY_S, gib, seconds, significant

PART_WORDS: dict[str, str] = {
    "compute": "compute",
    "recompute": "recomputed activations",
    "bubble": "pipeline bubble",
    "tp": "exposed tensor-parallel traffic",
    "cp": "exposed context-parallel traffic",
    "ep": "exposed token exchange between experts",
    "pp": "transfers between stages",
    "dp": "exposed gradient and weight traffic",
    "optimizer": "optimizer update",
    "offload": "exposed host transfers",
    "host": "waiting for kernel launches",
}
OBJECTIVE_RULES = {
    "memory": "least memory among plans at most 10% slower than the quickest",
    "cost": "cheapest step on the whole cluster, or on halves and three quarters of its nodes",
}
"""What is minimised where it is not time, and among which plans."""
FITS_WORDS = {"yes": "fits", "tight": "fits tightly", "no": "does not fit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """The best plan of another layout and what it loses by."""

    name: str | None
    step_time_s: float
    loses_because: str
    title: str = ""
    """The one-line form, or the nearest to it in words."""

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return {
            "name": self.name,
            "title": self.title,
            "step_time_s": self.step_time_s,
            "loses_because": self.loses_because,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer in words."""

    text: str
    why: tuple[str, ...]
    runner_up: RunnerUp | None = None

    def to_dict(self) -> dict[str, object]:
        """As data."""
        runner_up = self.runner_up.to_dict() if self.runner_up else None
        return {"text": self.text, "why": list(self.why), "runner_up": runner_up}


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """What training on so many tokens takes at the predicted step."""

    tokens: float
    steps: float
    days: float
    days_low: float
    days_high: float
    device_hours: float
    price: float | None
    price_per_device_hour: float | None

    def text(self) -> str:
        """One line for people."""
        hours = f"{_thousands(self.device_hours)} device-hours"
        span = f"{significant(self.days_low)}-{significant(self.days_high)}"
        line = f"{_scaled(self.tokens)} tokens: {significant(self.days)} days ({span}), {hours}"
        if self.price is None:
            return f"{line}; no price known, give --price"
        links = self.price - self.device_hours * (self.price_per_device_hour or 0.0)
        paid = f" and {_thousands(links)} for links" if links > 1e-6 * self.price else ""
        return f"{line}, {_thousands(self.price)} at {self.price_per_device_hour:.2f} per device-hour{paid}"

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return {
            "tokens": self.tokens,
            "steps": self.steps,
            "days": self.days,
            "days_low": self.days_low,
            "days_high": self.days_high,
            "device_hours": self.device_hours,
            "price": self.price,
            "price_per_device_hour": self.price_per_device_hour,
        }


def whole_run(job: Job, estimate: StepEstimate, tokens: float | None = None) -> WholeRun | None:
    """Days, device-hours and price of the run; None where nobody said how many tokens."""
    tokens = tokens if tokens is not None else job.workload.tokens
    if tokens is None:
        return None
    steps = tokens / job.workload.tokens_per_step
    hours = steps * estimate.step_time_s / 3600.0 * job.plan.devices
    rate = _mean_price(job, estimate)
    return WholeRun(
        tokens=tokens,
        steps=steps,
        days=steps * estimate.step_time_s / DAY_S,
        days_low=steps * estimate.step_time_low_s / DAY_S,
        days_high=steps * estimate.step_time_high_s / DAY_S,
        device_hours=hours,
        price=None if rate is None else rate * hours + steps * estimate.traffic_price_per_step,
        price_per_device_hour=rate,
    )


def _mean_price(job: Job, estimate: StepEstimate) -> float | None:
    """Price of an hour of one of the used devices, on average; None where that of any is unknown."""
    rates = {group.name: group.price_per_hour for group in job.cluster.groups}
    spent = [(stage.devices, rates[stage.group]) for stage in estimate.stages]
    if any(rate is None for _, rate in spent):
        return None
    return sum(count * (rate or 0.0) for count, rate in spent) / sum(count for count, _ in spent)


def sentence(job: Job, estimate: StepEstimate) -> str:
    """One sentence: model, devices, step with its range, tokens/s, MFU, memory, whether it fits."""
    used = Counter[str]()
    for stage in estimate.stages:
        used[stage.group] += stage.devices
    names = {group.name: group.device.name for group in job.cluster.groups}
    devices = " + ".join(f"{count:,} {names.get(group, group)}" for group, count in used.items())
    low, high = (seconds_like(estimate.step_time_s, s) for s in (estimate.step_time_low_s, estimate.step_time_high_s))
    full = estimate.fullest
    return (
        f"{job.model.name} on {devices}: {seconds(estimate.step_time_s)} per step "
        f"({low}-{high}), {_thousands(estimate.tokens_per_s_per_device)} tokens/s per GPU, "
        f"{percent(estimate.mfu)} MFU, "
        f"{memory(full.peak_memory_bytes, full.capacity_bytes)}: {FITS_WORDS[estimate.fits]}."
    )


def reasons(
    job: Job, estimate: StepEstimate, certificate: Certificate | None, objective: str = "time"
) -> tuple[str, ...]:
    """Where the time goes, where the memory peaks, what was proved."""
    parts = sorted(estimate.breakdown_s, key=lambda part: -part[1])
    shown = [
        f"{PART_WORDS[name]} {percent(s / estimate.step_time_s)}"
        for name, s in parts
        if s >= 0.005 * estimate.step_time_s
    ]
    full = estimate.fullest
    free = full.capacity_bytes - full.peak_memory_bytes
    left = f"{gib(free)} free" if free >= 0 else f"{gib(-free)} too much"
    lines = [
        f"time: {', '.join(shown)}",
        f"memory: {estimate.place(full)} peaks in {full.peak_moment}; {left}",
    ]
    if certificate is not None:
        if objective in OBJECTIVE_RULES:
            lines.append(f"objective {objective}: {OBJECTIVE_RULES[objective]}")
        lines.append(certificate_line(certificate, objective))
        if len(job.plan.pipelines) > 1:
            lines.append("pipelines of unequal shape: composed beside the search, which is of equal ones")
        elif job.name is None:
            lines.append("recompute: chosen layer by layer on top of the search")
    return tuple(lines)


def certificate_line(certificate: Certificate, objective: str = "time") -> str:
    """What the search proves."""
    counts = f"{certificate.space:,} legal plans, {certificate.priced:,} priced, {certificate.feasible:,} fit"
    if objective == "memory":
        # Plans beyond the slack were ruled out by their time, so nothing is said about the memory of those.
        quickest = certificate.bound_step_time_s
        limit = f", the quickest takes {seconds(quickest)}" if quickest is not None else ""
        return f"search: {counts}{limit}; slower plans may need less memory and were not looked at"
    if objective == "cost":
        return f"search: the quickest of {counts} on the devices that are used"
    if certificate.optimal:
        return f"search: best of {counts}; the bounds rule out all others"
    if certificate.bound_step_time_s is None:
        return f"search: {counts}"
    return f"search: {counts}; no plan is faster than {seconds(certificate.bound_step_time_s)}"


def tied(ratio: float) -> bool:
    """Whether two plans of one job that differ by this share cannot be told apart.

    Their ranges are wide but move together, as both rest on the same kernels and links. So not their ranges are
    compared: the limit is how small a difference between two runs of one job was still told right (`calibrate.pairs`).
    """
    return abs(ratio) < calibration().tie


def against(best: StepPrice, other: StepPrice) -> str:
    """Why `other` loses to `best` (or ties, or wins): the relative difference and the parts of the step behind it."""
    ratio = other.step_time_s / best.step_time_s - 1.0
    parts = differences(best, other)
    if tied(ratio):
        if not parts:
            return "a tie: the same time"
        by = f"{percent(abs(ratio))} {'slower' if ratio >= 0 else 'faster'}"
        return f"a tie, {by}: {parts}"
    return f"{percent(abs(ratio))} {'slower' if ratio > 0 else 'faster'}: {parts}"


def more_memory(best: StepPrice, other: StepPrice) -> str:
    """How much more memory `other` needs than `best` on its fullest stage, and how their times compare."""
    peaks = best.peak_memory_bytes, other.peak_memory_bytes
    change = peaks[1] - peaks[0]
    ratio = other.step_time_s / best.step_time_s - 1.0
    times = f"{percent(abs(ratio))} {'slower' if ratio > 0 else 'faster'}"
    if abs(change) < 0.005 * peaks[0]:
        return f"as much memory, {times}"
    return f"{gib(abs(change))} {'more' if change > 0 else 'less'} memory ({gib(peaks[1])}), {times}"


def more_cost(best: StepPrice, other: StepPrice, devices: int) -> str:
    """How much more device time a step of `other` costs on as many devices."""
    ratio = other.step_time_s / best.step_time_s - 1.0
    spent, least = (significant(devices * estimate.step_time_s, 4) for estimate in (other, best))
    word = "the same cost" if abs(ratio) < 0.0005 else f"costs {percent(abs(ratio))} {'more' if ratio > 0 else 'less'}"
    parts = differences(best, other)
    return f"{word}: {spent} against {least} device-seconds a step" + (f" ({parts})" if parts else "")


def differences(base: StepPrice, other: StepPrice, most: int = 3) -> str:
    """The largest differences between two steps, in words: `pipeline bubble +1.2 s, compute -0.1 s`."""
    mine = dict(base.breakdown_s)
    found = sorted(((s - mine[name], name) for name, s in other.breakdown_s), key=lambda pair: -abs(pair[0]))
    largest = abs(found[0][0]) if found else 0.0
    if largest <= 1e-6 * base.step_time_s:
        return ""
    shown = [(change, name) for change, name in found[:most] if abs(change) >= 0.08 * largest]
    return ", ".join(f"{PART_WORDS[name]} {signed_seconds(change)}" for change, name in shown)


def signed_seconds(time_s: float) -> str:
    """`+1.2 s`, `-38 ms`."""
    return f"{'+' if time_s >= 0 else '-'}{seconds(abs(time_s))}"


def seconds_like(model_s: float, time_s: float) -> str:
    """Seconds without their unit, in the unit that another time is shown in."""
    scale = 1.0 if model_s >= 1 or model_s == 0 else 1e3 if model_s >= 1e-3 else 1e6
    return significant(time_s * scale)


def percent(share: float) -> str:
    """A share as percent with up to two significant digits below 10%."""
    value = 100.0 * share
    if value >= 9.95 or value == 0:
        return f"{value:.0f}%"
    return f"{value:.1f}%" if value >= 0.05 else "under 0.1%"


def memory(peak_bytes: float, capacity_bytes: float) -> str:
    """`71.2 of 79.6 GiB`."""
    return f"{gib(peak_bytes).removesuffix(' GiB')} of {gib(capacity_bytes)}"


def _thousands(number: float) -> str:
    return f"{float(f'{number:.3g}'):,.0f}" if number >= 100 else significant(number)


def _scaled(number: float) -> str:
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= scale:
            return f"{significant(number / scale)}{letter}"
    return f"{number:,.0f}"
