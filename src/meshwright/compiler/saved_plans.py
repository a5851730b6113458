"""Plans of the compiler as files: JSON with the version that wrote it, read back whole or refused."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from meshwright.errors import InputError
from meshwright.formats.files import read_text

MAX_BYTES = 512 * 2**20
"""Largest size of a saved plan with its lists: what 100,000 instructions take, several times."""


def unreadable(what: str, why: str) -> InputError:
    """The error of a saved plan that cannot be used."""
    return InputError(what=what, why=why, fix="save the plan of a compiled step again", field="plan")


def plan_text(path: str | Path) -> str:
    """The text of a saved plan, or of saved lists.

    Args:
        path: the path that `plan.save` or `compiled.save` wrote.

    Raises:
        InputError: there is no such file, or it is not text.
    """
    if not Path(path).is_file():
        raise InputError(
            what=f"there is no file {path}",
            why="a plan is read from it",
            fix="the path that plan.save wrote",
            field="plan",
        )
    return read_text(path, "saved plan", max_bytes=MAX_BYTES)


def saved_plan(text: str, stamp: str, known: int | str) -> dict[str, Any]:
    """A plan's entries.

    Args:
        text: JSON.
        stamp: `version` or `schema`: the key that says what wrote it.
        known: the one that is read.

    Raises:
        InputError: it is no JSON, or of another version.
    """
    try:
        held = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise unreadable(f"the plan is not JSON: {wrong}", "plans are saved by to_json") from wrong
    if not isinstance(held, dict) or held.get(stamp) != known:
        found = held.get(stamp) if isinstance(held, dict) else None
        reads = f"version {known}" if stamp == "version" else known
        raise unreadable(f"a plan of {stamp} {found}", f"this release reads {reads}")
    return held


def require_entries(held: Collection[str], wanted: Collection[str]) -> None:
    """Refuse a plan without all of its entries.

    Args:
        held: names that are there.
        wanted: names that a plan has.

    Raises:
        InputError: some are not there.
    """
    if lacking := sorted(set(wanted) - set(held)):
        raise unreadable("the plan lacks " + ", ".join(lacking), "all of it is needed to run it")
