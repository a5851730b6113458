"""The verdict on a plan: its sentence, its reasons, and why the runner-up loses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright.estimate.result import StepEstimate, StepPrice
from meshwright.planning.reason import Reason
from meshwright.planning.reasons import plan_reasons
from meshwright.planning.ties import time_difference
from meshwright.planning.whole_run import WholeRun
from meshwright.records import Record
from meshwright.report.words.reasons import reason_text
from meshwright.report.words.titles import group_text
from meshwright.search.result import PlanCertificate
from meshwright.specs.cluster import AND
from meshwright.specs.job import Job
from meshwright.units import energy, of_capacity, percent, rounded, scaled, seconds, significant

if TYPE_CHECKING:
    from meshwright.formats.plan_json import PlannedJob
    from meshwright.planning.goodput import Goodput

FITS_WORDS = {"yes": "fits", "tight": "fits tightly", "no": "does not fit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp(Record):
    """The best plan of another layout and what it loses by."""

    name: str | None
    title: str = ""
    """The one-line form, or the nearest to it in words."""
    step_time_s: float
    loses_because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Record):
    """The answer in words, with its reasons as data."""

    text: str
    why: tuple[str, ...]
    runner_up: RunnerUp | None = None
    reasons: tuple[Reason, ...] = ()
    """What `why` says, as data."""


def verdict_of(text: str, reasons: Iterable[Reason], runner_up: RunnerUp | None = None) -> Verdict:
    """A verdict from its sentence and its reasons."""
    found = tuple(reasons)
    return Verdict(text=text, why=tuple(map(reason_text, found)), runner_up=runner_up, reasons=found)


def run_sentence(run: WholeRun) -> str:
    """What the whole run takes: `15T tokens: 61.2 days (52-70.1), 94,000 device-hours, ...`."""
    hours = f"{rounded(run.device_hours)} device-hours"
    span = f"{significant(run.days_low)}-{significant(run.days_high)}"
    line = f"{scaled(run.tokens)} tokens: {significant(run.days)} days ({span}), {goodput_text(run.goodput)}, {hours}"
    line += _energy_said(run)
    if run.price is None:
        return f"{line}; no price known, give --price or --prices"
    hourly = run.price_per_device_hour or 0.0
    links = run.price - run.device_hours * hourly
    if links <= 1e-6 * run.price:
        return f"{line}, {rounded(run.price)} USD at {hourly:.2f} USD per device-hour"
    parts = f"{rounded(run.price - links)} at {hourly:.2f} USD per device-hour, {rounded(links)} for links"
    return f"{line}, {rounded(run.price)} USD ({parts})"


def _energy_said(run: WholeRun) -> str:
    """`, at most 2.46 GWh and 934 t CO2e`."""
    if run.energy_kwh is None:
        return ""
    most = "at most " if run.energy_at_most else ""
    gas = "" if run.carbon_kg is None else f" and {rounded(run.carbon_kg / 1000)} t CO2e"
    return f", {most}{energy(run.energy_kwh)}{gas}"


def goodput_text(found: Goodput) -> str:
    """The share of the run that trains: `94% goodput (0.33 failures a day)`; never 100% where anything fails."""
    stops = ((found.failures_per_day, "failures"), (found.preemptions_per_day, "preemptions"))
    counted = " and ".join(f"{significant(count, 2)} {noun}" for count, noun in stops if count)
    often = f" ({counted} a day)" if counted else ""
    short = f", enough nodes {percent(found.staffed)} of the time" if found.staffed < 0.9995 else ""
    share = percent(found.share) if found.share < 0.995 or found.share == 1 else f"{int(1000 * found.share) / 10:g}%"
    return f"{share} goodput{often}{short}"


def plan_sentence(job: PlannedJob, estimate: StepPrice) -> str:
    """One sentence: model, devices, step with its range, tokens/s, MFU, memory, whether it fits."""
    if not isinstance(job, Job) or not isinstance(estimate, StepEstimate):
        return measured_sentence(job, estimate)
    names = {g.name: g.device.name if len(g.members) == 1 else g.name for g in job.cluster.groups}
    low, high = (seconds_like(estimate.step_time_s, s) for s in (estimate.step_time_low_s, estimate.step_time_high_s))
    each = device_word(names.values())
    return (
        f"{job.model.name} on {devices_text(estimate, names)}: {seconds(estimate.step_time_s)} per step "
        f"({low}-{high}), {rounded(estimate.tokens_per_s_per_device)} tokens/s per {each}{_padding(estimate)}, "
        f"{percent(estimate.mfu)} MFU, {peak_text(estimate)}: {FITS_WORDS[estimate.fits]}."
    )


def device_word(names: Iterable[str]) -> str:
    """What a device is called beside a rate: TPUs are chips."""
    return "chip" if all(name.startswith("TPU") for name in names) else "GPU"


def rate_heading(plans: Sequence[Mapping[str, Any]]) -> str:
    """The heading of tokens a second and device, of plans as data."""
    return f"tok/s/{device_word(stage['group'] for plan in plans for stage in plan['estimate']['stages'])}"


def _padding(estimate: StepEstimate) -> str:
    """What part of the computed tokens is not counted in the rate, and what packed rows would take."""
    filling = estimate.filling
    if filling is None:
        return ""
    packed = filling.packed_step_time_s
    fixed = filling.fixed_cp_step_time_s
    instead = "" if packed is None else f"; {seconds(packed)} per step with packed rows"
    if fixed is not None and fixed != estimate.step_time_s:
        instead = f"; {seconds(fixed)} per step with every sequence split over all context ranks"
    return f" ({percent(filling.padding)} padding not counted{instead})"


def measured_sentence(job: PlannedJob, estimate: StepPrice) -> str:
    """The same of measured layers, without tokens/s and MFU: a profile states no sequence length and no FLOP."""
    name = job.model.name if isinstance(job, Job) else job.profile.name
    return (
        f"{name} on {devices_text(estimate)}, measured layers: {seconds(estimate.step_time_s)} per step of "
        f"{job.plan.global_batch if isinstance(job, Job) else job.global_batch} sequences, {peak_text(estimate)}: "
        f"{FITS_WORDS[estimate.fits]}."
    )


def devices_text(estimate: StepPrice, names: dict[str, str] | None = None) -> str:
    """The devices in use: `32 H100 + 16 A100-80`; groups by the names given, those of one name as one."""
    used = Counter[str]()
    for stage in estimate.stages:
        used[(names or {}).get(stage.group, stage.group)] += stage.devices
    return AND.join(group_text(name, count) for name, count in used.items())


def peak_text(estimate: StepPrice) -> str:
    """Memory of the fullest stage: `71.2 of 79.6 GiB`."""
    return of_capacity(estimate.fullest.peak_memory_bytes, estimate.fullest.capacity_bytes)


def reasons(
    job: PlannedJob, estimate: StepPrice, certificate: PlanCertificate | None, objective: str = "time"
) -> tuple[str, ...]:
    """Where the time goes, where the memory peaks, what was proved."""
    return tuple(map(reason_text, plan_reasons(job, estimate, certificate, objective)))


def against(best: StepPrice, other: StepPrice) -> str:
    """Why `other` loses to `best` (or ties, or wins): the relative difference and the parts of the step behind it."""
    return reason_text(time_difference(best, other))


def seconds_like(model_s: float, time_s: float) -> str:
    """Seconds without their unit, in the unit that another time is shown in."""
    scale = 1.0 if model_s >= 1 or model_s == 0 else 1e3 if model_s >= 1e-3 else 1e6
    return significant(time_s * scale)
