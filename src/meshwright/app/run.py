"""`run`: train a model of the zoo under a plan, here and for real, with the prediction beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from meshwright.app.answer import Answer
from meshwright.app.requests.run import RunRequest
from meshwright.app.runs.inputs import RunInputs, run_inputs
from meshwright.errors import InputError, Problem, StoppedError, UnsupportedError
from meshwright.formats.writing import check_file, write_file
from meshwright.records import Record

if TYPE_CHECKING:
    from meshwright.runtime.compiled import CompiledStep
    from meshwright.runtime.moments import Moments
    from meshwright.runtime.train import Recovery, Steps, Trained
    from meshwright.runtime.training.planned import PlannedTraining

STEPS = 10
EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Record):
    """One step that ran."""

    step: int
    """Number of the step, from 0."""
    loss: float
    seconds: float


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(Answer):
    """A training that ran."""

    inputs: RunInputs
    backend: str
    steps: tuple[StepDone, ...]
    predicted_s: float
    """Seconds of a step, from its executables run alone on this machine and its instruction lists."""
    seconds_by_kind: dict[str, float] = field(default_factory=dict)
    """Seconds by kind of instruction, each timed by itself, over all meshes; empty without a trace."""
    predicted_by_kind: dict[str, float] = field(default_factory=dict)
    recoveries: tuple[str, ...] = ()
    trace: str | None = None
    steps_at_once: int = 1
    """Steps of the first call, which compiles."""

    @property
    def first_s(self) -> float:
        """Seconds of the first step, which compiles."""
        return self.steps[0].seconds

    @property
    def step_time_s(self) -> float | None:
        """Median seconds of the steps behind the first call, which compiles; None without any."""
        later = self.steps[self.steps_at_once :]
        return median(one.seconds for one in later) if later else None

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured; None where no step after the compiling one was measured."""
        return None if self.step_time_s is None else self.predicted_s / self.step_time_s - 1.0

    def data(self) -> dict[str, object]:
        """As data: `meshwright.run/1`; what depends on the clock lies under `timing`."""
        return {
            "schema": "meshwright.run/1",
            "model": self.inputs.name,
            "plan": self.inputs.title,
            "devices": self.inputs.plan_devices,
            "backend": self.backend,
            "dtype": self.inputs.dtype,
            "seq_len": self.inputs.seq_len,
            "stage_layers": list(self.inputs.stage_layers),
            "first_step": self.steps[0].step,
            "losses": [one.loss for one in self.steps],
            "assumptions": [*self.inputs.assumptions, *self._calls()],
            "recoveries": list(self.recoveries),
            "trace": self.trace,
            "timing": {
                "first_step_s": self.first_s,
                "step_time_s": self.step_time_s,
                "predicted_step_time_s": self.predicted_s,
                "error": self.error,
                "steps_s": [one.seconds for one in self.steps],
                "measured_by_kind_s": self.seconds_by_kind,
                "predicted_by_kind_s": self.predicted_by_kind,
            },
        }

    def _calls(self) -> tuple[str, ...]:
        """What a pipeline that steps do not drain makes of them."""
        count = self.steps_at_once
        return (f"{count} steps in one call, drained behind it",) if count > 1 else ()

    def __repr__(self) -> str:
        return f"Run({self.inputs.name}, {self.inputs.title}, {len(self.steps)} steps)"


def run(
    request: RunRequest,
    *,
    on_step: Callable[[StepDone], None] = lambda done: None,
    on_recovery: Callable[[str], None] = lambda said: None,
) -> Run:
    """Train some steps under a plan on the devices of this machine.

    Args:
        request: the model, the plan, where it runs, how many steps, and what is kept of them.
        on_step: told of each step when it is done.
        on_recovery: told of each recovery from lost workers.

    Raises:
        InputError: model, plan and devices do not go together.
        UnsupportedError: what the zoo or the runtime does not have.
        LostError: a worker died or hung.
        StoppedError: interrupted; the checkpoint holds a step of this run.
    """
    options, trace, checkpoint = request.execution, request.trace, request.checkpoint
    if trace is not None:
        check_file(Path(trace))
    inputs = run_inputs(options)
    from meshwright.runtime.devices import claim_devices, jax_precision

    available = claim_devices(inputs.devices, stand_ins=options.worker_devices != "cpu")
    from meshwright.runtime.timings import this_machine
    from meshwright.runtime.train import Steps, train

    plan_again = None
    if request.elastic:
        from meshwright.app.elastic import training_on  # with search and composer

        plan_again = partial(training_on, machine=this_machine())
    done: list[StepDone] = []
    recoveries: list[Recovery] = []

    def stepped(number: int, loss: float, seconds: float, step: object) -> None:
        del done[max(0, number - (done[0].step if done else number)) :]
        done.append(StepDone(step=number, loss=loss, seconds=seconds))
        on_step(done[-1])

    def recovered(one: Recovery) -> None:
        recoveries.append(one)
        on_recovery(_recovery_text(one))

    with jax_precision(inputs.dtype):
        training = inputs.training(options)
        _check_asked(request, inputs, training)
        asked = Steps(
            count=request.steps,
            folder=None if checkpoint is None else Path(checkpoint),
            every=request.every,
            plan_again=plan_again,
        )
        try:
            now = train(training, available, asked, on_step=stepped, on_recovery=recovered)
        except KeyboardInterrupt:
            if saved := _saved(done, request):
                raise saved from None
            raise
        try:
            if not done:
                raise _all_done(request.steps, checkpoint)
            return _ran(request, inputs, training, now, done, recoveries, asked)
        finally:
            now.step.close()


