"""The schedule playground: any schedule with equal stages, its times moved by hand, tasks and memory over time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError
from meshwright.estimate.timeline import activation_line
from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.report.page.views.timeline import picture_data
from meshwright.report.picture import MemoryLine, Picture, schedule_picture
from meshwright.schedules import SCHEDULES, Kind
from meshwright.schedules.equal_stages import ScheduleRun, run_schedule
from meshwright.schedules.plan_rows import schedule_of
from meshwright.shapes import Float

SIZES = {"p": 128, "m": 512, "v": 16}
"""The most of each that a page draws."""
TIMES = ("forward_s", "input_s", "weight_s", "recompute_s", "transfer_s")
MOST_TASKS = 80_000
FIRST_ALONE = True
MOST_FILE_BYTES = 200_000
"""Largest size of the schedules that a file holds; those that come later in the list are left out."""


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """What may be drawn, and the schedule of the plan as it would be with equal stages.

    Args:
        plan: the plan whose schedule and times are the first to be drawn.
        source: the answer.
    """
    return {
        "schedules": [{"name": name, "title": schedule.title} for name, schedule in SCHEDULES.items()],
        "sizes": SIZES,
        "asked": _of_plan(plan),
    }


def live_data(plan: PlanOnPage, source: PageSource, asked: Mapping[str, Any]) -> dict[str, Any]:
    """One schedule simulated.

    Args:
        plan: not looked at.
        source: not looked at.
        asked: `name`, `p`, `m`, `v` (null for the fewest), and seconds by the names of TIMES.

    Raises:
        InputError: a size or a time breaks its rule, or the schedule cannot have these sizes.
        UnsupportedError: nobody knows the schedule.
    """
    return schedule_data(asked)


def file_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any] | None:
    """Schedules of the plan's sizes, simulated with its times; None where it has no pipeline that is drawn."""
    asked = _of_plan(plan)
    if asked is _USUAL:
        return None
    asked = {**asked, "m": _few(asked)}
    held: dict[str, Any] = {}
    left = MOST_FILE_BYTES
    for name in (asked["name"], *(one for one in SCHEDULES if one != asked["name"])):
        try:
            data = schedule_data({**asked, "name": name, "v": asked["v"] if name == asked["name"] else None})
        except MeshwrightError:
            continue  # it has no such sizes
        size = len(json.dumps(data))
        if size <= left:
            held[name] = data
            left -= size
    return {
        "schedules": [{"name": name, "title": SCHEDULES[name].title} for name in held],
        "asked": asked,
        "held": held,
    }


def _few(asked: Mapping[str, Any]) -> int:
    """Micro-batches that show warm-up, steady state and cooldown of a pipeline, in whole rounds."""
    p, m = asked["p"], asked["m"]
    return int(min(m, 2 * p) // p * p or m)


def schedule_data(asked: Mapping[str, Any]) -> dict[str, Any]:
    """A schedule as the canvas of the page takes it; arguments and errors as `live_data`."""
    problems = [*_wrong_sizes(asked), *_wrong_times(asked)]
    if problems:
        raise InputError(problems, code="MW240")
    seconds: dict[str, Any] = {name: float(asked.get(name, 0.0)) for name in TIMES}
    run = run_schedule(str(asked.get("name", "")), asked["p"], asked["m"], asked.get("v"), **seconds)
    document = run.to_dict()
    return {
        **picture_data(_with_memory(schedule_picture(document, run.timeline), run)),
        "name": run.schedule.name,
        "v": run.v,
        "makespan_s": run.timeline.makespan_s,
        "bubble_span": run.timeline.bubble_span,
        "peak_activations": list(run.peak_activations),
        "weight_copies": max(run.schedule.worker_weight_copies(run.p, run.m, run.v)),
        "exact_semantics": run.schedule.exact_semantics,
        "unit": "micro-batches" if run.timeline.table.v == 1 else "chunk activations",
    }


def _with_memory(picture: Picture, run: ScheduleRun) -> Picture:
    """Activations over time, those of one chunk and micro-batch as the unit."""
    chunks = np.ones(run.timeline.table.v)
    lines = [activation_line(run.timeline, worker, chunks) for worker in range(run.p)]
    most = max((float(line.live_bytes.max(initial=0.0)) for line in lines), default=0.0)
    memory = tuple(
        MemoryLine(
            at_s=line.at_s,
            activations_bytes=line.live_bytes,
            held_bytes=0.0,
            transient_bytes=0.0,
            capacity_bytes=most,
        )
        for line in lines
    )
    return replace(picture, memory=memory)


def _of_plan(plan: PlanOnPage) -> dict[str, Any]:
    """Sizes and mean times of a plan's first pipeline, within what is drawn."""
    pipeline = plan.job.plan.pipelines[0]
    p, most = min(len(pipeline.workers), SIZES["p"]), min(pipeline.num_micro_batches, 64)
    # As it is without settings of its own; a part of the micro-batches may have to be whole rounds.
    schedule = SCHEDULES[schedule_of(pipeline.schedule).name]
    chunks = len(pipeline.workers[0].chunks) // schedule.chains
    m = next((m for m in (most, most // p * p) if m and not tuple(schedule.problems(p, m, chunks))), None)
    if p < 2 or m is None:
        return _USUAL
    try:
        timeline = plan.picture().timeline
    except UnsupportedError:
        return _USUAL
    table, lasting_s = timeline.table, timeline.end_s - timeline.start_s
    if lasting_s.sum():
        # Tasks that run together both last as long as the pair.
        lasting_s = lasting_s * (timeline.busy_s.sum() / lasting_s.sum())

    def tasks_s(kind: Kind) -> Float[np.ndarray, " tasks"]:
        return np.asarray(lasting_s[(table.kind == kind) & (table.worker < p)])

    each = p * pipeline.num_micro_batches
    backward_s = sum(float(tasks_s(kind).sum()) for kind in (Kind.B, Kind.I, Kind.W)) / each
    split = [tasks_s(kind) for kind in (Kind.I, Kind.W)]
    share = float(split[1].mean() / (split[0].mean() + split[1].mean())) if len(split[0]) and len(split[1]) else 0.5
    return {
        "name": schedule.name,
        "p": p,
        "m": m,
        "v": chunks,
        "forward_s": float(tasks_s(Kind.F).sum()) / each,
        "input_s": backward_s * (1.0 - share),
        "weight_s": backward_s * share,
    } | _NONE


_NONE = {"recompute_s": 0.0, "transfer_s": 0.0}
_USUAL = {"name": "1f1b", "p": 4, "m": 8, "v": None, "forward_s": 1.0, "input_s": 1.0, "weight_s": 1.0} | _NONE


def _wrong_sizes(asked: Mapping[str, Any]) -> list[Problem]:
    found = []
    for name, most in SIZES.items():
        value = asked.get(name)
        if name == "v" and value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            why = f"a page draws 1 to {most}"
            found.append(Problem(what=f"{name} = {value!r}"[:60], why=why, fix=f"for example {name} 4", field=name))
    if not found and (count := asked["p"] * asked["m"] * (asked.get("v") or 1) * 2) > MOST_TASKS:
        why = f"a page moves at most {MOST_TASKS:,}"
        found.append(Problem(what=f"{count:,} tasks", why=why, fix="fewer micro-batches", field="m"))
    return found


def _wrong_times(asked: Mapping[str, Any]) -> list[Problem]:
    found = []
    for name in TIMES:
        value = asked.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e6:
            why = "seconds from 0 to a million"
            found.append(Problem(what=f"{name} = {value!r}"[:60], why=why, fix="for example 1", field=name))
    return found
