"""Two plans side by side: where the seconds and the bytes differ."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.app.answer import Answer
from meshwright.errors import UnsupportedError
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepPrice
from meshwright.estimate.sequences import tokens_of_step
from meshwright.fields.job import JobFields
from meshwright.formats.plan_json import PlannedJob
from meshwright.library.made_with import calibration_of
from meshwright.planning.compose.sources.profiles.price import price_job
from meshwright.planning.plan_source import (
    PlanLike,
    is_one_line,
    named_job,
    plan_question,
    planned_job,
    question_beside_trainers,
)
from meshwright.planning.ties import tied
from meshwright.records import Record, plain
from meshwright.report.words import comparison as words
from meshwright.report.words.measured import folder_notes
from meshwright.report.words.titles import planned_title
from meshwright.specs.calibration import Calibration
from meshwright.specs.measured import MeasuredJob
from meshwright.specs.row import PlanRow

if TYPE_CHECKING:
    from rich.console import RenderableType

    from meshwright.app.requests.read import CompareRequest
    from meshwright.app.runs.compared import RunComparison
    from meshwright.report.picture import Picture


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
    """The second plan compared with the first."""

    first: PlannedJob
    second: PlannedJob
    estimates: tuple[StepPrice, StepPrice]
    text: str
    slower: float
    """Share of the first plan's step by which the second is slower."""
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
        """Whether measured runs as near each other are too often mispredicted to say which is faster."""
        return tied(self.slower, self.estimates[0])

    @property
    def priced_by(self) -> Calibration:
        """The calibration that its prices use."""
        return calibration_of(self.second)

    def data(self) -> dict[str, object]:
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
            "breakdown_s": plain(self.seconds),
            "memory_bytes": plain(self.bytes),
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


def compared(request: CompareRequest) -> Comparison | RunComparison:
    """Two plans compared, or a plan and its run.

    Raises:
        InputError: a file cannot be used, or a log is of another run.
        UnsupportedError: a plan that no model prices, or an unknown name.
    """
    if request.with_run is not None:
        from meshwright.app.runs.compared import compare_with_run

        return compare_with_run(request.first, os.fspath(request.with_run), request.framework, asked=request.job)
    return compare(request.first, request.second, request.job)


def compare(first: PlanLike | PlanRow, second: PlanLike | PlanRow, asked: JobFields | None = None) -> Comparison:
    """Where two plans differ.

    Args:
        first: a job, an entry of an answer, a plan file (`plans.json#1`), or one line.
        second: the second plan, in the same forms.
        asked: model, cluster and workload of plans of one line; those of the other plan where it names none.

    Returns:
        Parts of the step and kinds of memory of both, and what decides between them.

    Raises:
        InputError: a file cannot be used.
        UnsupportedError: a plan that no model prices.
    """
    like = next((planned_job(plan)[0] for plan in (first, second) if not is_one_line(plan)), None)  # type: ignore[arg-type]
    asked, alike = _under_one_trainer(first, second, asked or JobFields())
    (one, warnings), (two, more) = (named_job(plan, asked, like) for plan in (first, second))
    if isinstance(one, MeasuredJob) != isinstance(two, MeasuredJob):
        raise UnsupportedError(
            what="one plan is of measured layers, the other of a model",
            why="they are priced by different rules: layer times as measured, and a model on data sheets",
            fix="compare two plans of `plan --profiles`, or two without",
            field="plan",
            code="MW421",
        )
    a, b = _priced(one), _priced(two)
    rates = _rate(one, a), _rate(two, b)
    same_work = _work(one) == _work(two)
    unit = "sequences/s" if isinstance(one, MeasuredJob) else "tokens/s"
    notes = [*alike, *warnings, *more, *_work_notes(one, two, unit)]
    ratio = b.step_time_s / a.step_time_s - 1 if same_work else rates[0] / rates[1] - 1
    return Comparison(
        first=one,
        second=two,
        estimates=(a, b),
        text=words.comparison_sentence(ratio, a, b, None if same_work else (*rates, unit)),
        slower=ratio,
        settings=tuple(words.differing_settings(one, two)),
        seconds=_paired(a.breakdown_s, b.breakdown_s),
        bytes=_paired(a.fullest.memory_bytes, b.fullest.memory_bytes),
        notes=(*notes, *words.memory_notes(a, b)),
    )


def _under_one_trainer(
    first: PlanLike | PlanRow, second: PlanLike | PlanRow, asked: JobFields
) -> tuple[JobFields, tuple[str, ...]]:
    """The question with one framework for both plans of adapters, where a trainer runs both, and a note on it."""
    if asked.software is not None or not (is_one_line(first) and is_one_line(second)):
        return asked, ()
    if asked.lora is None:
        return asked, tuple(_who_runs(first, second, asked))
    from meshwright.planning.for_target import priced_as  # few comparisons are of adapters
    from meshwright.planning.trainer_of_plan import same_trainer
    from meshwright.targets import TARGETS

    trainer = same_trainer([plan_question(plan, asked) for plan in (first, second)])
    if trainer is None:
        return asked, ()
    return priced_as(asked, trainer), (f"both are priced as {TARGETS[trainer].title} runs them",)


def _who_runs(first: PlanLike | PlanRow, second: PlanLike | PlanRow, asked: JobFields) -> Iterator[str]:
    """The trainers that plans on few devices are priced for, in one line where that is the same of both."""
    asked_of = [question_beside_trainers(plan, asked) for plan in (first, second)]
    notes = [
        (title, note) for one, title in zip(asked_of, ("first", "second"), strict=True) for note in one.of_trainers
    ]
    if len({note for _, note in notes}) == 1 and len(notes) == len(asked_of):
        yield f"both plans: {notes[0][1]}"
    else:
        yield from (f"{title} plan: {note}" for title, note in notes)


def _priced(job: PlannedJob) -> StepPrice:
    if isinstance(job, MeasuredJob):
        return price_job(job)
    return estimate_plan(job.plan, job.model, job.cluster, job.workload)


def _work(job: PlannedJob) -> tuple[object, object]:
    """What a step does: two of the same work are compared by their seconds."""
    return (job.profile.name, job.global_batch) if isinstance(job, MeasuredJob) else (job.model, job.workload)


def _work_notes(one: PlannedJob, two: PlannedJob, unit: str) -> Iterator[str]:
    """What is to know of measured layers, and whether the steps do different work."""
    yield from dict.fromkeys(note for job in (one, two) if isinstance(job, MeasuredJob) for note in folder_notes(job))
    if isinstance(one, MeasuredJob) or isinstance(two, MeasuredJob):
        if _work(one) != _work(two):
            yield f"the plans do different work per step; compare {unit}, not seconds"
        return
    tokens = tokens_of_step(one.workload), tokens_of_step(two.workload)
    if tokens[0] != tokens[1]:
        yield f"the steps train {tokens[0]:,.0f} and {tokens[1]:,.0f} tokens; compare {unit}, not seconds"


def _rate(job: PlannedJob, price: StepPrice) -> float:
    """Sequences of measured layers, or tokens, per second."""
    work = job.global_batch if isinstance(job, MeasuredJob) else tokens_of_step(job.workload)
    return work / price.step_time_s


def _paired(first: Iterable[tuple[str, float]], second: Iterable[tuple[str, float]]) -> tuple[Difference, ...]:
    others = dict(second)
    return tuple(Difference(name=name, first=value, second=others[name]) for name, value in first)
