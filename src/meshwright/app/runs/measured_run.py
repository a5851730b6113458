"""A plan's run as its log reports it, beside the prediction for the very same job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.calibrate.observed import MeasuredPart, StepOn
from meshwright.calibrate.one_step import doubt_of
from meshwright.errors import InputError, Problem
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.pricer import PlanPricer
from meshwright.estimate.result import StepEstimate
from meshwright.fields.job import JobFields
from meshwright.formats.logs import LoggedStep, RunLog, median, steady
from meshwright.library.calibration import calibration as calibration_of
from meshwright.specs.calibration import Calibration
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow
from meshwright.specs.software import DEFAULT_SOFTWARE
from meshwright.units import seconds

SOFTWARE = {
    "megatron": "megatron-core",
    "nemo": "megatron-core",
    "torchtitan": "torchtitan",
    "deepspeed": "pytorch-eager",
    "transformers": "pytorch-eager-no-sync",
    "csv": DEFAULT_SOFTWARE,
}
"""The library's numbers that a log's framework runs under; a trace of a profiler says none, and the job's own stand."""
AGREES = 0.10
"""How far the time and the rate of one line may be apart: they are printed rounded and averaged differently."""
MOST_REPORTED = 1.05
"""Sum of reported parts over the step: timers of ranks differ by so much."""
FURTHEST = 3.0
"""A step that takes so many times the prediction, or so much less, is of another run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """Steady steps of a log, and what is predicted for their job."""

    log: str
    """Name of the file."""
    read: RunLog
    job: Job
    """The job under the framework that wrote the log."""
    estimate: StepEstimate
    known: Calibration
    """What it is predicted by."""
    steps: tuple[LoggedStep, ...]
    """The steps that are used."""

    @property
    def step_times_s(self) -> list[float]:
        """Seconds of the steps that are used, in their order."""
        return [found for step in self.steps if (found := seconds_of(step, self.job)) is not None]

    @property
    def step_time_s(self) -> float:
        """Median of them."""
        return median(self.step_times_s)

    @property
    def memory_bytes(self) -> float | None:
        """Peak that the log reports; None where it does not."""
        return max((step.memory_bytes for step in self.steps if step.memory_bytes is not None), default=None)

    @property
    def allocated_bytes(self) -> float:
        """What a framework's allocator would report of the fullest stage, as predicted."""

        def allocated(parts: dict[str, float], peak: float) -> float:
            return peak - parts["comm_buffers"] - parts["overhead"]

        return max(allocated(dict(stage.memory_bytes), stage.peak_memory_bytes) for stage in self.estimate.stages)

    def step_on(self) -> StepOn:
        """The step, to be timed under any numbers."""
        job = self.job

        def time_s(hardware: Hardware) -> float:
            pricer = PlanPricer(job.model, job.cluster, job.workload, hardware, transfers_apart=False)
            return pricer.step_time_s(job.plan)

        def parts_s(hardware: Hardware) -> dict[str, float]:
            step = PlanPricer(job.model, job.cluster, job.workload, hardware).run(job.plan).step
            return {name: float(values[0]) for name, values in step.breakdown_s.items()}

        return StepOn(
            group=job.cluster.groups[0],
            workload=job.workload,
            time_s=time_s,
            parts_s=parts_s,
            doubt=doubt_of(self.estimate, job.model, self.known),
        )

    def terms(self) -> tuple[MeasuredPart, ...]:
        """What the run reports of its step, parts that it reports together in one; the first names each."""
        groups: list[MeasuredPart] = []
        for term in self.read.terms:
            one = MeasuredPart(name=term.name, parts=term.parts, measured_s=term.seconds)
            for group in [group for group in groups if set(group.parts) & set(one.parts)]:
                groups.remove(group)
                one = group.joined(one)
            groups.append(one)
        reported_s, step_s = sum(group.measured_s for group in groups), self.step_time_s
        if reported_s > MOST_REPORTED * step_s:
            raise InputError(
                what=f"the parts that the log reports sum to {reported_s:.4g} s, its step takes {step_s:.4g} s",
                why="the parts of a step cannot take longer than the step",
                fix="check the units of the parts, or leave out parts that overlap with others",
                field="step_time",
                code="MW216",
            )
        return tuple(groups)


