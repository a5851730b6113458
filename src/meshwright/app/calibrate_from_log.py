"""`calibrate --from-log`: one measured step of the user's own machine, and every prediction moves by what it says."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.calibrate.file import write_calibration
from meshwright.calibrate.one_step import NOISE, Learned, StepOn, doubt_of, learn
from meshwright.errors import InputError, Problem
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.pricer import PlanPricer
from meshwright.estimate.result import StepEstimate
from meshwright.fields.job import JobFields
from meshwright.formats.logs import LoggedStep, RunLog, median, read_log, steady
from meshwright.library.calibration import SCHEMA
from meshwright.library.calibration import calibration as calibration_of
from meshwright.planning.plan_source import PlanLike, PlanQuestion, plan_question
from meshwright.specs.calibration import Z90, Calibration, MeasuredPlan
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow
from meshwright.specs.software import DEFAULT_SOFTWARE
from meshwright.units import seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

SOFTWARE = {
    "megatron": "megatron-core",
    "nemo": "megatron-core",
    "torchtitan": "pytorch-compiled",
    "deepspeed": "pytorch-eager",
    "transformers": "pytorch-eager",
    "csv": DEFAULT_SOFTWARE,
}
"""The library's numbers that a log's framework runs under."""
AGREES = 0.10
"""How far the time and the rate of one line may be apart: they are printed rounded and averaged differently."""
FURTHEST = 3.0
"""A step that takes so many times the prediction, or so much less, is of another run."""


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
        }

    def __rich__(self) -> RenderableType:
        from rich.text import Text

        from meshwright.report.words.calibration import learned_lines

        memory = self.predicted_memory_bytes, self.measured_memory_bytes
        lines = learned_lines(self.learned, self.measured_s, (self.steps_used, self.steps_read), memory)
        return Text("\n".join(lines))


def calibrate_from_log(
    log: str | Path,
    plan: PlanLike,
    asked: JobFields,
    out_json: str | Path | None = None,
    *,
    framework: str | None = None,
) -> FromLog:
    """Compare a plan's measured step with its prediction and move the numbers behind both.

    Args:
        log: of the run, as its framework printed it, or a CSV of steps.
        plan: that ran.
        asked: model, cluster and workload; length and batch are the log's by default. Its calibration is what the
            log's step moves, and what the new file builds on.
        out_json: where the calibration goes; None writes nothing.
        framework: that wrote the log; recognised by its lines by default.

    Returns:
        The calibration, and what was compared.

    Raises:
        InputError: no step is found, the log contradicts itself or is of another model, plan or batch, or a step is
            too far from the prediction to be of this plan; all problems together, nothing is written.
        UnsupportedError: an unknown name.
    """
    read = read_log(log, framework)
    if asked.seq_len is None:
        asked = replace(asked, seq_len=_stated(read, "seq_len"))
    if asked.global_batch is None:
        asked = replace(asked, global_batch=_batch(read, plan))
    question = plan_question(plan, asked)
    job, row = question.job, _row(question)
    known = calibration_of(job.workload.calibration)
    job = replace(job, workload=replace(job.workload, software=SOFTWARE[read.framework]))
    if problems := [*_other_run(read, job, row), *_disagreeing(read, job)]:
        raise InputError(problems[:10], code="MW216")
    chosen = steady(read.steps)
    measured_s = median([found for step in chosen if (found := _seconds(step, job)) is not None])
    estimate = estimate_plan(job.plan, job.model, job.cluster, job.workload)
    _check_near(measured_s, estimate)
    learned = learn(_step_on(job, estimate, known), measured_s, known)
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
    record = _record(kept, learned, Path(log).name, known)
    if out_json is not None:
        write_calibration(record, out_json)
    memory = [step.memory_bytes for step in chosen if step.memory_bytes is not None]
    return FromLog(
        record=record,
        learned=learned,
        measured_s=measured_s,
        steps_used=len(chosen),
        steps_read=len(read.steps),
        predicted_memory_bytes=_allocated(estimate),
        measured_memory_bytes=max(memory, default=None),
    )


def _step_on(job: Job, estimate: StepEstimate, known: Calibration) -> StepOn:
    def time_s(hardware: Hardware) -> float:
        pricer = PlanPricer(job.model, job.cluster, job.workload, hardware, transfers_apart=False)
        return pricer.step_time_s(job.plan)

    doubt = doubt_of(estimate, job.model, known)
    return StepOn(group=job.cluster.groups[0], workload=job.workload, time_s=time_s, doubt=doubt)


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
        "ranges": None if known.ranges is None else asdict(known.ranges),
    }


def _row(question: PlanQuestion) -> PlanRow:
    if question.row is not None:
        return question.row
    problem = Problem(
        what="this plan has no one-line form",
        why="the calibration keeps the measured plan by it",
        fix="measure a plan whose stages and layers are alike",
        field="plan",
    )
    raise InputError(problem, code="MW232")


def _stated(read: RunLog, name: str) -> int | None:
    found = dict(read.stated).get(name)
    return None if found is None else int(found.value)


def _batch(read: RunLog, plan: PlanLike) -> int | None:
    """Of the log, unless the plan says its own."""
    if not isinstance(plan, str) or "gbs" in plan or plan.partition("#")[0].endswith(".json"):
        return None
    printed = next((step.global_batch for step in read.steps if step.global_batch is not None), None)
    return printed if printed is not None else _stated(read, "global_batch")


def _seconds(step: LoggedStep, job: Job) -> float | None:
    return step.seconds(job.workload.tokens_per_step, job.workload.seq_len, job.plan.devices)


def _other_run(read: RunLog, job: Job, row: PlanRow) -> Iterator[Problem]:
    """What the log says about its model and plan that is not so of the ones given."""
    own = {
        "num_layers": job.model.num_layers,
        "hidden": job.model.hidden,
        "seq_len": job.workload.seq_len,
        "global_batch": job.workload.global_batch,
        "devices": job.plan.devices,
    } | {name: getattr(row, name) for name in ("tp", "pp", "cp", "ep", "dp", "mbs")}
    for name, found in read.stated:
        if name in own and found.value != own[name]:
            yield Problem(
                what=f"line {found.line}: the log says {name} {found.value:g}, the plan {own[name]}",
                why=f"a step of another run says nothing about {job.model.name} under {row.format()}",
                fix="give the model, plan and batch that the log is of",
                field=name,
            )
    for step in read.steps:
        if step.global_batch is not None and step.global_batch != job.workload.global_batch:
            yield Problem(
                what=f"line {step.line}: a global batch of {step.global_batch}, the plan's is "
                f"{job.workload.global_batch}",
                why="steps of different batches are different work",
                fix=f"give --gbs {step.global_batch}",
                field="global_batch",
            )
            break


def _disagreeing(read: RunLog, job: Job) -> Iterator[Problem]:
    """Steps whose rate and time do not belong together."""
    for step in read.steps:
        rated = replace(step, step_time_s=None)
        by_rate = _seconds(rated, job)
        if step.step_time_s is None or by_rate is None or abs(by_rate / step.step_time_s - 1) <= AGREES:
            continue
        yield Problem(
            what=f"line {step.line}: {step.step_time_s:.4g} s a step, but {by_rate:.4g} s by its rate",
            why=f"a step of {job.workload.tokens_per_step:,} tokens on {job.plan.devices} devices has one time",
            fix="check units, sequence length, batch and number of devices",
            field="step_time",
        )


def _check_near(measured_s: float, estimate: StepEstimate) -> None:
    ratio = measured_s / estimate.step_time_s
    if estimate.mfu > ratio:
        raise InputError(
            Problem(
                what=f"the log's step of {seconds(measured_s)} is {estimate.mfu / ratio:.0%} of the devices' peak",
                why="no device computes more than its peak",
                fix="check model, --dtype, --seq, --gbs and the number of devices against the log",
                field="step_time",
            ),
            code="MW216",
        )
    if 1 / FURTHEST <= ratio <= FURTHEST:
        return
    raise InputError(
        Problem(
            what=f"the log's step takes {seconds(measured_s)}, this plan's prediction is "
            f"{seconds(estimate.step_time_s)}",
            why=f"{max(ratio, 1 / ratio):.1f} times apart is another run, batch or unit, not another machine",
            fix="check model, plan, devices, --seq and --gbs against the log",
            field="step_time",
        ),
        code="MW216",
    )


def _allocated(estimate: StepEstimate) -> float:
    """What a framework's allocator would report of the fullest stage."""

    def allocated(parts: dict[str, float], peak: float) -> float:
        return peak - parts["comm_buffers"] - parts["overhead"]

    return max(allocated(dict(stage.memory_bytes), stage.peak_memory_bytes) for stage in estimate.stages)
