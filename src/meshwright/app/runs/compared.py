"""`compare PLAN --with-run LOG`: what was predicted beside what was measured, and what explains the difference."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.app.answer import Answer
from meshwright.app.runs.measured_run import LoggedRun, measured_run, with_log
from meshwright.calibrate.causes import Cause, causes
from meshwright.estimate.needed_flop import step_flop
from meshwright.fields.job import JobFields
from meshwright.formats.logs import read_log
from meshwright.library.made_with import calibration_of
from meshwright.planning.plan_source import PlanLike, plan_question
from meshwright.records import Record, plain
from meshwright.report.words import measured_run as words
from meshwright.report.words.titles import planned_title
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.calibration import Calibration
from meshwright.specs.row import PlanRow

UNEVEN = 0.05
"""Difference between the slowest and the quickest tenth of steady steps, over their median, above which steps are not
alike."""
SLOWING = 0.03
"""Difference between the first and the last third of the steps above which the run slows down."""
OTHER_FLOP = 0.08
"""Difference between the FLOP of a step that the log counts and the model's above which they count otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side(Record):
    """One quantity, predicted and measured."""

    name: str
    predicted: float
    measured: float
    low: float | None = None
    """Lower end of the prediction's range, in seconds."""
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTerm(Record):
    """Parts of the step that the run reports together."""

    name: str
    """Name in the run's report; empty for what it reports nothing of."""
    parts: tuple[str, ...]
    predicted_s: float
    measured_s: float

    @property
    def change_s(self) -> float:
        """Measured minus predicted."""
        return self.measured_s - self.predicted_s

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return Record.to_dict(self) | {"change_s": self.change_s}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunComparison(Answer):
    """A plan's prediction compared with its run."""

    run: LoggedRun
    title: str
    text: str
    totals: tuple[Side, ...]
    terms: tuple[ReportedTerm, ...]
    """Empty where the run states none."""
    causes: tuple[Cause, ...]
    advice: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def priced_by(self) -> Calibration:
        """The calibration that its prices use."""
        return calibration_of(self.run.job)

    def data(self) -> dict[str, object]:
        """As data: `meshwright.run-comparison/1`."""
        return {
            "schema": "meshwright.run-comparison/1",
            "text": self.text,
            "plan": {"name": self.run.job.name, "title": self.title, "estimate": self.run.estimate.to_dict()},
            "log": {
                "name": self.run.log,
                "framework": self.run.read.framework,
                "steps_read": len(self.run.read.steps),
                "steps_used": len(self.run.steps),
            },
            "totals": plain(self.totals),
            "terms": plain(self.terms),
            "left": words.left_line(self._gap_s - sum(cause.effect_s for cause in self.causes), self._gap_s),
            "causes": [cause.to_dict() | {"text": words.cause_line(cause, self._gap_s)} for cause in self.causes],
            "advice": list(self.advice),
            "notes": list(self.notes),
        }

    @property
    def _gap_s(self) -> float:
        return self.run.step_time_s - self.run.estimate.step_time_s


def compare_with_run(
    plan: PlanLike | PlanRow, log: str | Path, framework: str | None = None, *, asked: JobFields | None = None
) -> RunComparison:
    """Predicted and measured side by side, by part of the step where the run states parts.

    Args:
        plan: the plan that ran: a job, an entry of an answer, a plan file, or one line with what is asked.
        log: the log of its framework, a CSV of steps, or a trace of the PyTorch profiler.
        framework: the framework that wrote the log; recognised by its lines by default.
        asked: model, cluster and workload of a plan that does not carry them; length and batch are the
            log's by default.

    Returns:
        Both sides, what explains the difference and what to try.

    Raises:
        InputError: a file cannot be used, or the log is of another run.
        UnsupportedError: an unknown framework, or a plan that no model prices.
    """
    read = read_log(log, framework)
    question = plan_question(plan, with_log(asked or JobFields(), read, plan))
    job, warnings = question.job, question.warnings
    run = measured_run(log, read, job, row_of(job.plan, job.model))
    terms = tuple(_terms(run))
    found: tuple[Cause, ...] = ()
    if run.job.cluster.homogeneous:
        found = causes(run.step_on(), run.step_time_s, run.terms(), run.known)
    # Of parts that are measured together only stages that wait are one thing to look at.
    alone = [term for term in terms if len(term.parts) == 1 or set(term.parts) == {"pp", "bubble"}]
    late = {term.parts[0]: term.change_s / run.step_time_s for term in alone}
    return RunComparison(
        run=run,
        title=planned_title(run.job),
        text=words.log_sentence(run.estimate, run.step_time_s, (len(run.steps), len(read.steps))),
        totals=tuple(_totals(run)),
        terms=terms,
        causes=found,
        advice=tuple(words.advice(run.job, run.step_time_s / run.estimate.step_time_s - 1, late, found, run.log)),
        notes=(*warnings, *_notes(run, job.workload.software, terms)),
    )


