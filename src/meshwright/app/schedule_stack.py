"""Several pipeline schedules of the same size and times, held against each other on one time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from meshwright.app.schedule import ScheduleRun, run_schedule
from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError
from meshwright.schedules import schedule_named


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStack:
    """One step of each of several schedules with equal stages."""

    runs: tuple[ScheduleRun, ...]

    def __repr__(self) -> str:
        return f"ScheduleStack({', '.join(f'{r.schedule.name}: {r.timeline.makespan_s:g} s' for r in self.runs)})"

    def to_dict(self) -> dict[str, object]:
        """As data: each a `meshwright.schedule/1`."""
        return {"schema": "meshwright.schedule-stack/1", "schedules": [run.to_dict() for run in self.runs]}


def run_schedules(
    names: Sequence[str],
    p: int,
    m: int,
    v: int | None = None,
    *,
    parameters: Mapping[str, int | bool | str] | None = None,
    **seconds: float,
) -> ScheduleStack:
    """Simulate several schedules with the same times.

    Args:
        names: as `list_schedules` says.
        p: workers.
        m: micro-batches per step.
        v: chunks per worker; the fewest that each schedule allows, if not given.
        parameters: settings of the schedules; each takes those it has.
        seconds: durations, as `run_schedule` takes them.

    Raises:
        UnsupportedError: an unknown name.
        InputError: the constraints of any schedule are not met, or no schedule has such a parameter.
    """
    runs: list[ScheduleRun] = []
    errors: list[MeshwrightError] = []
    owned: set[str] = set()
    for name in names:
        try:
            has = {field.name for field in fields(schedule_named(name))}
            own = {key: value for key, value in (parameters or {}).items() if key in has}
            owned.update(own)
            runs.append(run_schedule(name, p, m, v, parameters=own, **seconds))
        except (InputError, UnsupportedError) as error:
            errors.append(error)
    problems = [problem for error in errors for problem in error.problems]
    if not any(isinstance(error, UnsupportedError) for error in errors):
        problems += [
            Problem(what=f"{key} is {value}", why=f"none of {', '.join(names)} has it", fix="leave it out", field=key)
            for key, value in (parameters or {}).items()
            if key not in owned
        ]
    wrong = [error for error in errors if isinstance(error, InputError)]
    if errors and not wrong and len(problems) == sum(len(error.problems) for error in errors):
        raise UnsupportedError(problems, code=errors[0].code)
    if problems:
        raise InputError(problems, code=wrong[0].code if wrong else "MW240")
    return ScheduleStack(runs=tuple(runs))
