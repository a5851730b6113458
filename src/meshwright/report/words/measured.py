"""What to call a plan of measured layers, and what to say of it first."""

from __future__ import annotations

from itertools import groupby

from meshwright.errors import MeshwrightError
from meshwright.estimate.result import StepPrice
from meshwright.formats.plan_json import PlannedJob
from meshwright.formats.profiles import read_profiles
from meshwright.planning.compose.sources.profiles.job import same_numbers
from meshwright.report.words.titles import title_of
from meshwright.report.words.verdict import FITS_WORDS
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.measured import MeasuredJob
from meshwright.units import of_capacity, seconds

MOST_SHAPES = 4
"""Kinds of pipelines named."""


def planned_title(job: PlannedJob) -> str:
    """What to call a plan, of a model or of measured layers."""
    return measured_title(job) if isinstance(job, MeasuredJob) else title_of(job, row_of(job.plan, job.model))


def measured_title(job: MeasuredJob) -> str:
    """Its pipelines by the groups of their stages, equal ones counted: `2 x (1xnew > 2xold) | 1xold`."""
    shapes: dict[str, int] = {}
    for pipeline in job.plan.pipelines:
        groups = [job.group_of(worker.devices[0][0]) for worker in pipeline.workers]
        said = " > ".join(f"{len(list(run))}x{group}" for group, run in groupby(groups))
        shapes[said] = shapes.get(said, 0) + 1
    named = [said if count == 1 else f"{count} x ({said})" for said, count in shapes.items()]
    more = len(named) - MOST_SHAPES
    return " | ".join([*named[:MOST_SHAPES], *([f"and {more} more"] if more > 0 else [])])


def measured_sentence(job: MeasuredJob, estimate: StepPrice) -> str:
    """One sentence: model, devices, step, memory, whether it fits."""
    used: dict[str, int] = {}
    for stage in estimate.stages:
        used[stage.group] = used.get(stage.group, 0) + stage.devices
    devices = " + ".join(f"{count:,} {group}" for group, count in used.items())
    full = estimate.fullest
    peak = of_capacity(full.peak_memory_bytes, full.capacity_bytes)
    return (
        f"{job.profile.name} on {devices}, measured layers: {seconds(estimate.step_time_s)} per step of "
        f"{job.global_batch} sequences, {peak}: {FITS_WORDS[estimate.fits]}."
    )


def folder_notes(job: MeasuredJob) -> tuple[str, ...]:
    """Whether the folder of profiles still says what the plan was made with; the plan's own numbers count."""
    profile = job.profile
    own = "the plan is priced with the numbers that its file carries"
    interpolated = sum(point.basis == "interpolated" for point in profile.points)
    notes = (f"{interpolated} of its {len(profile.points)} points are interpolated",) if interpolated else ()
    try:
        found = read_profiles(profile.source)
    except MeshwrightError:
        return (*notes, f"the profiles in {profile.source} are gone or cannot be read; {own}")
    if same_numbers(job, found):
        return notes
    return (*notes, f"the profiles in {profile.source} changed since; {own}: plan again with --profiles to use them")
