"""The pages of `schedule`: one schedule drawn with its numbers, and the list of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from meshwright.report.parts import columns, facts_table, plain_row
from meshwright.report.picture import schedule_picture
from meshwright.report.timeline_text import TimelineText
from meshwright.schedules import Timeline
from meshwright.units import significant


def schedule_page(run: Mapping[str, Any], timeline: Timeline) -> RenderableType:
    """The `schedule NAME` page.

    Args:
        run: a `meshwright.schedule/1`.
        timeline: the same, to draw.
    """
    facts = facts_table()
    plain_row(facts, "schedule", f"{run['name']}, p {run['p']}, m {run['m']}, v {run['v']}")
    plain_row(facts, "time", f"{significant(run['makespan_s'], 6)} s")
    bubbles = f"{run['bubble_makespan']:.1%} of the makespan idle, {run['bubble_span']:.1%} of the longest span"
    plain_row(facts, "bubble", bubbles)
    plain_row(
        facts, "activations", f"{_runs([worker['peak_activations'] for worker in run['workers']])} live per worker"
    )
    copies = run["workers"][0]["weight_copies"]
    exact = "the gradient of the whole batch" if run["exact_semantics"] else "not the gradient of one set of weights"
    plain_row(facts, "semantics", f"{exact}; {copies} weight {'copy' if copies == 1 else 'copies'}")
    return Group(TimelineText([schedule_picture(run, timeline)]), Text(), facts)


def stack_page(runs: Sequence[Mapping[str, Any]], timelines: Sequence[Timeline]) -> RenderableType:
    """The `schedule NAME,NAME` page: all on one time axis, then their numbers.

    Args:
        runs: entries of a `meshwright.schedule-stack/1`.
        timelines: the same, to draw.
    """
    names = ("schedule", "v", "time", "idle of makespan", "idle of span", "activations", "weight copies", "gradient")
    table = columns(*names, left=("schedule",), fold=("gradient",))
    for run in runs:
        workers = run["workers"]
        plain_row(
            table,
            run["name"],
            str(run["v"]),
            f"{significant(run['makespan_s'], 6)} s",
            f"{run['bubble_makespan']:.1%}",
            f"{run['bubble_span']:.1%}",
            _runs([worker["peak_activations"] for worker in workers]),
            str(max(worker["weight_copies"] for worker in workers)),
            "exact" if run["exact_semantics"] else "asynchronous",
        )
    pictures = [schedule_picture(run, timeline) for run, timeline in zip(runs, timelines, strict=True)]
    return Group(TimelineText(pictures, whole=True), Text(), table)


def schedule_list(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The `schedule list` table.

    Args:
        rows: entries of `meshwright.schedules/1`.
    """
    table = columns(
        "schedule", "what", "other names", "source", left=("schedule",), fold=("what", "other names", "source")
    )
    for row in rows:
        plain_row(table, row["name"], row["title"], ", ".join(row["aliases"]), row["source"])
    return table


def _runs(numbers: Sequence[int]) -> str:
    """`4, 3, 2, 1`, shortened in the middle."""
    words = [str(number) for number in numbers]
    return ", ".join(words if len(words) <= 16 else [*words[:7], "...", *words[-7:]])
