"""A sweep of the Calculon model as text: one line a design."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from meshwright.report.parts import columns
from meshwright.units import seconds, significant

SHOWN = 60
"""Designs that are printed; all are in the file and in the JSON."""


def render_sweep(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.calculon-sweep/1`.

    Args:
        document: the answer as data.
    """
    designs, timing = document["designs"], document["timing"]
    searched = sum(design["search"]["space"] for design in designs if design["search"])
    text = (
        f"{_designs(len(designs))}, {searched:,} executions, {document['rows']:,} rows in {document['output']} "
        f"({seconds(timing['sweep_s'])})."
    )
    notes = []
    if timing["resumed_designs"]:
        notes.append(f"{_designs(timing['resumed_designs'])} found there already")
    if timing["redone_blocks"]:
        notes.append(f"{timing['redone_blocks']:,} blocks done again: their workers were lost")
    best = "best tp.pp.v.dp.mbs, or why not"
    numbers = ("procs", "batch", "samples/s", "per processor", "space", "front")
    table = columns("app", "system", *numbers, best, left=("app", "system"), fold=(best,))
    for design in designs[:SHOWN]:
        table.add_row(*_cells(design))
    more = [Text(f"... and {len(designs) - SHOWN:,} more designs in the file")] if len(designs) > SHOWN else []
    return Group(Text(text, style="bold"), *(Text(f"  {note}") for note in notes), "", table, *more)


def _cells(design: Mapping[str, Any]) -> list[str]:
    cells = [design["app"], design["system"], f"{design['num_procs']:,}", f"{design['batch']:,}"]
    space = f"{design['search']['space']:,}" if design["search"] else "0"
    if design["execution"] is None:
        return [*cells, "-", "-", space, "-", design["why_not"] or ""]
    names = ("tensor_par", "pipeline_par", "pipeline_interleaving", "data_par", "microbatch_size")
    layout = ".".join(str(design["execution"][name]) for name in names)
    rate = design["sample_rate"]
    return [*cells, significant(rate, 4), significant(rate / design["num_procs"]), space, str(design["front"]), layout]


def _designs(number: int) -> str:
    return "1 design" if number == 1 else f"{number:,} designs"
