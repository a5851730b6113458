"""What made an answer: version, commit, calibration, and the command that asks the same again."""

from __future__ import annotations

import json
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.specs.calibration import Calibration

COMMIT_FILE = "commit"
"""File of the package, where it was built from a clone: the commit's digits, written by the build (hatch_build.py)."""


def made_by(priced_by: Calibration | None, command: str = "") -> dict[str, Any]:
    """What made an answer, as data.

    Args:
        priced_by: the calibration of its prices; None where nothing is priced.
        command: asks the same again; empty where no single command does.
    """
    found: dict[str, Any] = {"version": version(), "commit": commit(), "calibration": None}
    if priced_by is not None:
        from meshwright.library.made_with import record_hash_of

        found["calibration"] = {"date": priced_by.date, "hash": record_hash_of(priced_by)}
    return found | ({"command": command} if command else {})


@cache
def version() -> str:
    """Version of the package; `unknown` where its files are run without having been installed."""
    try:
        return metadata.version("meshwright")
    except metadata.PackageNotFoundError:
        return "unknown"


@cache
def commit() -> str | None:
    """The commit that the package was built from, where its build or its installer wrote it down; else None."""
    built = Path(__file__).parents[1] / COMMIT_FILE
    if built.is_file():
        return built.read_text(encoding="ascii").strip() or None
    try:
        installed = json.loads(metadata.distribution("meshwright").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return None
    found = installed.get("vcs_info", {}).get("commit_id")
    return found if isinstance(found, str) else None
