"""How predictions compare with measurements: scores of a set of runs, as values, as a table and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.records import fields_of

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One run with its prediction, in one unit."""

    id: str
    group: str
    """What scores are listed by, such as the source."""
    measured: float
    predicted: float | None
    low: float | None = None
    high: float | None = None

    @property
    def error(self) -> float | None:
        """predicted / measured - 1."""
        return None if self.predicted is None else self.predicted / self.measured - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Score of one group of runs; shares from 0 to 1, None where nothing was predicted."""

    group: str
    runs: int
    predicted: int
    median_error: float | None
    """Median of |predicted / measured - 1|."""
    p90_error: float | None
    """90th percentile of |predicted / measured - 1|."""
    bias: float | None
    """Median of predicted / measured - 1."""
    in_interval: float | None
    """Share of the runs with an interval whose measurement lies inside it."""

    @property
    def coverage(self) -> float:
        """Share of the runs that have a prediction."""
        return self.predicted / self.runs if self.runs else 0.0

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return fields_of(self) | {"coverage": self.coverage}


def quantile(values: Iterable[float], share: float) -> float | None:
    """The value below which this share lies, between neighbours in a straight line; None for no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def score(group: str, runs: Sequence[Compared]) -> Score:
    """The score of runs taken together.

    Args:
        group: what to call them.
        runs: the runs with or without predictions.

    Returns:
        Coverage over all, errors over those with a prediction.
    """
    errors = [run.error for run in runs if run.error is not None]
    bounded = [(run.low, run.measured, run.high) for run in runs if run.low is not None and run.high is not None]
    inside = [low <= measured <= high for low, measured, high in bounded]
    return Score(
        group=group,
        runs=len(runs),
        predicted=len(errors),
        median_error=quantile((abs(error) for error in errors), 0.5),
        p90_error=quantile((abs(error) for error in errors), 0.9),
        bias=quantile(errors, 0.5),
        in_interval=sum(inside) / len(inside) if inside else None,
    )


def score_by_group(runs: Sequence[Compared]) -> tuple[Score, ...]:
    """`ALL` first, then every group in the order of its first run."""
    groups: dict[str, list[Compared]] = {}
    for run in runs:
        groups.setdefault(run.group or "(not stated)", []).append(run)
    return (score("ALL", runs), *(score(name, members) for name, members in groups.items()))


HEADINGS = ("group", "runs", "predicted", "median error", "p90 error", "bias", "in interval")


def score_cells(scores: Iterable[Score]) -> list[tuple[str, ...]]:
    """Rows of text under HEADINGS."""
    return [
        (
            found.group,
            str(found.runs),
            f"{found.predicted} ({found.coverage:.0%})",
            _percent(found.median_error),
            _percent(found.p90_error),
            _percent(found.bias, sign=True),
            _percent(found.in_interval, digits=0),
        )
        for found in scores
    ]


def score_table(title: str, scores: Iterable[Score]) -> Table:
    """The table of the terminal."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if number else "left", no_wrap=number > 0)
    for cells in score_cells(scores):
        table.add_row(*cells)
    return table


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; the first column and words to the left, numbers to the right."""
    sides = ["---" if at == 0 or heading in _WORDS else "---:" for at, heading in enumerate(headings)]
    lines = [
        "| " + " | ".join(headings) + " |",
        f"|{'|'.join(sides)}|",
        *("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows),
    ]
    return "\n".join(lines)


_WORDS = frozenset(("note", "metric", "what", "plan", "as published", "source", "likely reason"))
"""Headings of columns that hold words."""


def _percent(value: float | None, *, sign: bool = False, digits: int = 1) -> str:
    if value is None:
        return "-"
    return f"{value:+.{digits}%}" if sign else f"{value:.{digits}%}"
