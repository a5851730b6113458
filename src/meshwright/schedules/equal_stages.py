"""Named schedules with equal stages: their order, their time, what they keep alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from meshwright import schedules
from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError
from meshwright.schedules import SCHEDULES, Kind, Schedule, ScheduleTable, Timeline, Times, schedule_named, simulate
from meshwright.schedules.in_flight import live_vectors

MOST_TASKS = 300_000
"""Tasks of the largest schedule that is drawn: its list is printed whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRun:
    """One step of a schedule with equal stages, simulated."""

    schedule: Schedule
    p: int
    m: int
    v: int
    timeline: Timeline
    peak_activations: tuple[int, ...]
    """Live activations of one chunk, per worker."""

    def __repr__(self) -> str:
        return f"ScheduleRun({self.schedule.name}, p={self.p}, m={self.m}, v={self.v}, {self.timeline.makespan_s:g} s)"

    def to_dict(self) -> dict[str, object]:
        """As data."""
        timeline = self.timeline
        copies = self.schedule.worker_weight_copies(self.p, self.m, self.v)
        rows = zip(timeline.table.entries(), self.peak_activations, timeline.busy_s.tolist(), copies, strict=True)
        return {
            "schema": "meshwright.schedule/1",
            "name": self.schedule.name,
            "p": self.p,
            "m": self.m,
            "v": self.v,
            "makespan_s": timeline.makespan_s,
            "bubble_makespan": timeline.bubble_makespan,
            "bubble_span": timeline.bubble_span,
            "exact_semantics": self.schedule.exact_semantics,
            "workers": [
                {
                    "order": order,
                    "peak_activations": peak,
                    "busy_s": busy_s,
                    "weight_copies": held,
                }
                for order, peak, busy_s, held in rows
            ],
        }


def list_schedules() -> dict[str, object]:
    """All schedules by name, as data."""
    rows = [
        {
            "name": name,
            "aliases": sorted(schedule.aliases),
            "title": schedule.title,
            "exact_semantics": schedule.exact_semantics,
            "weight_copies": schedule.weight_copies,
            "traffic": schedule.traffic,
            "source": schedule.source,
        }
        for name, schedule in SCHEDULES.items()
    ]
    return {"schema": "meshwright.schedules/1", "schedules": rows}


def run_schedule(
    name: str,
    p: int,
    m: int,
    v: int | None = None,
    *,
    forward_s: float = 1.0,
    input_s: float = 1.0,
    weight_s: float = 1.0,
    recompute_s: float = 0.0,
    transfer_s: float = 0.0,
    lost: int | None = None,
    parameters: Mapping[str, int | bool | str] | None = None,
) -> ScheduleRun:
    """Build a schedule, check it and simulate it with equal stages.

    Args:
        name: the name as `list_schedules` says.
        p: workers.
        m: micro-batches per step.
        v: chunks per worker; the fewest the schedule allows, 1 or 2, if not given.
        forward_s: forward of one micro-batch through a full worker share.
        input_s: its input gradient; schedules that do not split the backward take input_s + weight_s.
        weight_s: its weight gradient.
        recompute_s: recomputation; part of the backward where the schedule has no task for it.
        transfer_s: latency of a transfer, which occupies nobody.
        lost: worker that is lost; the others run its stage too.
        parameters: the schedule's own: group, segments, extra, waves, pairs, inject, raw, reverse, warmup.

    Raises:
        UnsupportedError: an unknown name.
        InputError: the constraints of the schedule are not met, with the nearest legal values, or it has no such
            parameter.
    """
    schedule = _with_parameters(schedule_named(name), parameters or {})
    if p * m > MOST_TASKS:
        raise InputError(_too_many(schedule, p, m, v or 1), code="MW240")
    schedule = schedule.made_for(p, forward_s, input_s, weight_s, transfer_s)
    if v is None:
        v = schedule.fewest_chunks(max(p, 2), m)
    problems = list(schedule.problems(p, m, v))
    if not problems and p * m * v * schedule.sections() * 2 > MOST_TASKS:
        problems.append(_too_many(schedule, p, m, v))
    if problems:
        raise InputError(problems, code="MW240")
    seconds = {"forward_s": forward_s, "input_s": input_s, "weight_s": weight_s, "transfer_s": transfer_s}
    if lost is not None:
        return _run_without(schedule, p, m, lost, **seconds)
    return run_table(schedule, schedule.table(p, m, v), recompute_s=recompute_s, **seconds)


