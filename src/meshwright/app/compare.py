"""Two plans side by side: where the seconds and the bytes differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.app.answer import Answer
from meshwright.app.plan_set import shortened
from meshwright.errors import Problem, UnsupportedError
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate, StepPrice
from meshwright.formats.plan_json import PlannedJob
from meshwright.planning.compose.sources.profiles.price import price_job
from meshwright.planning.plan_shape import bare_row
from meshwright.planning.plan_source import PlanLike, planned_job
from meshwright.planning.ties import differing_parts, tied
from meshwright.records import Record
from meshwright.report.words.measured import folder_notes, planned_title
from meshwright.report.words.reasons import parts_text
from meshwright.report.words.titles import strategy_text
from meshwright.report.words.verdict import FITS_WORDS
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.job import Job
from meshwright.specs.measured import MeasuredJob
from meshwright.specs.plan import Pipeline
from meshwright.specs.row import PlanRow
from meshwright.units import gib, of_capacity, percent, seconds, significant

if TYPE_CHECKING:
    from rich.console import RenderableType

    from meshwright.report.picture import Picture

_SETTINGS = ("tp", "tp_overlap", "cp_degree", "pp", "vpp", "ep", "etp", "dp", "sharding", "mbs", "gbs", "schedule")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Record):
    """One number of both plans."""

    name: str
    first: float
    second: float

    @property
    def change(self) -> float:
        """Second minus first."""
        same = math.isclose(self.first, self.second, rel_tol=1e-9, abs_tol=1e-12)
        return 0.0 if same else self.second - self.first

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return Record.to_dict(self) | {"change": self.change}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Answer):
    """The second plan held against the first."""

    first: PlannedJob
    second: PlannedJob
    estimates: tuple[StepPrice, StepPrice]
    text: str
    slower: float
    """By what share of the first the second is slower."""
    settings: tuple[tuple[str, str, str], ...]
    """Degrees and settings that differ: name, first, second."""
    seconds: tuple[Difference, ...]
    """Parts of the step."""
    bytes: tuple[Difference, ...]
    """Memory of the fullest stage of each."""
    notes: tuple[str, ...] = ()

    @property
    def titles(self) -> tuple[str, str]:
        """What to call the two plans."""
        return planned_title(self.first), planned_title(self.second)

    @property
    def tied(self) -> bool:
        """Whether measured runs as near each other are too often told wrong to say which is quicker."""
        return tied(self.slower, self.estimates[0])

    def to_dict(self) -> dict[str, object]:
        """As data: `meshwright.comparison/1`."""
        return {
            "schema": "meshwright.comparison/1",
            "text": self.text,
            "tie": {"within": self.estimates[0].tie, "tied": self.tied},
            "plans": [
                {"name": job.name, "title": name, "devices": job.plan.devices, "estimate": estimate.to_dict()}
                for job, name, estimate in zip((self.first, self.second), self.titles, self.estimates, strict=True)
            ],
            "settings": [{"name": n, "first": a, "second": b} for n, a, b in self.settings],
            "breakdown_s": [difference.to_dict() for difference in self.seconds],
            "memory_bytes": [difference.to_dict() for difference in self.bytes],
            "notes": list(self.notes),
        }

    def pictures(self) -> tuple[Picture, Picture]:
        """One step of each, task by task, as drawings take it."""
        from meshwright.app.trace import trace_of

        return trace_of(self.first).picture, trace_of(self.second).picture

    def timeline(self) -> RenderableType:
        """Both steps below each other on one time axis, as text."""
        from meshwright.report.comparison import render_timelines

        return render_timelines(self.pictures())

    def svg(self) -> str:
        """Both steps below each other on one time axis, as a figure."""
        from meshwright.report.timeline_svg import timeline_svg

        return timeline_svg(self.pictures())


def compare(first: PlanLike, second: PlanLike) -> Comparison:
    """Where two plans differ.

    Args:
        first: a job, an entry of an answer, or a plan file (`plans.json#1`).
        second: likewise.

    Returns:
        Parts of the step and kinds of memory of both, and what decides between them.

    Raises:
        InputError: a file cannot be used.
        UnsupportedError: a plan nobody prices.
    """
    (one, warnings), (two, more) = planned_job(first), planned_job(second)
    if isinstance(one, MeasuredJob) and isinstance(two, MeasuredJob):
        return _measured(one, two, (*warnings, *more))
    if isinstance(one, MeasuredJob) or isinstance(two, MeasuredJob):
        raise UnsupportedError(
            Problem(
                what="one plan is of measured layers, the other of a model",
                why="they are priced by different rules: layer times as measured, and a model on data sheets",
                fix="compare two plans of `plan --profiles`, or two without",
                field="plan",
            ),
            code="MW421",
        )
    estimates = tuple(estimate_plan(job.plan, job.model, job.cluster, job.workload) for job in (one, two))
    a, b = estimates
    return Comparison(
        first=one,
        second=two,
        estimates=(a, b),
        text=_text(_ratio(one, two, a, b), _step_words(one, two, a, b), a, b, same_work=_same_work(one, two)),
        slower=_ratio(one, two, a, b),
        settings=tuple(_settings(one, two)),
        seconds=_paired(dict(a.breakdown_s), dict(b.breakdown_s)),
        bytes=_paired(dict(a.fullest.memory_bytes), dict(b.fullest.memory_bytes)),
        notes=(*warnings, *more, *_notes(one, two, a, b)),
    )


def _paired(first: dict[str, float], second: dict[str, float]) -> tuple[Difference, ...]:
    return tuple(Difference(name=name, first=value, second=second[name]) for name, value in first.items())


def _same_work(one: Job, two: Job) -> bool:
    return one.workload == two.workload and one.model == two.model


def _tokens_per_s(job: Job, estimate: StepEstimate) -> float:
    return estimate.tokens_per_s_per_device * job.plan.devices


def _ratio(one: Job, two: Job, a: StepEstimate, b: StepEstimate) -> float:
    """By what share of the first the second is slower: by its step where both do the same work, else by its tokens."""
    if _same_work(one, two):
        return b.step_time_s / a.step_time_s - 1
    return _tokens_per_s(one, a) / _tokens_per_s(two, b) - 1


def _measured(one: MeasuredJob, two: MeasuredJob, warnings: tuple[str, ...]) -> Comparison:
    """Two plans of measured layers, each from the numbers that its file carries."""
    a, b = price_job(one), price_job(two)
    same_work = (one.profile.name, one.global_batch) == (two.profile.name, two.global_batch)
    per_s = [job.global_batch / price.step_time_s for job, price in ((one, a), (two, b))]
    rates = f"{significant(per_s[0])} against {significant(per_s[1])} sequences/s"
    ratio = per_s[0] / per_s[1] - 1
    found = [
        ("model", one.profile.name, two.profile.name),
        ("cluster", one.cluster.name, two.cluster.name),
        ("profiles", one.profile.source, two.profile.source),
        ("measured numbers", one.profile.fingerprint[:19], two.profile.fingerprint[:19]),
        ("devices", str(one.plan.devices), str(two.plan.devices)),
        ("batch", str(one.global_batch), str(two.global_batch)),
        *((name, show(one), show(two)) for name, show in _STAGES),
    ]
    notes = [] if same_work else ["the plans do not train the same; compare sequences/s, not seconds"]
    return Comparison(
        first=one,
        second=two,
        estimates=(a, b),
        text=_text(ratio, _seconds_words(a, b) if same_work else rates, a, b, same_work=same_work),
        slower=ratio,
        settings=tuple((name, x, y) for name, x, y in found if x != y),
        seconds=_paired(dict(a.breakdown_s), dict(b.breakdown_s)),
        bytes=_paired(dict(a.fullest.memory_bytes), dict(b.fullest.memory_bytes)),
        notes=(*warnings, *dict.fromkeys((*folder_notes(one), *folder_notes(two))), *notes, *_memory_notes(a, b)),
    )


def _seconds_words(a: StepPrice, b: StepPrice) -> str:
    return f"{seconds(a.step_time_s)} against {seconds(b.step_time_s)}"


def _step_words(one: Job, two: Job, a: StepEstimate, b: StepEstimate) -> str:
    """Seconds of both where they do the same work, else tokens per second."""
    if _same_work(one, two):
        return _seconds_words(a, b)
    return f"{significant(_tokens_per_s(one, a))} against {significant(_tokens_per_s(two, b))} tokens/s"


def _text(ratio: float, step: str, a: StepPrice, b: StepPrice, *, same_work: bool) -> str:
    word = "slower" if ratio > 0 else "faster"
    verdict = "a tie" if tied(ratio, a) else f"the second is {percent(abs(ratio))} {word}"
    why = parts_text(differing_parts(a, b)) if same_work else ""
    peaks = " against ".join(
        f"{of_capacity(e.fullest.peak_memory_bytes, e.fullest.capacity_bytes)} ({FITS_WORDS[e.fits]})" for e in (a, b)
    )
    return f"{verdict}: {step}" + (f" ({why})" if why else "") + f"; memory {peaks}"


def _settings(one: Job, two: Job) -> list[tuple[str, str, str]]:
    first, second = (row_of(job.plan, job.model) or bare_row(job.plan, job.model) for job in (one, two))
    found = [
        ("model", one.model.name, two.model.name),
        ("cluster", one.cluster.name, two.cluster.name),
        ("devices", str(one.plan.devices), str(two.plan.devices)),
        ("seq_len", str(one.workload.seq_len), str(two.workload.seq_len)),
        ("dtype", one.workload.precision.name, two.workload.precision.name),
        ("optimizer", one.workload.optimizer, two.workload.optimizer),
    ]
    if first is not None and second is not None:
        names = {"cp_degree": "cp", "tp_overlap": "tp overlap"}
        found += [(names.get(n, n), str(getattr(first, n)), str(getattr(second, n))) for n in _SETTINGS]
        found.append(("recompute", _recompute(one, first), _recompute(two, second)))
        found.append(("offload", first.offload or "none", second.offload or "none"))
    else:
        found += [(name, show(one), show(two)) for name, show in _STAGES]
    return [(name, a, b) for name, a, b in found if a != b]


def _each_pipeline(job: PlannedJob, show: Callable[[Pipeline], str]) -> str:
    """What is said of pipelines, equal ones counted."""
    counts = Counter(show(pipeline) for pipeline in job.plan.pipelines)
    return " | ".join(f"{count} x ({text})" if count > 1 else text for text, count in counts.items())


def _layers(job: PlannedJob) -> str:
    def show(pipeline: Pipeline) -> str:
        return shortened([sum(chunk.num_layers for chunk in worker.chunks) for worker in pipeline.workers])

    return _each_pipeline(job, show)


def _micro_batches(job: PlannedJob) -> str:
    def show(pipeline: Pipeline) -> str:
        return f"{pipeline.num_micro_batches} of {job.plan.data_degree(pipeline) * pipeline.micro_batch}"

    return _each_pipeline(job, show)


def _strategies(job: PlannedJob) -> str:
    def show(pipeline: Pipeline) -> str:
        index = (job.plan.strategy_index(pipeline, worker) for worker in pipeline.workers)
        return " > ".join(dict.fromkeys(strategy_text(job.plan.strategies[number]) for number in index))

    return _each_pipeline(job, show)


_STAGES: tuple[tuple[str, Callable[[PlannedJob], str]], ...] = (
    ("pipelines", lambda job: str(len(job.plan.pipelines))),
    ("layers", _layers),
    ("micro-batches", _micro_batches),
    ("strategies", _strategies),
    ("schedule", lambda job: ", ".join(dict.fromkeys(line.schedule.token for line in job.plan.pipelines))),
)
"""What is said of plans that are no rows of degrees."""


def _recompute(job: Job, row: PlanRow) -> str:
    if row_of(job.plan, job.model) is None:
        return "per layer"
    return f"{row.recompute}{row.recompute_layers or ''}"


def _notes(one: Job, two: Job, a: StepEstimate, b: StepEstimate) -> list[str]:
    notes = []
    if one.workload.tokens_per_step != two.workload.tokens_per_step:
        counts = f"{one.workload.tokens_per_step:,} and {two.workload.tokens_per_step:,}"
        notes.append(f"the steps train {counts} tokens; compare tokens/s, not seconds")
    return [*notes, *_memory_notes(a, b)]


def _memory_notes(a: StepPrice, b: StepPrice) -> list[str]:
    """Where the fullest stages are, and which kind of memory sets them apart."""
    notes = []
    fullest = a.place(a.fullest), b.place(b.fullest)
    if fullest[0] != fullest[1]:
        notes.append(f"the fullest is {fullest[0]} of the first and {fullest[1]} of the second")
    change = b.fullest.peak_memory_bytes - a.fullest.peak_memory_bytes
    kinds = sorted(_paired(dict(a.fullest.memory_bytes), dict(b.fullest.memory_bytes)), key=lambda d: -abs(d.change))
    if abs(change) > 0 and kinds and abs(kinds[0].change) > 0:
        sign = "more" if change > 0 else "less"
        largest = kinds[0]
        grown = f"{'+' if largest.change > 0 else '-'}{gib(abs(largest.change))}"
        notes.append(f"memory: {gib(abs(change))} {sign} on the fullest stage, most of it {largest.name} ({grown})")
    return notes
