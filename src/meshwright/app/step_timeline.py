"""`timeline`: one step of a user's own program as it ran, beside the same step as predicted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.errors import InputError, Problem
from meshwright.formats.writing import write_file
from meshwright.report.run_timeline import run_timeline
from meshwright.report.run_trace import Lists, run_trace

if TYPE_CHECKING:
    from meshwright.runtime.moments import Moments
    from meshwright.runtime.parallelize import ParallelizedStep


@dataclass(frozen=True, kw_only=True, repr=False)
class RanTimeline:
    """One step: when every instruction of every mesh ran, and when it was predicted to."""

    name: str
    program: Lists
    measured: Moments
    """Instructions one by one, each waited for."""
    predicted: Moments
    """The same lists replayed with the seconds that each executable takes alone."""
    predicted_s: float
    """Time of a step on this machine: the later end of the instructions, and of all work shared evenly by its cores."""
    results: Any
    """What the step returned."""

    @property
    def measured_s(self) -> float:
        """Seconds of the step that was timed."""
        from meshwright.runtime.moments import end_s

        return end_s(self.measured)

    def text(self, width: int = 100) -> str:
        """Both steps on one time axis, a line for each mesh.

        Args:
            width: columns.
        """
        steps = {"predicted": (self.predicted_s, self.predicted), "measured": (self.measured_s, self.measured)}
        return run_timeline(self.program, steps, width=width)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write both for Perfetto or Chrome.

        Args:
            path: the path of the file; `.gz` compresses.
        """
        body = run_trace(
            self.name,
            self.program,
            {"predicted": self.predicted, "measured": self.measured},
            compress=os.fspath(path).endswith(".gz"),
        )
        write_file(Path(path), body)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"RanTimeline({self.name}, measured {self.measured_s:.3g} s, predicted {self.predicted_s:.3g} s)"


def timeline(step: ParallelizedStep, /, *arguments: Any, **keywords: Any) -> RanTimeline:
    """Run a step of `parallelize` once more with every instruction timed, and predict it from its executables alone.

    Args:
        step: the step as `parallelize` made it; it is compiled and warmed up by a call or two before.
        arguments: the arguments as the step takes them; the state is changed as by any call.
        keywords: the keyword arguments as the step takes them.

    Returns:
        Printed, both steps on one time axis; `save` writes them for Perfetto; `results` is what the step returned.

    Raises:
        InputError: the step is not one that `parallelize` made.
    """
    from meshwright.runtime.parallelize import ParallelizedStep
    from meshwright.runtime.training.run import predict_step

    given: object = step
    if not isinstance(given, ParallelizedStep):
        what, why = f"timeline of {type(given).__name__}", "it runs a step that parallelize made, with its arguments"
        fix = "timeline(parallelize(step), state, batch); the timeline of a plan is trace(plan)"
        raise InputError(Problem(what=what, why=why, fix=fix, field="step"), code="MW200")
    compiled = step.lower(*arguments, **keywords)
    foreseen = predict_step(compiled)
    results, measured = step.recorded(*arguments, **keywords)
    return RanTimeline(
        name=step.form.fun.__name__,
        program=compiled.program,
        measured=measured,
        predicted=foreseen.moments,
        predicted_s=foreseen.timed_s,
        results=results,
    )