def _run_without(schedule: Schedule, p: int, m: int, lost: int, **seconds: float) -> ScheduleRun:
    """Simulate the workers that are left behind a loss: every stage takes what it took, one of them holds two."""
    table = schedule.failover_table(p, m, lost)
    shape = (table.p, table.v)
    times = Times(
        forward_s=np.full(shape, seconds["forward_s"]),
        backward_s=np.full(shape, seconds["input_s"] + seconds["weight_s"]),
        transfer_s=np.full(shape, seconds["transfer_s"]),
    )
    peaks = tuple(int(vectors.sum(axis=1).max()) for vectors in live_vectors(table))
    timeline = simulate(table, times)
    return ScheduleRun(schedule=schedule, p=table.p, m=m, v=1, timeline=timeline, peak_activations=peaks)


def _too_many(schedule: Schedule, p: int, m: int, v: int) -> Problem:
    parts = schedule.sections()
    segments = f" x {parts} segments" if parts > 1 else ""
    tasks = f"p {p} x m {m} x v {v}{segments} x 2 = {p * m * v * parts * 2:,} tasks"
    rule = f"at most {MOST_TASKS:,} are listed"
    return Problem(what=f"{schedule.name}: {tasks}", why=rule, fix="fewer micro-batches", field="m")


def run_table(schedule: Schedule, table: ScheduleTable, **seconds: float) -> ScheduleRun:
    """Simulate an order with equal stages; what concerns the data ranks takes no time.

    Args:
        schedule: the schedule that the table is of.
        table: the order.
        seconds: durations, as `run_schedule` takes them.
    """
    p, v = table.p, table.v // schedule.chains
    m = sum(table.micro_batches) // table.segments
    recompute_s = seconds.get("recompute_s", 0.0)
    weight_s = seconds["weight_s"]
    within = 0.0 if table.kinds & {Kind.R, Kind.X} else recompute_s
    times = schedule.equal_times(
        p,
        v,
        forward_s=seconds["forward_s"],
        backward_s=seconds["input_s"] + weight_s + within,
        transfer_s=seconds["transfer_s"],
        weight_s=weight_s,
        recompute_s=recompute_s,
    )
    free = {kind: np.zeros((p, v)) for kind in table.kinds & {Kind.UNSHARD, Kind.REDUCE}}
    times = replace(times, others_s=free) if free else times
    peaks = schedule.peak_activations(p, m, v)
    return ScheduleRun(schedule=schedule, p=p, m=m, v=v, timeline=simulate(table, times), peak_activations=peaks)


def run_schedules(
    names: Sequence[str],
    p: int,
    m: int,
    v: int | None = None,
    *,
    parameters: Mapping[str, int | bool | str] | None = None,
    **seconds: float,
) -> tuple[ScheduleRun, ...]:
    """Simulate several schedules with the same times.

    Args:
        names: the names as `list_schedules` says.
        p: workers.
        m: micro-batches per step.
        v: chunks per worker; the fewest that each schedule allows, if not given.
        parameters: settings of the schedules; each takes those it has.
        seconds: durations, as `run_schedule` takes them.

    Raises:
        UnsupportedError: an unknown name.
        InputError: the constraints of any schedule are not met, or no schedule has such a parameter.
    """
    given = parameters or {}
    runs: list[ScheduleRun] = []
    errors: list[MeshwrightError] = []
    owned: set[str] = set()
    for name in names:
        try:
            own = {one.name: given[one.name] for one in schedule_named(name).parameters() if one.name in given}
            owned.update(own)
            runs.append(run_schedule(name, p, m, v, lost=None, parameters=own, **seconds))
        except (InputError, UnsupportedError) as error:
            errors.append(error)
    problems = [problem for error in errors for problem in error.problems]
    unknown = [error for error in errors if isinstance(error, UnsupportedError)]
    if not unknown:
        problems += [
            Problem(what=f"{key} is {value}", why=f"none of {', '.join(names)} has it", fix="leave it out", field=key)
            for key, value in given.items()
            if key not in owned
        ]
    if unknown and len(unknown) == len(errors):
        raise UnsupportedError(problems, code=unknown[0].code)
    if problems:
        raise InputError(problems, code=next((e.code for e in errors if isinstance(e, InputError)), "MW240"))
    return tuple(runs)


def _with_parameters(schedule: Schedule, parameters: Mapping[str, int | bool | str]) -> Schedule:
    own = {item.name for item in fields(schedule)}
    problems = [
        Problem(
            what=f"{name} is {value}",
            why=f"{schedule.name} has no {name}; {_owners(name)}",
            fix="leave it out",
            field=name,
        )
        for name, value in parameters.items()
        if name not in own
    ]
    if problems:
        raise InputError(problems, code="MW240")
    return replace(schedule, **parameters)


def _owners(parameter: str) -> str:
    """Which schedules have a parameter."""
    names = next((one.schedules for one in schedules.parameters() if one.name == parameter), ())
    return f"{', '.join(names)} {'have' if len(names) > 1 else 'has'} it" if names else "no schedule has it"
