"""What made an answer, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHOWN_DIGITS = 12
"""Digits shown of hashes and commits: enough to tell any two apart."""


def made_by_words(made_by: Mapping[str, Any]) -> str:
    """`meshwright 1.2.0 (commit 0123456789ab), calibration of 2026-11-29 (1c55e2b758cb)`.

    Args:
        made_by: the record of what made an answer; what it does not say is left out.
    """
    version, commit, calibration = (made_by.get(key) for key in ("version", "commit", "calibration"))
    said = f"meshwright {version}" + (f" (commit {commit[:SHOWN_DIGITS]})" if commit else "")
    if not calibration:
        return said
    digits = calibration["hash"].removeprefix("sha256:")[:SHOWN_DIGITS]
    return f"{said}, calibration of {calibration['date'] or 'no date'} ({digits})"
