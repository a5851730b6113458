"""The page as one JSON document: what its views draw, as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from meshwright.errors import InputError, unknown_name
from meshwright.report.html import MEMORY_COLOURS, PART_COLOURS
from meshwright.report.page.shell import LIVE_VIEWS, VIEWS, dense
from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.report.timeline_svg import COLOURS, SPAN_COLOURS
from meshwright.report.words.made_by import made_by_words
from meshwright.schedules import Kind

MOST_BYTES = 1_300_000
"""Most bytes of a file's data: plans beyond it are listed without the views that are large."""


def page_document(source: PageSource, *, live: bool = False) -> dict[str, Any]:
    """Everything the page draws, as data: `meshwright.page/1`.

    Args:
        source: the answer.
        live: a server is behind the page; views are then asked for one by one.
    """
    data = {} if live else dict(_data(source))
    return {
        "schema": "meshwright.page/1",
        "made_by": dict(source.made_by),
        "made": made_by_words(source.made_by),
        "asked": dict(source.asked),
        **({} if source.unanswered is None else {"unanswered": dict(source.unanswered)}),
        "live": live,
        "views": [*VIEWS, *LIVE_VIEWS] if live else list(data),
        "document": source.document,
        "data": data,
    }


def view_data(
    name: str, source: PageSource, plan: PlanOnPage, asked: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What one view draws of one plan.

    Args:
        name: the name of `VIEWS`.
        source: the answer.
        plan: one of its plans, or one that is made of them by changing something.
        asked: what the view of a live page wants besides: its module then has `live_data(plan, source, asked)`.

    Raises:
        InputError: there is no such view, or what it asks is malformed.
    """
    if name not in (*VIEWS, *LIVE_VIEWS):
        raise InputError(unknown_name("view", name[:40], (*VIEWS, *LIVE_VIEWS)), code="MW206")
    module = import_module(f"meshwright.report.page.views.{name}")
    if asked is not None and not hasattr(module, "live_data"):
        what, why = f"the view {name} is asked for more", "what it draws follows from the plan alone"
        raise InputError(what=what, why=why, field="asked", code="MW206")
    made: dict[str, Any] = module.view_data(plan, source) if asked is None else module.live_data(plan, source, asked)
    return made


def _data(source: PageSource) -> Iterator[tuple[str, list[dict[str, Any] | None]]]:
    """Data of every plan by view; None of a plan that has no room in a file."""
    left = MOST_BYTES
    made: dict[str, list[dict[str, Any] | None]] = {name: [] for name in (*VIEWS, *LIVE_VIEWS)}
    for plan in source.plans:
        for name in made:
            first = plan is source.plans[0]
            data = _in_file(name, source, plan) if first or not _first_alone(name) else None
            size = len(dense(data))
            made[name].append(data if first or size <= left else None)
            left -= size if made[name][-1] is not None else 0
    yield from ((name, data) for name, data in made.items() if any(data))


def _in_file(name: str, source: PageSource, plan: PlanOnPage) -> dict[str, Any] | None:
    """What a view draws where no server answers."""
    if name in VIEWS:
        return view_data(name, source, plan)
    found: dict[str, Any] | None = import_module(f"meshwright.report.page.views.{name}").file_data(plan, source)
    return found


def _first_alone(name: str) -> bool:
    """Whether a view takes so long to make that a file has it of the first plan alone."""
    return bool(getattr(import_module(f"meshwright.report.page.views.{name}"), "FIRST_ALONE", False))


@cache
def palette() -> str:
    """Colours of parts, memory and tasks as variables of CSS: those of the notebook's and the paper's figures."""
    found = {f"part-{name}": colour for name, colour in PART_COLOURS.items()}
    found |= {f"memory-{name}": colour for name, colour in MEMORY_COLOURS.items()}
    found |= {f"task-{Kind(kind).name}": colour for kind, colour in COLOURS.items()}
    found |= {f"span-{name}": colour for name, colour in SPAN_COLOURS.items()}
    return ":root{" + "".join(f"--{name.replace('_', '-')}:{colour};" for name, colour in found.items()) + "}"
