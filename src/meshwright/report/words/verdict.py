"""What a plan's numbers say, in sentences: the verdict, its reasons, and why another plan loses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from meshwright.estimate.result import StepEstimate, StepPrice
from meshwright.planning.ties import tied
from meshwright.planning.whole_run import WholeRun
from meshwright.search.result import Certificate
from meshwright.specs.job import Job
from meshwright.units import gib, of_capacity, percent, rounded, scaled, seconds, signed_seconds, significant

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


def run_sentence(run: WholeRun) -> str:
    """What the whole run takes: `15T tokens: 61.2 days (52-70.1), 94,000 device-hours, ...`."""
    hours = f"{rounded(run.device_hours)} device-hours"
    span = f"{significant(run.days_low)}-{significant(run.days_high)}"
    line = f"{scaled(run.tokens)} tokens: {significant(run.days)} days ({span}), {hours}"
    if run.price is None:
        return f"{line}; no price known, give --price"
    links = run.price - run.device_hours * (run.price_per_device_hour or 0.0)
    paid = f" and {rounded(links)} for links" if links > 1e-6 * run.price else ""
    return f"{line}, {rounded(run.price)} at {run.price_per_device_hour:.2f} per device-hour{paid}"


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
        f"({low}-{high}), {rounded(estimate.tokens_per_s_per_device)} tokens/s per GPU, "
        f"{percent(estimate.mfu)} MFU, "
        f"{of_capacity(full.peak_memory_bytes, full.capacity_bytes)}: {FITS_WORDS[estimate.fits]}."
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


def against(best: StepPrice, other: StepPrice) -> str:
    """Why `other` loses to `best` (or ties, or wins): the relative difference and the parts of the step behind it."""
    ratio = other.step_time_s / best.step_time_s - 1.0
    parts = differences(best, other)
    if tied(ratio, best):
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


def seconds_like(model_s: float, time_s: float) -> str:
    """Seconds without their unit, in the unit that another time is shown in."""
    scale = 1.0 if model_s >= 1 or model_s == 0 else 1e3 if model_s >= 1e-3 else 1e6
    return significant(time_s * scale)