def measured_run(log: str | Path, read: RunLog, job: Job, row: PlanRow | None) -> LoggedRun:
    """The steps of a log of a job, and the prediction for them.

    Args:
        log: the log where it was read.
        read: its content.
        job: the job that ran.
        row: its plan as one row of degrees; None where it needs more.

    Raises:
        InputError: the log contradicts itself or is of another model, plan or batch, all problems together; or no
            device is as quick as it says.
    """
    known = calibration_of(job.workload.calibration)
    planned = job.workload.software
    driver = SOFTWARE.get(read.framework, planned)
    if planned.partition("@")[0] != driver:  # else its generation is the plan's own
        job = replace(job, workload=replace(job.workload, software=driver))
    if problems := [*_other_run(read, job, row), *_disagreeing(read, job)]:
        raise InputError(problems[:10], code="MW216")
    found = LoggedRun(
        log=Path(log).name,
        read=read,
        job=job,
        estimate=estimate_plan(job.plan, job.model, job.cluster, job.workload),
        known=known,
        steps=steady(read.steps),
    )
    _check_possible(found)
    return found


def check_near(run: LoggedRun) -> None:
    """Refuse steps that are too far from the prediction to teach anything about the machine.

    Raises:
        InputError: they are.
    """
    measured_s, predicted_s = run.step_time_s, run.estimate.step_time_s
    ratio = measured_s / predicted_s
    if 1 / FURTHEST <= ratio <= FURTHEST:
        return
    raise InputError(
        what=f"the log's step takes {seconds(measured_s)}, this plan's prediction is {seconds(predicted_s)}",
        why=f"{max(ratio, 1 / ratio):.1f} times apart is another run, batch or unit, not another machine",
        fix="check model, plan, devices, --seq and --gbs against the log",
        field="step_time",
        code="MW216",
    )


def with_log(asked: JobFields, read: RunLog, plan: object) -> JobFields:
    """A question with the length and the batch that the log states, where neither it nor the plan says them.

    Args:
        asked: model, cluster and workload.
        read: the log.
        plan: one line, or what carries its own.
    """
    if not isinstance(plan, str) or plan.partition("#")[0].endswith(".json") or plan.lstrip()[:1] == "{":
        return asked
    if asked.seq_len is None:
        asked = replace(asked, seq_len=_stated(read, "seq_len"))
    if asked.global_batch is None and asked.tokens_per_step is None and "gbs" not in plan:
        printed = next((step.global_batch for step in read.steps if step.global_batch is not None), None)
        asked = replace(asked, global_batch=printed if printed is not None else _stated(read, "global_batch"))
    return asked


def _stated(read: RunLog, name: str) -> int | None:
    """A whole number that the run says about itself; None where it does not."""
    found = dict(read.stated).get(name)
    return None if found is None else int(found.value)


def seconds_of(step: LoggedStep, job: Job) -> float | None:
    """Time of a step of a job."""
    return step.seconds(job.workload.tokens_per_step, job.workload.seq_len, job.plan.devices)


def _other_run(read: RunLog, job: Job, row: PlanRow | None) -> Iterator[Problem]:
    """What the log says about its model and plan that is not so of the ones given."""
    own = {
        "num_layers": job.model.num_layers,
        "hidden": job.model.hidden,
        "seq_len": job.workload.seq_len,
        "global_batch": job.workload.global_batch,
        "devices": job.plan.devices,
    }
    if row is not None:
        own |= {name: getattr(row, name) for name in ("tp", "pp", "cp", "ep", "dp", "mbs")}
    of = "this plan" if row is None else row.format()
    for name, found in read.stated:
        if name in own and found.value != own[name]:
            yield Problem(
                what=f"line {found.line}: the log says {name} {found.value:g}, the plan {own[name]}",
                why=f"the log must be of a run of {job.model.name} under {of}",
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
        by_rate = seconds_of(rated, job)
        if step.step_time_s is None or by_rate is None or abs(by_rate / step.step_time_s - 1) <= AGREES:
            continue
        yield Problem(
            what=f"line {step.line}: {step.step_time_s:.4g} s a step, but {by_rate:.4g} s from its throughput",
            why=f"both must agree for a step of {job.workload.tokens_per_step:,} tokens on {job.plan.devices} devices",
            fix="check units, sequence length, batch and number of devices",
            field="step_time",
        )


def _check_possible(run: LoggedRun) -> None:
    measured_s, estimate = run.step_time_s, run.estimate
    ratio = measured_s / estimate.step_time_s
    if estimate.mfu > ratio:
        raise InputError(
            what=f"the log's step of {seconds(measured_s)} is {estimate.mfu / ratio:.0%} of the devices' peak",
            why="no device computes more than its peak",
            fix="check model, --dtype, --seq, --gbs and the number of devices against the log",
            field="step_time",
            code="MW216",
        )
