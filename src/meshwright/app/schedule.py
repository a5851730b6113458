"""`schedule`: one pipeline schedule, several on one time axis, the fastest order, a file of one, or the list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from meshwright.app.answer import Answer
from meshwright.report.schedule_best import best_schedule_page
from meshwright.report.schedule_drawing import schedule_list, schedule_page, stack_page
from meshwright.schedules.best_of_times import run_best_schedule
from meshwright.schedules.csv_file import read_schedule_csv, write_schedule_csv
from meshwright.schedules.equal_stages import ScheduleRun, list_schedules, run_schedule, run_schedules

if TYPE_CHECKING:
    from rich.console import RenderableType

    from meshwright.app.requests.schedule import ScheduleRequest
    from meshwright.schedules import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSchedules(Answer):
    """Schedules simulated, ready to be drawn."""

    document: dict[str, Any]
    drawing: Callable[[dict[str, Any]], RenderableType]
    runs: tuple[tuple[dict[str, Any], Timeline], ...] = ()
    """What a figure shows: one schedule a line."""
    run: ScheduleRun | None = None
    """The schedule, where it is one."""

    def __repr__(self) -> str:
        return f"DrawnSchedules({self.document['schema']})"

    def __rich__(self) -> RenderableType:
        return self.drawing(self.document)

    def data(self) -> dict[str, Any]:
        """As data: `meshwright.schedule/1` or one of its neighbours."""
        return self.document

    def svg(self, window: tuple[float, float] | None = None) -> str:
        """All schedules as one figure.

        Args:
            window: shares of the time between which they are drawn; None for all of it.
        """
        from meshwright.report.picture import schedule_picture
        from meshwright.report.timeline_svg import WHOLE, timeline_svg

        return timeline_svg([schedule_picture(document, timeline) for document, timeline in self.runs], window or WHOLE)

    def write_csv(self, path: str) -> None:
        """Write the order as PyTorch loads it."""
        assert self.run is not None
        write_schedule_csv(self.run.schedule, self.run.timeline.table, path)


def draw_schedule(request: ScheduleRequest) -> DrawnSchedules:
    """Build, check and simulate what a request names.

    Raises:
        UnsupportedError: an unknown name.
        InputError: the constraints of a schedule are not met, or a file cannot be used.
        InfeasibleError: no order fits the memory.
    """
    if request.listed:
        return DrawnSchedules(document=list_schedules(), drawing=lambda found: schedule_list(found["schedules"]))
    if request.source is not None:
        seconds = {name: value for name, value in request.seconds.items() if name != "recompute_s"}
        return _one(read_schedule_csv(request.source, **seconds))
    if request.best:
        return _best(request)
    p, m = request.p or 1, request.m or 1
    own = request.parameters
    if len(request.name) == 1:
        return _one(
            run_schedule(request.name[0], p, m, request.v, lost=request.lost, parameters=own, **request.seconds)
        )
    stack = run_schedules(request.name, p, m, request.v, parameters=own, **request.seconds)
    runs = tuple((run.to_dict(), run.timeline) for run in stack)
    return DrawnSchedules(
        document={"schema": "meshwright.schedule-stack/1", "schedules": [document for document, _ in runs]},
        drawing=lambda found: stack_page(found["schedules"], [timeline for _, timeline in runs]),
        runs=runs,
    )


def _one(run: ScheduleRun) -> DrawnSchedules:
    document = run.to_dict()
    page = partial(schedule_page, timeline=run.timeline)
    return DrawnSchedules(document=document, drawing=page, runs=((document, run.timeline),), run=run)


def _best(request: ScheduleRequest) -> DrawnSchedules:
    found = run_best_schedule(
        request.p,
        request.m or 1,
        request.v,
        **request.seconds,
        times_file=request.times,
        room=request.room,
        released_by_input=request.released_by_input or 0.0,
        allow=list(request.allow) or None,
        split=request.split,
        objective=request.objective,
    )
    document = found.to_dict()
    page = partial(best_schedule_page, timeline=found.timeline)
    return DrawnSchedules(document=document, drawing=page, runs=((document, found.timeline),))
