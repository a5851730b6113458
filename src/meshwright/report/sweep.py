"""A sweep of plans as text: one line a combination, and what each value is worth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.report.parts import columns, heading
from meshwright.units import GIB, percent, seconds, significant

SHOWN = 40
"""Combinations that are printed; all are in the file and in the JSON."""
MOST_COMBINED = 6
"""Axes whose numbers of values are spelled out."""


def render_sweep(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.sweep/1`.

    Args:
        document: the answer as data.
    """
    designs, timing = document["designs"], document["timing"]
    varied = [axis["name"] for axis in document["axes"] if len(axis["values"]) > 1]
    found = sum(1 for one in designs if one["plan"])
    fitting = sum(1 for one in designs if one["plan"] and one["fits"] != "no")
    said = f"{found:,} with a plan" if document["verb"] == "plan" else f"{found:,} priced, {fitting:,} fit"
    done = f"{said}, {document['rows']:,} rows in {document['output']} ({seconds(timing['sweep_s'])})"
    notes = [done, *(f"{name}: {value}" for name, value in _fixed(document["axes"]))]
    if timing["resumed_designs"]:
        notes.append(f"{timing['resumed_designs']:,} found there already")
    if timing["redone_tasks"]:
        notes.append(f"{timing['redone_tasks']:,} asked again: their workers were lost")
    if stopped := sum(1 for one in designs if one["plan"] and not one["optimal"] and document["verb"] == "plan"):
        notes.append(f"{stopped:,} without proof that no plan is quicker; the column optimal says which")
    more = [Text(f"... and {len(designs) - SHOWN:,} more in the file")] if len(designs) > SHOWN else []
    parts: list[RenderableType] = [
        Text(_combinations(document["axes"], len(designs)), style="bold"),
        *(Text(f"  {note}") for note in notes),
        "",
        _table(designs, varied),
        *more,
    ]
    return Group(*parts, *_effects(document["effects"]))


def _combinations(axes: Sequence[Mapping[str, Any]], designs: int) -> str:
    """`12 designs = 2 model x 2 gpus x 3 seq_len`; numbers of devices that some clusters lack make no product."""
    varied = [f"{len(axis['values']):,} {axis['name']}" for axis in axes if len(axis["values"]) > 1]
    whole = math.prod(len(axis["values"]) for axis in axes)
    count = "1 design" if designs == 1 else f"{designs:,} designs"
    if not varied or len(varied) > MOST_COMBINED:
        return count
    if designs != whole:
        return f"{count} of {', '.join(varied)}"
    return f"{count} = {' x '.join(varied)}"


def _fixed(axes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    for axis in axes:
        if len(axis["values"]) == 1:
            yield axis["name"], _shown(axis["values"][0])


def _table(designs: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> Table:
    names, best = ("design", "best plan, or why not")
    table = columns(names, "step", "tok/s/GPU", "MFU", "GiB", best, left=(names, best), fold=(names, best))
    for design in designs[:SHOWN]:
        table.add_row(_named(design["values"], varied), *_cells(design))
    return table


def _named(values: Mapping[str, Any], varied: Sequence[str]) -> str:
    """`llama-3-8b, 64xnext, seq_len 16,384, memory_gib 80`."""
    said = [
        _shown(value) if isinstance(value, str) else f"{name.rpartition('.')[2]} {_shown(value)}"
        for name in varied
        if (value := values[name]) is not None
    ]
    return ", ".join(said) or "-"


def _cells(design: Mapping[str, Any]) -> list[str]:
    if not design["plan"]:
        return ["-", "-", "-", "-", design["why_not"] or ""]
    size, capacity = design["peak_memory_bytes"] / GIB, design["capacity_bytes"] / GIB
    unfit = "" if design["fits"] != "no" else "; does not fit"
    return [
        seconds(design["step_time_s"]),
        significant(design["tokens_per_s_per_device"]),
        percent(design["mfu"]) if design["mfu"] is not None else "-",
        f"{significant(size)}/{significant(capacity)}",
        f"{design['plan']}{unfit}",
    ]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _effects(found: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """What each value is worth, where anything was compared."""
    if not any(one["pairs"] for one in found):
        return
    priced = any(one["price_per_token_ratio"] is not None for one in found)
    ratios = ("tokens/s", "USD/token") if priced else ("tokens/s",)
    table = columns("axis", "from", "to", *ratios, "pairs", "", left=("axis", "from", "to", ""))
    for one in found:
        shown_ratios = [_ratio(one[name]) for name in ("tokens_per_s_ratio", "price_per_token_ratio")[: len(ratios)]]
        cells = (
            one["axis"],
            _shown(one["from"]),
            _shown(one["to"]),
            *shown_ratios,
            f"{one['compared']:,}",
            _changed(one),
        )
        table.add_row(*cells)
    yield ""
    yield heading("What each value is worth, all else equal")
    yield table


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"x {value:.3f}"


def _changed(one: Mapping[str, Any]) -> str:
    """Designs that have a plan at one of the two values alone."""
    said = [f"{one['gained']:,} fit only so"] if one["gained"] else []
    return ", ".join([*said, *([f"{one['lost']:,} no longer fit"] if one["lost"] else [])])
