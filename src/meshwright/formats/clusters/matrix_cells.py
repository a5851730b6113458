"""The cells of a bandwidth matrix as numbers, with whose they are; every fault of the text at once.

A cell that is missing where the other direction was measured takes that one; of two directions the slower counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.formats.cluster import UNKNOWN_NODE, Refusals
from meshwright.formats.clusters.base import DeviceNames, data_lines, directives, listed, whole_directive
from meshwright.shapes import Float
from meshwright.specs.device import DeviceSpec

ROWS = {"node": "nodes", "host": "nodes", "gpu": "gpus", "rank": "gpus", "device": "gpus"}
"""Headings of the first column."""
FACTS = ("device", "devices", "node", "zone")
"""Columns between the names and the cells."""
UNEVEN = 0.25
"""How much faster one direction of a link may be than the other."""
MAX_ROWS = 4096
_SPLIT = re.compile(r"[,;\t]")
_HOLES = ("", "-", "nan", "n/a", "na", "none", "x")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatrixCells:
    """One row per node or device."""

    names: tuple[str, ...]
    of_gpus: bool
    node: tuple[str, ...]
    """Node of each row; its own name where rows are nodes."""
    device: tuple[DeviceSpec, ...]
    devices: tuple[int, ...]
    """Devices of each row's node; 1 where rows are devices."""
    zone: tuple[str | None, ...]
    gb_s: Float[np.ndarray, "rows rows"]
    """Speed per device and direction; the diagonal is 0 where it is not known."""
    notes: tuple[str, ...]


def is_matrix(text: str) -> bool:
    """Whether a text is such a matrix: a heading that names rows, or nothing but numbers, as many rows as columns."""
    lines = data_lines(text)
    if len(lines) < 2 or any("=" in line or "{" in line for line in lines[:2]):
        return False
    first = _split(lines[0])
    if first[0].lower() in ROWS:
        return len(first) > 1 and _is_cell(_split(lines[1])[-1])
    return len(first) > 1 and len(first) == len(lines) and all(map(_is_cell, first))


def matrix_cells(text: str, devices: DeviceNames, wrong: Refusals) -> MatrixCells | None:
    """The cells of a matrix, or None with the problems noted."""
    said = directives(text)
    rows = [_split(line) for line in data_lines(text)]
    header = rows[0] if rows[0][0].lower() in ROWS else None
    if header is None:
        kind = said.get("rows", "nodes")
        rows = [[f"{kind.removesuffix('s')}{i}", *row] for i, row in enumerate(rows)]
        header = [kind.removesuffix("s"), *(row[0] for row in rows)]
    else:
        rows = rows[1:]
    facts = [cell.lower() for cell in header[1:] if cell.lower() in FACTS and cell not in {row[0] for row in rows}]
    names = [row[0] for row in rows]
    if not _square(header, facts, rows, names, wrong):
        return None
    of_gpus = ROWS.get(header[0].lower(), "nodes") == "gpus"
    columns = {fact: [row[1 + facts.index(fact)] for row in rows] for fact in facts}
    order = [header[1 + len(facts) :].index(name) for name in names]
    gb_s = _numbers([[row[1 + len(facts) + place] for place in order] for row in rows], names, wrong)
    kinds = [_kind(i, names, columns, said, devices, wrong) for i in range(len(names))]
    notes: list[str] = []
    node, counts = _nodes(of_gpus, names, columns, said, kinds, notes, wrong)
    per = said.get("per", "device")
    if per not in ("device", "node"):
        wrong.add(f"# per = {per[:20]!r}", "cells are per device or per node", "", name="per")
    if gb_s is None:
        return None
    if per == "node":
        gb_s = gb_s / np.array(counts, dtype=float)[:, None]
    gb_s = _both_ways(gb_s, names, notes, wrong)
    if gb_s is None or None in kinds or wrong:
        return None
    return MatrixCells(
        names=tuple(names),
        of_gpus=of_gpus,
        node=tuple(node),
        device=tuple(kind for kind in kinds if kind is not None),
        devices=tuple(counts),
        zone=tuple(columns["zone"]) if "zone" in columns else (None,) * len(names),
        gb_s=gb_s,
        notes=tuple(notes),
    )


def _split(line: str) -> list[str]:
    cells = _SPLIT.split(line) if _SPLIT.search(line) else line.split()
    return [cell.strip().strip('"') for cell in cells]


def _is_cell(text: str) -> bool:
    if text.lower() in _HOLES:
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def _square(
    header: Sequence[str], facts: Sequence[str], rows: Sequence[Sequence[str]], names: Sequence[str], wrong: Refusals
) -> bool:
    """Whether rows and columns are the same things."""
    columns = list(header[1 + len(facts) :])
    before = len(wrong.problems)
    for noun, found in (("rows", names), ("columns", columns)):
        twice = sorted({name for name in found if found.count(name) > 1})
        if twice:
            wrong.add(f"two {noun} are named {listed(twice)}", "names must differ", "rename one", name="matrix")
    strange = [name for name in columns if name not in names], [name for name in names if name not in columns]
    for (missing, noun), other in zip(((strange[0], "column"), (strange[1], "row")), ("row", "column"), strict=True):
        if missing:
            why = "a matrix has the same names in its first column and its heading"
            wrong.add(f"{noun} {listed(missing)} has no {other}", why, "", name="matrix")
    if len(names) > MAX_ROWS:
        wrong.add(f"{len(names):,} rows", f"at most {MAX_ROWS:,} are read", "give nodes, not devices", name="matrix")
    uneven = [row[0] for row in rows if len(row) != len(header)]
    if uneven:
        why = f"each row has a name and {len(header) - 1} cells; a cell that was not measured stays empty"
        wrong.add(f"row {listed(uneven)} has another number of cells than the heading", why, "", name="matrix")
    return len(wrong.problems) == before


