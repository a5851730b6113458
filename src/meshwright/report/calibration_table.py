"""A calibration as tables of the terminal: how good it is, and what it moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from meshwright.report.parts import columns, plain_row
from meshwright.units import seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

ERRORS = {
    "before": "before the fit",
    "after": "after the fit",
    "left_out": "after, each source left out of the fit in turn",
}


def calibration_tables(record: Mapping[str, Any]) -> Iterator[Table]:
    """Errors of steps before and after, then the fitted numbers with their central 90 %.

    Args:
        record: the content of a calibration file.
    """
    from rich.table import Table

    errors = Table(title=f"{record['runs']} runs of {len(record['sources'])} sources", title_justify="left")
    errors.add_column("step time")
    for heading in ("median error", "p90 error", "bias"):
        errors.add_column(heading, justify="right")
    for name, words in ERRORS.items():
        found = record["errors"][name]
        errors.add_row(words, f"{found['median']:.1%}", f"{found['p90']:.1%}", f"{found['bias']:+.1%}")
    yield errors

    numbers = Table(title="fitted numbers", title_justify="left")
    numbers.add_column("number")
    for heading in ("literature", "fitted", "low", "high"):
        numbers.add_column(heading, justify="right")
    for name, number in record["numbers"].items():
        numbers.add_row(name, *(f"{number[key]:.3g}" for key in ("prior", "value", "low", "high")))
    yield numbers


def ranking_table(plans: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """The best plans under the numbers of before and of after, and the plan that ran.

    Args:
        plans: the plans as data, the best of after first.
    """
    best = {
        when: next((one["name"] for one in plans if one[f"rank_{when}"] == 1), None) for when in ("before", "after")
    }
    same = best["before"] == best["after"]
    said = f"best plan: {best['after']}" + (", as before" if same else f" instead of {best['before']}")
    table = columns("plan", "before", "", "after", " ", left=("plan", " "))
    for one in plans:
        ranks = [f"#{one[key]}" if one[key] else "" for key in ("rank_before", "rank_after")]
        times = [seconds(one[key]) for key in ("before_s", "after_s")]
        plain_row(
            table, one["name"], times[0], ranks[0], times[1], f"{ranks[1]}{' measured' * one['measured']}".strip()
        )
    yield Text(f"\n{said}", style="bold")
    yield table
