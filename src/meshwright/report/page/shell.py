"""The page as one HTML file that holds a document with every module it needs. It loads nothing large."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

VIEWS = ("overview", "timeline", "memory", "why", "frontier", "compare", "cluster", "operators")
"""Names of the views in the order of their tabs: `views/NAME.py` gives the data, `assets/views/NAME.js` draws them."""
LIVE_VIEWS = ("export", "experts", "playground", "run", "accuracy", "tuning")
"""Views that a server answers, behind the others. A file has what their modules' `file_data(plan, source)` gives, and
leaves out those that have None of every plan."""
MODULES = (
    "main.js", "units.js", "colours.js", "svg.js", "table.js", "card.js",
    "packed.js", "steps.js", "pipeline.js", "strips.js", "drop.js", "treemap.js", "parallel.js",
    "differing.js", "scatter.js", "boxes.js", "renewed.js", "tokens.js",
)  # fmt: skip
"""Modules of `assets` that all views share, by the name they are imported by behind `page/`."""
LIVE_MODULES = ("live.js",)
"""Modules of a page that has a server behind it."""
FILE_BOOT = 'import { start } from "page/main.js"; start(document.getElementById("page"));'
LIVE_BOOT = 'import { live } from "page/live.js"; live(document.getElementById("page"));'
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src CONNECTED; form-action 'none'; base-uri 'none'"
)
"""A file that is opened asks nothing of any network, a page that is served asks its own server alone."""


def page_html(document: Mapping[str, Any], palette: str) -> str:
    """The page as one file that needs no other; it opens from a disk, or asks the server that it came from.

    Args:
        document: a `meshwright.page/1`.
        palette: CSS of the colours of what the views draw.
    """
    live = bool(document["live"])
    texts = module_texts(document["views"], live=live)
    title = document["document"]["plans"][0]["title"] if document["document"]["plans"] else "no plan"
    model = document["document"]["inputs"]["model"]["name"]
    parts = {
        "policy": escape(POLICY.replace("CONNECTED", "'self'" if live else "'none'"), quote=True),
        "title": escape(f"{model} · meshwright" if live else f"{model}: {title}"),
        "style": f"<style>{styles()}{palette}</style>",
        "boot": LIVE_BOOT if live else FILE_BOOT,
        "imports": _script_safe({"imports": {f"page/{name}": _inlined(text) for name, text in texts.items()}}),
        "document": _script_safe(document),
    }
    found = asset("index.html")
    for name, text in parts.items():
        found = found.replace(f"<!--{name}-->", text, 1)
    return found


@cache
def _of_views(views: tuple[str, ...], live: bool) -> dict[str, str]:
    names = (*MODULES, *(LIVE_MODULES if live else ()), *(f"views/{name}.js" for name in views))
    return {name: asset(name) for name in names} | {"views.js": _views_module(views)}


def module_texts(views: Sequence[str] = (*VIEWS, *LIVE_VIEWS), *, live: bool = False) -> dict[str, str]:
    """Every module of the page by its path in `assets`, with the list of views that is made here.

    Args:
        views: the views that the page has.
        live: whether the modules that ask a server are among them.
    """
    return _of_views(tuple(views), live)


def _views_module(views: Sequence[str]) -> str:
    imports = "\n".join(f'import {{ view as v{n} }} from "page/views/{name}.js";' for n, name in enumerate(views))
    return f"{imports}\nexport const views = [{', '.join(f'v{n}' for n in range(len(views)))}];\n"


@cache
def asset(name: str) -> str:
    """A file of `assets` as text."""
    return Path(__file__).parent.joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


def styles() -> str:
    """The page's own CSS: of the shell and of the views."""
    return asset("style.css") + asset("views.css")


@cache
def _inlined(text: str) -> str:
    return "data:text/javascript;base64," + b64encode(text.encode()).decode()


def _script_safe(data: Mapping[str, Any]) -> str:
    """JSON that ends no script element."""
    return dense(data).replace("<", "\\u003c")


def dense(data: Any) -> str:
    """JSON without spaces."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