def _numbers(
    cells: Sequence[Sequence[str]], names: Sequence[str], wrong: Refusals
) -> Float[np.ndarray, "rows rows"] | None:
    """Cells as numbers, holes as nan."""
    bad = [
        (names[i], names[j], cell)
        for i, row in enumerate(cells)
        for j, cell in enumerate(row)
        if not _is_cell(cell) or (cell.lower() not in _HOLES and not 0 <= float(cell) < 1e6)
    ]
    for row, column, cell in bad[:8]:
        wrong.add(
            f"{row} to {column} is {cell[:20]!r}", "must be GB/s, a finite number of at least 0", "", name="matrix"
        )
    if len(bad) > 8:
        wrong.add(f"and {len(bad) - 8} more cells are no bandwidth", "", "", name="matrix")
    if bad:
        return None
    return np.array([[np.nan if cell.lower() in _HOLES else float(cell) for cell in row] for row in cells])


def _kind(
    row: int,
    names: Sequence[str],
    columns: dict[str, list[str]],
    said: dict[str, str],
    devices: DeviceNames,
    wrong: Refusals,
) -> DeviceSpec | None:
    name = columns["device"][row] if "device" in columns else said.get("device", "")
    if name:
        return devices.find(name, names[row])
    if row == 0 or "device" in columns:
        fix = "add a column device, or a line '# device = H100'"
        wrong.add(f"nothing says what the devices of {names[row]} are", "speeds alone do not", fix, name="device")
    return None


def _nodes(
    of_gpus: bool,
    names: Sequence[str],
    columns: dict[str, list[str]],
    said: dict[str, str],
    kinds: Sequence[DeviceSpec | None],
    notes: list[str],
    wrong: Refusals,
) -> tuple[list[str], list[int]]:
    """Node of each row, and devices of a node: those said, or of the device's usual node."""
    usual = [((kind.node if kind else None) or UNKNOWN_NODE).devices_per_node for kind in kinds]
    per_node = whole_directive(said, "devices_per_node", wrong)
    if of_gpus:
        if "node" in columns:
            return columns["node"], [1] * len(names)
        sizes = [per_node or one for one in usual]
        if per_node is None and len(names) > 1:
            notes.append(f"no column says the node of a gpu: each {sizes[0]} in a row are taken as one node")
        return [f"node{i // size}" for i, size in enumerate(sizes)], [1] * len(names)
    counts = []
    for name, cell, one in zip(names, columns.get("devices", [""] * len(names)), usual, strict=True):
        if cell and not (re.fullmatch(r"[0-9]{1,4}", cell) and int(cell)):
            wrong.add(f"devices of {name} is {cell[:20]!r}", "must be a whole number of at least 1", "", name="devices")
        counts.append(int(cell) if re.fullmatch(r"[1-9][0-9]{0,3}", cell) else per_node or one)
    if "devices" not in columns and per_node is None:
        notes.append(
            f"nothing says the devices of a node: {listed(sorted({str(c) for c in counts}))}, the usual node's"
        )
    return list(names), counts


def _both_ways(
    gb_s: Float[np.ndarray, "rows rows"], names: Sequence[str], notes: list[str], wrong: Refusals
) -> Float[np.ndarray, "rows rows"] | None:
    """The matrix with each link once, or None with what is missing or contradicts itself."""
    between = ~np.eye(len(gb_s), dtype=bool)
    missing = np.isnan(gb_s)
    holes = np.argwhere(np.triu(missing & missing.T & between))
    if len(holes):
        pairs = listed([f"{names[i]} - {names[j]}" for i, j in holes], 6)
        why = "every two can exchange data; 0 says that nothing joins them"
        wrong.add(f"the matrix has holes: {pairs}", why, "measure them, or write 0", name="matrix")
    one_way = int(np.triu((missing ^ missing.T) & between).sum())
    if one_way:
        notes.append(f"{one_way} links were measured in one direction; the other is taken as equal")
    filled = np.where(missing, gb_s.T, gb_s)
    low, high = np.fmin(filled, filled.T), np.fmax(filled, filled.T)
    uneven = np.argwhere(np.triu((high > low * (1 + UNEVEN)) & between))
    if len(uneven):
        shown = [f"{names[i]} - {names[j]} ({filled[i, j]:.3g} and {filled[j, i]:.3g} GB/s)" for i, j in uneven[:4]]
        more = f" and {len(uneven) - 4} more" if len(uneven) > 4 else ""
        wrong.add(
            f"the matrix is not symmetric: {', '.join(shown)}{more}",
            f"the two directions of a link may differ by {UNEVEN:.0%}",
            "measure again, or write the slower one for both",
            name="matrix",
        )
    if len(holes) or len(uneven):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        most = float(np.nanmax(np.where(between & (low > 0), high / low - 1, 0.0), initial=0.0))
    if most > 0:
        notes.append(f"the two directions of a link differ by up to {most:.0%}; the slower one counts")
    return np.where(np.isnan(low), 0.0, low)