def _check_asked(request: RunRequest, inputs: RunInputs, training: PlannedTraining) -> None:
    """Refuse what trainings of whole programs cannot do.

    Raises:
        UnsupportedError: there is something.
    """
    from meshwright.runtime.training.averaged import AveragedTraining
    from meshwright.runtime.training.joint import JointTraining
    from meshwright.runtime.training.ranks import RankTraining
    from meshwright.runtime.training.versioned import VersionedTraining

    if request.elastic and isinstance(training, VersionedTraining):
        why = "the plan for fewer devices may drain its pipeline, which changes the updates"
        what = f"--elastic with {inputs.title}, without a flush"
        raise UnsupportedError(what=what, why=why, fix="leave --elastic out, or 1f1b", field="elastic", code="MW411")
    if request.trace is not None and isinstance(training, (JointTraining, RankTraining)):
        why = "its step is one program of all ranks, without instructions that are timed apart"
        what = f"no trace of {inputs.title}"
        raise UnsupportedError(what=what, why=why, fix="leave --trace out", field="trace", code="MW411")
    if request.trace is not None and isinstance(training, AveragedTraining):
        why = "its replicas are steps of their own, handed to the devices one behind the other"
        what = f"no trace of {inputs.title}"
        raise UnsupportedError(what=what, why=why, fix="leave --trace out", field="trace", code="MW411")


def _ran(
    request: RunRequest,
    inputs: RunInputs,
    training: PlannedTraining,
    now: Trained,
    done: Sequence[StepDone],
    recoveries: Sequence[Recovery],
    asked: Steps,
) -> Run:
    """What ran, one more step profiled and traced where that is asked, with the prediction."""
    from meshwright.runtime.profile import record_profile, seconds_by_kind
    from meshwright.runtime.training.ranks import RankedStep

    at_once = asked.before_save(done[0].step, now.training.most_steps_at_once)
    run = partial(
        Run,
        inputs=inputs,
        backend=request.execution.backend,
        steps=tuple(done),
        steps_at_once=at_once,
        recoveries=tuple(map(_recovery_text, recoveries)),
    )
    batch, trace = now.training.batches(now.number, at_once), request.trace
    if isinstance(now.step, RankedStep):
        if request.profile is not None:
            record_profile(request.profile, lambda: now.step(now.state, batch))
        planned_s = _planned_s(training)
        return run(predicted_s=now.step.alone_s(now.state, batch) if planned_s is None else planned_s)
    compiled = now.step.lower(now.state, batch)
    predicted_s, foreseen = _foreseen(now.training, compiled)
    measured: Moments | None = None
    if trace is not None:
        _, measured = compiled.recorded(now.state, batch)
    if request.profile is not None:
        record_profile(request.profile, lambda: now.step(now.state, batch))
    if trace is not None and measured is not None:
        from meshwright.report.run_trace import run_trace

        about = f"{inputs.name}, {inputs.title}"
        body = run_trace(
            about,
            compiled.program,
            {"predicted": foreseen, "measured": measured},
            compress=os.fspath(trace).endswith(".gz"),
        )
        write_file(Path(trace), body)
    return run(
        predicted_s=predicted_s / at_once,
        seconds_by_kind=dict(seconds_by_kind(compiled.program, measured)) if measured is not None else {},
        predicted_by_kind=dict(seconds_by_kind(compiled.program, foreseen)),
        trace=None if trace is None else os.fspath(trace),
    )


def _planned_s(training: PlannedTraining) -> float | None:
    """Planned seconds of a step whose devices are emulated; None for others."""
    from meshwright.runtime.training.joint import JointTraining

    if isinstance(training, JointTraining) and training.emulate:
        return training.planned_step.estimate.step_time_s * training.emulate
    return None


def _foreseen(training: PlannedTraining, compiled: CompiledStep) -> tuple[float, Moments]:
    """Seconds of a step and when its instructions run: planned where devices are emulated, else timed one by one."""
    from meshwright.runtime.emulation import emulated_paces
    from meshwright.runtime.moments import replay_paced
    from meshwright.runtime.training.mixed import MixedTraining
    from meshwright.runtime.training.run import predict_step

    if isinstance(training, MixedTraining) and training.emulate:
        planned, scale = training.planned_step, training.emulate
        paces = emulated_paces(planned, compiled.program, scale=scale)
        return planned.estimate.step_time_s * scale, replay_paced(compiled.program, paces)
    found = predict_step(compiled)
    return found.step_time_s, found.moments


def _recovery_text(one: Recovery) -> str:
    again = one.step - one.resumed
    return (
        f"{one.why}; on with {one.training.title} on {one.devices} devices from step {one.resumed},"
        f" {again} step{'' if again == 1 else 's'} again"
    )


def _saved(done: Sequence[StepDone], request: RunRequest) -> StoppedError | None:
    """What the checkpoint holds of an interrupted run; None where this run wrote none."""
    after = (done[-1].step + 1) // request.every * request.every if done else 0
    if request.checkpoint is None or not done or after <= done[0].step:
        return None
    return StoppedError(
        Problem(
            what=f"interrupted after step {done[-1].step}",
            field="run",
            why=f"{request.checkpoint} holds the state after step {after - 1}",
            fix="the same command goes on from there",
        )
    )


def _all_done(steps: int, checkpoint: str | os.PathLike[str] | None) -> InputError:
    return InputError(
        Problem(
            what=f"the checkpoint in {checkpoint} is of step {steps} or a later one",
            why="nothing is left to run",
            fix="more --steps, or another --checkpoint",
            field="steps",
        ),
        code="MW252",
    )
