"""`calibrate --from-log`: one measured step of the user's own machine, and every prediction moves by what it says."""

from __future__ import annotations

import datetime
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.app.runs.measured_run import check_near, measured_run, with_log
from meshwright.app.runs.ranked_again import RankedAgain, ranked_again
from meshwright.calibrate.coverage import ranges_record
from meshwright.calibrate.file import write_calibration
from meshwright.calibrate.observed import NOISE
from meshwright.calibrate.one_step import Learned, learn
from meshwright.errors import InputError, Problem
from meshwright.fields.job import JobFields
from meshwright.formats.logs import read_log
from meshwright.library.calibration import SCHEMA
from meshwright.planning.plan_question import PlanQuestion
from meshwright.planning.plan_source import PlanLike, plan_question
from meshwright.records import plain
from meshwright.specs.calibration import Z90, Calibration, MeasuredPlan
from meshwright.specs.row import PlanRow

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True, kw_only=True)
class FromLog:
    """What one log states."""

    record: dict[str, Any]
    """The content of the file."""
    learned: Learned
    measured_s: float
    steps_used: int
    steps_read: int
    predicted_memory_bytes: float
    measured_memory_bytes: float | None
    ranking: tuple[RankedAgain, ...] = ()
    """The best plans of before and after; empty where nobody asked, or devices are of several kinds."""

    def to_dict(self) -> dict[str, object]:
        """As data: the file's content and what was compared."""
        return {
            **self.record,
            "compared": {
                "measured_s": self.measured_s,
                "predicted_before_s": self.learned.predicted_s,
                "predicted_for_others_like_it_s": self.learned.moved_s,
                "steps_read": self.steps_read,
                "steps_used": self.steps_used,
                "measured_memory_bytes": self.measured_memory_bytes,
                "predicted_memory_bytes": self.predicted_memory_bytes,
                "not_told_apart": list(self.learned.not_told_apart),
            },
            **({"plans": plain(self.ranking)} if self.ranking else {}),
        }

    def __rich__(self) -> RenderableType:
        from rich.text import Text

        from meshwright.report.words.calibration import learned_lines

        memory = self.predicted_memory_bytes, self.measured_memory_bytes
        lines = learned_lines(self.learned, self.measured_s, (self.steps_used, self.steps_read), memory)
        said = Text("\n".join(lines))
        if not self.ranking:
            return said
        from rich.console import Group

        from meshwright.report.calibration_table import ranking_table

        return Group(said, *ranking_table(plain(self.ranking)))


def calibrate_from_log(
    log: str | Path,
    plan: PlanLike,
    asked: JobFields,
    out_json: str | Path | None = None,
    *,
    framework: str | None = None,
    ranked: bool = True,
) -> FromLog:
    """Compare a plan's measured step with its prediction and move the numbers behind both.

    Args:
        log: the log of the run, as its framework printed it, or a CSV of steps.
        plan: the plan that ran.
        asked: model, cluster and workload; length and batch are the log's by default. Its calibration is what the
            log's step moves, and what the new file builds on.
        out_json: the JSON file where the calibration goes; None writes nothing.
        framework: the framework that wrote the log; recognised by its lines by default.
        ranked: whether to plan the job, too, under the numbers of before and of after.

    Returns:
        The calibration, and what was compared.

    Raises:
        InputError: no step is found, the log contradicts itself or is of another model, plan or batch, or a step is
            too far from the prediction to be of this plan; all problems together, nothing is written.
        UnsupportedError: an unknown name.
    """
    read = read_log(log, framework)
    question = plan_question(plan, with_log(asked, read, plan))
    row = _row(question)
    run = measured_run(log, read, question.job, row)
    check_near(run)
    job, known, measured_s = run.job, run.known, run.step_time_s
    learned = learn(run.step_on(), measured_s, known, run.terms())
    kept = MeasuredPlan(
        model=job.model.name,
        plan=row.format(),
        device=job.cluster.groups[0].device.name,
        devices=job.plan.devices,
        seq_len=job.workload.seq_len,
        dtype=job.workload.precision.name,
        framework=job.workload.software,
        measured_s=measured_s,
        own=learned.own,
        low=math.exp(-Z90 * NOISE),
        high=math.exp(Z90 * NOISE),
    )
    record = _record(kept, learned, run.log, known)
    if out_json is not None:
        write_calibration(record, out_json)
    inputs = replace(question.inputs, cluster=job.cluster, workload=job.workload)
    plans = ranked and job.cluster.homogeneous
    return FromLog(
        ranking=ranked_again(inputs, known, record, job.plan, row.format()) if plans else (),
        record=record,
        learned=learned,
        measured_s=measured_s,
        steps_used=len(run.steps),
        steps_read=len(read.steps),
        predicted_memory_bytes=run.allocated_bytes,
        measured_memory_bytes=run.memory_bytes,
    )


def _record(kept: MeasuredPlan, learned: Learned, log: str, known: Calibration) -> dict[str, Any]:
    """The calibration so far with what was learned on top, and the run it comes from."""
    numbers = dict(known.numbers) | dict(learned.numbers)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    before = f" on top of {known.source} ({known.date})" if known.source else ""
    return {
        "schema": SCHEMA,
        "date": today,
        "source": f"one measured step ({log}){before}",
        "run": {"log": log, **asdict(kept)},
        "numbers": {name: asdict(number) for name, number in numbers.items()},
        "spread": dict(known.spread),
        "ranges": None if known.ranges is None else ranges_record(known.ranges),
    }


def _row(question: PlanQuestion) -> PlanRow:
    if question.row is not None:
        return question.row
    problem = Problem(
        what="this plan has no one-line form",
        why="the calibration file stores the measured plan in that form",
        fix="measure a plan whose stages and layers are equal",
        field="plan",
    )
    raise InputError(problem, code="MW232")
