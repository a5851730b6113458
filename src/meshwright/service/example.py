"""The answer that the page shows where nothing is asked, as `make example` recorded it: there before it is worked out.

The page asks the planner all the same, and shows what it says as soon as it says something else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.app.made_by import commit, version
from meshwright.report.page.shell import page_html
from meshwright.report.words.made_by import made_by_words

ASKED = {"model": "llama-3.1-70b", "gpus": "64xH100", "seq_len": 8192}
FILE = "example.json"
"""File of this package: the `page` as a server with this answer opens it, and the `palette` of its colours."""


def example_page() -> str:
    """The page with the recorded answer."""
    found = recorded_example()
    document = found["page"]
    made_by = {"version": version(), "commit": commit(), **document["made_by"]}
    document = {**document, "made_by": made_by, "made": made_by_words(made_by), "recorded": True}
    return page_html(document, found["palette"])


@cache
def recorded_example() -> dict[str, Any]:
    """What was recorded."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name(FILE).read_text(encoding="utf-8"))
    return found


def worked_out() -> dict[str, Any]:
    """What `make example` records: the answer as the planner gives it here."""
    from meshwright.app.pages.answers import PageAnswers
    from meshwright.app.pages.source import page_source
    from meshwright.app.requests.page import WebRequest
    from meshwright.report.page.document import palette

    answers = PageAnswers()
    document = answers.opened(answers.add(page_source(WebRequest.read(ASKED))))
    del document["made"]
    document["made_by"] = _of_any_build(document["made_by"])
    answer = {name: value for name, value in document["document"].items() if name != "timing"}
    document["document"] = answer | {"made_by": _of_any_build(answer["made_by"])}
    return {"palette": palette(), "page": document}


def _of_any_build(made_by: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in made_by.items() if name not in ("version", "commit")}
