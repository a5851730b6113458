"""The page as one JSON document, and as one HTML file that holds it with every module it needs."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib import import_module
from importlib.resources import files
from typing import Any

from meshwright.errors import InputError, unknown_name
from meshwright.report.html import MEMORY_COLOURS, PART_COLOURS
from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.report.timeline_svg import COLOURS, SPAN_COLOURS
from meshwright.report.words.made_by import made_by_words
from meshwright.schedules import Kind

VIEWS = ("overview", "timeline", "memory", "why", "frontier", "compare", "cluster", "operators")
"""Names of the views in the order of their tabs: `views/NAME.py` gives the data, `assets/views/NAME.js` draws them."""
LIVE_VIEWS = ("experts", "playground", "run", "accuracy")
"""Views that a server answers, behind the others. A file has what their modules' `file_data(plan, source)` gives, and
leaves out those that have None of every plan."""
MODULES = (
    "main.js", "units.js", "colours.js", "svg.js", "table.js", "card.js",
    "packed.js", "steps.js", "pipeline.js", "strips.js", "drop.js",
)  # fmt: skip
"""Modules of `assets` that all views share, by the name they are imported by behind `page/`."""
LIVE_MODULES = ("live.js",)
"""Modules of a page that has a server behind it."""
FILE_BOOT = 'import { start } from "page/main.js"; start(document.getElementById("page"));'
LIVE_BOOT = 'import { live } from "page/live.js"; live(document.getElementById("page"));'
MOST_BYTES = 1_300_000
"""Most bytes of a file's data: plans beyond it are listed without the views that are large."""
FILE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'none'; form-action 'none'; base-uri 'none'"
)
"""A file that is opened asks nothing of any network."""


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
        name: of `VIEWS`.
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
    """By view, its data of every plan; None of a plan that has no room in a file."""
    left = MOST_BYTES
    made: dict[str, list[dict[str, Any] | None]] = {name: [] for name in (*VIEWS, *LIVE_VIEWS)}
    for plan in source.plans:
        for name in made:
            first = plan is source.plans[0]
            data = _in_file(name, source, plan) if first or not _first_alone(name) else None
            size = len(_dense(data))
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


def page_html(document: Mapping[str, Any]) -> str:
    """The page as one file that needs no other, and opens from a disk.

    Args:
        document: a `meshwright.page/1`.
    """
    modules = {f"page/{name}": _inlined(text) for name, text in module_texts(document["views"]).items()}
    title = document["document"]["plans"][0]["title"] if document["document"]["plans"] else "no plan"
    model = document["document"]["inputs"]["model"]["name"]
    return index_html(
        title=f"{model}: {title}",
        imports=modules,
        style=f"<style>{styles()}</style>",
        document=document,
        policy=FILE_POLICY,
    )


def index_html(*, title: str, imports: Mapping[str, str], style: str, document: Mapping[str, Any], policy: str) -> str:
    """The shell of the page.

    Args:
        title: of the window.
        imports: where each module is, by the name it is imported by.
        style: elements of the head that bring the style.
        document: a `meshwright.page/1`.
        policy: what the browser may load.
    """
    found = asset("index.html")
    parts = {
        "policy": escape(policy, quote=True),
        "title": escape(title),
        "style": style,
        "boot": LIVE_BOOT if document["live"] else FILE_BOOT,
        "imports": _script_safe({"imports": dict(imports)}),
        "document": _script_safe(document),
    }
    for name, text in parts.items():
        found = found.replace(f"<!--{name}-->", text, 1)
    return found


def module_texts(views: Sequence[str] = (*VIEWS, *LIVE_VIEWS), *, live: bool = False) -> dict[str, str]:
    """Every module of the page by its path in `assets`, with the list of views that is made here.

    Args:
        views: that the page has.
        live: with those that ask a server.
    """
    names = (*MODULES, *(LIVE_MODULES if live else ()), *(f"views/{name}.js" for name in views))
    return {name: asset(name) for name in names} | {"views.js": _views_module(views)}


def _views_module(views: Sequence[str]) -> str:
    imports = "\n".join(f'import {{ view as v{n} }} from "page/views/{name}.js";' for n, name in enumerate(views))
    return f"{imports}\nexport const views = [{', '.join(f'v{n}' for n in range(len(views)))}];\n"


@cache
def asset(name: str) -> str:
    """A file of `assets` as text."""
    return files("meshwright.report.page").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


def styles() -> str:
    """All of the page's CSS: of the shell, of the views, and the colours of what they draw."""
    return asset("style.css") + asset("views.css") + palette()


@cache
def palette() -> str:
    """Colours of parts, memory and tasks as variables of CSS: those of the notebook's and the paper's figures."""
    found = {f"part-{name}": colour for name, colour in PART_COLOURS.items()}
    found |= {f"memory-{name}": colour for name, colour in MEMORY_COLOURS.items()}
    found |= {f"task-{Kind(kind).name}": colour for kind, colour in COLOURS.items()}
    found |= {f"span-{name}": colour for name, colour in SPAN_COLOURS.items()}
    return ":root{" + "".join(f"--{name.replace('_', '-')}:{colour};" for name, colour in found.items()) + "}"


def _inlined(text: str) -> str:
    return "data:text/javascript;base64," + b64encode(text.encode()).decode()


def _script_safe(data: Mapping[str, Any]) -> str:
    """JSON that ends no script element."""
    return _dense(data).replace("<", "\\u003c")


def _dense(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