def _totals(run: LoggedRun) -> Iterator[Side]:
    """Step, rates and memory."""
    estimate, measured_s, job = run.estimate, run.step_time_s, run.job
    low_s, high_s, middle_s = estimate.step_time_low_s, estimate.step_time_high_s, estimate.step_time_s
    yield Side(name="step", predicted=middle_s, measured=measured_s, low=low_s, high=high_s)
    tokens, flop = estimate.tokens_per_s_per_device, step_flop(job.model, job.workload) / job.plan.devices
    for name, rate in (("tokens/s per device", tokens), ("FLOP/s per device", flop / middle_s)):
        low, high, measured = (rate * middle_s / time_s for time_s in (high_s, low_s, measured_s))
        yield Side(name=name, predicted=rate, measured=measured, low=low, high=high)
    if run.memory_bytes is not None:
        yield Side(name="memory allocated", predicted=run.allocated_bytes, measured=run.memory_bytes)
    powers = [step.power_w for step in run.steps if step.power_w is not None]
    if powers and estimate.energy_j is not None:
        mean_w = estimate.energy_j / job.cluster.pue / middle_s / job.plan.devices
        yield Side(name="power", predicted=mean_w, measured=statistics.median(powers))


def _terms(run: LoggedRun) -> Iterator[ReportedTerm]:
    """Parts that the run reports, those it reports together in one; then what it reports nothing of."""
    predicted, groups = dict(run.estimate.breakdown_s), run.terms()
    if not groups:
        return
    for group in groups:
        own = [name for name in predicted if name in group.parts]
        one = _reported(group.name, own, predicted, group.measured_s)
        if one.predicted_s or one.measured_s:
            yield one
    covered = {name for group in groups for name in group.parts}
    left = [name for name, time_s in predicted.items() if name not in covered and time_s]
    left_s = max(run.step_time_s - sum(group.measured_s for group in groups), 0.0)
    yield _reported("", left, predicted, left_s)


def _reported(name: str, parts: Sequence[str], predicted: Mapping[str, float], measured_s: float) -> ReportedTerm:
    """Parts of the breakdown that a run reports as one; of those, the ones that are predicted to take time."""
    priced = tuple(filter(predicted.get, parts))
    predicted_s = sum(map(predicted.__getitem__, priced))
    return ReportedTerm(name=name, parts=priced or tuple(parts), predicted_s=predicted_s, measured_s=measured_s)


def _notes(run: LoggedRun, planned_under: str, terms: Sequence[ReportedTerm]) -> Iterator[str]:
    """Where most of the difference is, and what the log says about itself that a median hides."""
    job = run.job
    if terms:
        largest = max(terms, key=lambda term: abs(term.change_s))
        yield words.mostly(largest.parts, largest.change_s)
    if job.workload.software != planned_under:
        yield words.other_software(job.workload.software, planned_under, run.read.framework)
    if not job.cluster.homogeneous:
        yield words.MIXED
    if len(run.step_times_s) >= 10:
        yield from _spread_notes(run.step_times_s, run.step_time_s)
    rates = [step.flop_per_s_per_device for step in run.steps if step.flop_per_s_per_device is not None]
    if rates:
        counted = statistics.median(rates) * run.step_time_s * job.plan.devices
        own = step_flop(job.model, job.workload)
        if abs(counted / own - 1) > OTHER_FLOP:
            yield words.other_flop(counted, own)
    if run.memory_bytes is None:
        yield words.NO_MEMORY
    if not run.read.terms:
        yield words.NO_TERMS


def _spread_notes(times_s: Sequence[float], middle_s: float) -> Iterator[str]:
    """Whether steps differ, or become slower."""
    tenths = statistics.quantiles(times_s, n=10)
    if tenths[-1] - tenths[0] > UNEVEN * middle_s:
        yield words.uneven_steps(tenths[0], tenths[-1])
    third = len(times_s) // 3
    early, late = statistics.median(times_s[:third]), statistics.median(times_s[-third:])
    if late > (1 + SLOWING) * early:
        yield words.slowing(early, late)
