"""One row of a measured-runs file: columns as text, numbers and flags; a blank says nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping

AGREES = 0.25
"""How far the times of one row may be apart: rates are rounded, and averaged over other steps."""
LEAST, MOST = 1e-9, 1e15
"""Numbers of measured runs, whatever their unit: beyond them shares of a prediction are no numbers any more."""
REQUIRED = ("id", "gpu", "n_gpus", "n_layers", "hidden", "seq_len", "global_batch_seqs")
"""Columns without which a file is not one of measured runs. All others may be absent."""


def in_reach(text: str | None) -> float | None:
    """A number that a run may have; None for all other text.

    Args:
        text: the text of a column.
    """
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if LEAST <= value <= MOST else None


class MeasuredRecord:
    """A row. What is wrong with it gathers in `reasons`, so that all of it can be said at once."""

    def __init__(self, values: Mapping[str, str | None]) -> None:
        self._values = values
        self.reasons: list[str] = []

    def text(self, name: str) -> str:
        """The column, without surrounding blanks; empty where the file or the row does not have it."""
        value = self._values.get(name)
        return value.strip() if isinstance(value, str) else ""

    def all_text(self, *names: str) -> str:
        """Several columns in one, in lower case, to look for a word in."""
        return " | ".join(self.text(name) for name in names).lower()

    @property
    def notes(self) -> str:
        """What the row says in words of how it ran, in lower case."""
        return self.all_text("notes", "recompute_detail")

    def number(self, name: str) -> float | None:
        """The column as a number in reach, None where it is blank; anything else is a reason."""
        text = self.text(name)
        if not text:
            return None
        value = in_reach(text)
        if value is None:
            self.reasons.append(f"{name} {text[:40]!r} is not a number from {LEAST:g} to {MOST:g}")
        return value

    def whole(self, name: str) -> int | None:
        """The column as a whole number above 0, None where it is blank; anything else is a reason."""
        value = self.number(name)
        if value is None:
            return None
        if value != int(value) or value > 1e12:
            self.reasons.append(f"{name} {self.text(name)[:40]!r} is not a whole number in reach")
            return None
        return int(value)

    def needed(self, name: str) -> int:
        """The same for a column that must be stated; 1 stands in after the reason is noted."""
        known = len(self.reasons)
        value = self.whole(name)
        if value is None and len(self.reasons) == known:
            self.reasons.append(f"{name} not stated")
        return 1 if value is None else value

    def flag(self, name: str) -> bool | None:
        """The column as true or false, None where it is blank or neither."""
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(
            self.text(name).lower()
        )


def campaign(values: Mapping[str, str | None]) -> str:
    """Campaign that a row was measured in: its source, and for MLPerf the round, whose submissions run one code.

    Args:
        values: column to text.
    """
    source = (values.get("source") or "").strip()
    found = re.match(r"MLPerf \w+ v\d+\.\d+", source)
    return found[0] if found else source


def contradiction(values: Mapping[str, str | None]) -> str:
    """Why the measures of a row cannot all be of one step; empty where they agree, or there is one.

    Args:
        values: column to text.
    """
    record = MeasuredRecord(values)
    names = ("target_iter_time_s", "iter_time_s", "tokens_per_s_per_gpu", "n_gpus", "seq_len", "global_batch_seqs")
    target_s, step_s, rate, devices, seq_len, batch = map(record.number, names)
    found = {name: time_s for name, time_s in (("target_iter_time_s", target_s), ("iter_time_s", step_s)) if time_s}
    if rate and devices and seq_len and batch:
        found["tokens_per_s_per_gpu"] = seq_len * batch / rate / devices
    if not found or max(found.values()) <= (1 + AGREES) * min(found.values()):
        return ""
    said = ", ".join(f"{time_s:.4g} s by {name}" for name, time_s in found.items())
    return f"its measures contradict each other: {said}"
