"""`run`: train a model of the zoo under a plan, here and for real, with the prediction beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from meshwright.app.run_inputs import RunInputs, run_inputs
from meshwright.errors import InputError, Problem
from meshwright.formats.writing import check_file, write_file
from meshwright.specs.model import ModelSpec

if TYPE_CHECKING:
    from rich.console import RenderableType

    from meshwright.runtime.moments import Moments
    from meshwright.runtime.train import Recovery

STEPS = 10
EVERY = 10
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """One step that ran."""

    step: int
    """From 0."""
    loss: float
    seconds: float

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return {"step": self.step, "loss": self.loss, "seconds": self.seconds}


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """A training that ran."""

    inputs: RunInputs
    backend: str
    steps: tuple[StepDone, ...]
    predicted_s: float
    """Seconds of a step, from its executables run alone on this machine and its instruction lists."""
    seconds_by_kind: dict[str, float] = field(default_factory=dict)
    """Of a step that was timed instruction by instruction, over all meshes; empty without a trace."""
    predicted_by_kind: dict[str, float] = field(default_factory=dict)
    recoveries: tuple[str, ...] = ()
    trace: str | None = None

    @property
    def first_s(self) -> float:
        """Seconds of the first step, which compiles."""
        return self.steps[0].seconds

    @property
    def step_time_s(self) -> float:
        """Median seconds of the steps behind the first; of the first where there is no other."""
        return median(one.seconds for one in self.steps[1:] or self.steps)

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.step_time_s - 1.0

    def to_dict(self) -> dict[str, object]:
        """As data: `meshwright.run/1`; what depends on the clock lies under `timing`."""
        return {
            "schema": "meshwright.run/1",
            "model": self.inputs.name,
            "plan": self.inputs.row.format(),
            "devices": self.inputs.row.devices,
            "backend": self.backend,
            "dtype": self.inputs.dtype,
            "seq_len": self.inputs.seq_len,
            "stage_layers": list(self.inputs.stage_layers),
            "first_step": self.steps[0].step,
            "losses": [one.loss for one in self.steps],
            "assumptions": list(self.inputs.assumptions),
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

    def __repr__(self) -> str:
        return f"Run({self.inputs.name}, {self.inputs.row.format()}, {len(self.steps)} steps)"

    def __rich__(self) -> RenderableType:
        from meshwright.report.run_table import render_run

        return render_run(self.to_dict())


def _wrong(
    steps: int, every: int, elastic: bool, checkpoint: str | os.PathLike[str] | None, backend: str
) -> Iterator[Problem]:
    for name, count in (("steps", steps), ("every", every)):
        if count < 1:
            yield Problem(what=f"{name} = {count}", why="it counts from 1", fix=f"--{name} 10", field=name)
    if elastic and checkpoint is None:
        yield Problem(what="an elastic run without checkpoints", why="it goes on from the last one",
                      fix="--checkpoint DIR", field="checkpoint")  # fmt: skip
    if elastic and backend == "local":
        yield Problem(what="an elastic run in this process", why="its meshes live and die together",
                      fix="--backend processes or --backend ray", field="backend")  # fmt: skip


def run(
    model: str | os.PathLike[str] | ModelSpec | None,
    plan: str,
    *,
    steps: int = STEPS,
    devices: int | None = None,
    backend: str = "local",
    ray: str | None = None,
    layers: int | None = None,
    hidden: int | None = None,
    vocab: int | None = None,
    seq_len: int | None = None,
    global_batch: int | None = None,
    dtype: str = "fp32",
    seed: int = 0,
    trace: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = EVERY,
    elastic: bool = False,
    timeout_s: float = TIMEOUT_S,
    on_step: Callable[[StepDone], None] = lambda done: None,
    on_recovery: Callable[[str], None] = lambda said: None,
) -> Run:
    """Train some steps under a plan on the devices of this machine.

    Args:
        model, plan, devices, layers, hidden, vocab, seq_len, global_batch, dtype: as `run_inputs` takes them.
        steps: to run.
        backend: "local", "processes" or "ray".
        ray: address of a Ray cluster.
        seed: of weights, data and dropout.
        trace: where to write the timeline of one more step beside the predicted one; gzipped if it ends in .gz.
        checkpoint: folder of the last checkpoint; a run goes on from the one that is there.
        every: steps from one checkpoint to the next.
        elastic: where a worker in another process is lost, plan again for what is left and go on from the checkpoint.
        timeout_s: in which a worker in another process goes on to its next instruction.
        on_step: told of each step when it is done.
        on_recovery: told of each worker that was lost.

    Raises:
        InputError: model, plan and devices do not go together.
        UnsupportedError: what the zoo or the runtime does not have.
        LostError: a worker died or hung.
    """
    if trace is not None:
        check_file(Path(trace))
    problems = list(_wrong(steps, every, elastic, checkpoint, backend))
    if problems:
        raise InputError(problems, code="MW252")
    folder = None if checkpoint is None else Path(checkpoint)
    inputs = run_inputs(
        model, plan, devices=devices, layers=layers, hidden=hidden, vocab=vocab, seq_len=seq_len,
        global_batch=global_batch, dtype=dtype,
    )  # fmt: skip
    from meshwright.runtime.devices import claim_devices, precision

    available = claim_devices(inputs.devices)
    from meshwright.runtime.profile import seconds_by_kind
    from meshwright.runtime.train import Steps, train
    from meshwright.runtime.training_run import predict_step

    done: list[StepDone] = []
    recoveries: list[Recovery] = []

    def stepped(number: int, loss: float, seconds: float, step: object) -> None:
        del done[max(0, number - (done[0].step if done else number)) :]
        done.append(StepDone(step=number, loss=loss, seconds=seconds))
        on_step(done[-1])

    def recovered(one: Recovery) -> None:
        recoveries.append(one)
        on_recovery(_told(one))

    with precision(inputs.dtype):
        training = inputs.training(seed=seed, backend=backend, ray=ray, timeout_s=timeout_s)
        asked = Steps(count=steps, folder=folder, every=every, elastic=elastic)
        now = train(training, available, asked, on_step=stepped, on_recovery=recovered)
        try:
            if not done:
                raise _all_done(steps, checkpoint)
            batch = now.training.batch(now.number)
            compiled = now.step.lower(now.state, batch)
            predicted = predict_step(compiled)
            measured: Moments | None = None
            if trace is not None:
                _, measured = compiled.recorded(now.state, batch)
        finally:
            now.step.close()
    if trace is not None and measured is not None:
        from meshwright.report.run_trace import run_trace

        about = f"{inputs.name}, {inputs.row.format()}"
        body = run_trace(about, compiled.program, {"predicted": predicted.moments, "measured": measured},
                         compress=os.fspath(trace).endswith(".gz"))  # fmt: skip
        write_file(Path(trace), body)
    return Run(
        inputs=inputs,
        backend=backend,
        steps=tuple(done),
        predicted_s=predicted.step_time_s,
        seconds_by_kind=dict(seconds_by_kind(compiled.program, measured)) if measured is not None else {},
        predicted_by_kind=dict(seconds_by_kind(compiled.program, predicted.moments)),
        recoveries=tuple(_told(one) for one in recoveries),
        trace=None if trace is None else os.fspath(trace),
    )


def _told(one: Recovery) -> str:
    again = one.step - one.resumed
    return (
        f"{one.why}; on with {one.plan.format()} on {one.devices} devices from step {one.resumed},"
        f" {again} step{'' if again == 1 else 's'} again"
    )


def _all_done(steps: int, checkpoint: str | os.PathLike[str] | None) -> InputError:
    return InputError(
        Problem(what=f"the checkpoint in {checkpoint} is of step {steps} or a later one", why="nothing is left to run",
                fix="more --steps, or another --checkpoint", field="steps"), code="MW252")  # fmt: skip
