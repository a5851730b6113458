"""The three CSV files of a folder of measured profiles, each column checked, every fault of a file told at once.

layer_times.csv    model, gpu, tp, mbs, layer_index, fwd_ms, bwd_ms, optimizer_update_ms
layer_memory.csv   model, tp, layer_index, param_count_per_gpu, act_input_elems_mbs1, act_output_elems_mbs1,
                   act_saved_fp32elems_mbs1
network.csv        kind, src_gpu, src_gpus_per_node, dst_gpu, dst_gpus_per_node, src_zone, dst_zone, c2, c1, c0,
                   max_GBps
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from meshwright.errors import MAX_PROBLEMS, InputError, Problem, nearest
from meshwright.formats.files import read_text
from meshwright.formats.profiles.profile_set import End, LinkFit, Route

MAX_BYTES = 256 * 1024**2
MOST_GB_S = 1e6
"""Fastest link: a thousand times what any has."""

TIMES = ("model", "gpu", "tp", "mbs", "layer_index", "fwd_ms", "bwd_ms", "optimizer_update_ms")
SIZES = (
    "model",
    "tp",
    "layer_index",
    "param_count_per_gpu",
    "act_input_elems_mbs1",
    "act_output_elems_mbs1",
    "act_saved_fp32elems_mbs1",
)
LINKS = (
    "kind",
    "src_gpu",
    "src_gpus_per_node",
    "dst_gpu",
    "dst_gpus_per_node",
    "src_zone",
    "dst_zone",
    "c2",
    "c1",
    "c0",
    "max_GBps",
)
KINDS = ("intra_node", "homo_intra", "homo_inter", "inter_node_het")
_TEXT = frozenset({"model", "gpu", "kind", "src_gpu", "dst_gpu", "src_zone", "dst_zone"})
_MAY_BE_BLANK = frozenset({"src_zone", "dst_zone"})
_FROM_ONE = frozenset({"tp", "mbs", "src_gpus_per_node", "dst_gpus_per_node"})
_WHOLE = _FROM_ONE | {"layer_index"}
_SIGNED = frozenset({"c2", "c1", "c0"})


def read_columns(path: Path, columns: tuple[str, ...], faults: list[Problem]) -> list[tuple[str | float, ...]]:
    """The rows of a CSV file, each value of its column's type.

    Args:
        path: the file.
        columns: the columns wanted, in the order of the result; others are passed over.
        faults: what is wrong goes here; a row with a fault is left out.
    """
    reader = csv.reader(io.StringIO(read_text(path, "file of profiles", max_bytes=MAX_BYTES)))
    try:
        lines = list(reader)
    except csv.Error as error:
        raise InputError(
            what=f"{str(path)!r} is not CSV: {error}", fix="save it as comma-separated text", code="MW202"
        ) from None
    header = [name.strip() for name in lines[0]]
    missing = [name for name in columns if name not in header]
    for name in missing:
        close = nearest(name, [column for column in header if column not in columns], 1)
        faults.append(
            Problem(
                what=f"{path.name} has no column {name}",
                why=f"it needs {', '.join(columns)}",
                fix=f"did you mean {close[0]}?" if close else f"add the column {name}",
                field=f"{path.name}.{name}",
            )
        )
    if missing:
        return []
    places = [header.index(name) for name in columns]
    rows: list[tuple[str | float, ...]] = []
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        values = [
            _value(name, line[place] if place < len(line) else "", f"{path.name} line {number}", faults)
            for name, place in zip(columns, places, strict=True)
        ]
        if None not in values:
            rows.append(tuple(value for value in values if value is not None))
    if not rows and not faults:
        faults.append(
            Problem(what=f"{path.name} holds no row", why="it ends after its header", fix="", field=path.name)
        )
    return rows


def _value(name: str, text: str, where: str, faults: list[Problem]) -> str | float | None:
    text = text.strip()
    rule, value = _checked(name, text)
    if rule:
        faults.append(Problem(what=f"{where}: {name} is {text[:40]!r}", why=rule, fix="correct the value", field=name))
        return None
    return value


def _checked(name: str, text: str) -> tuple[str, str | float]:
    """The rule a value breaks, empty where none, and the value."""
    if name in _TEXT:
        return ("" if text or name in _MAY_BE_BLANK else "must not be blank"), text
    try:
        number = float(text)
    except ValueError:
        return "must be a number", text
    if not math.isfinite(number):
        return "must be finite", text
    if name in _WHOLE:
        least = 1 if name in _FROM_ONE else 0
        whole = number == int(number) and number >= least
        return ("" if whole else f"must be a whole number from {least} on"), int(number)
    return ("cannot be negative" if number < 0 and name not in _SIGNED else ""), number


def links_of(rows: Iterable[tuple[str | float, ...]], faults: list[Problem]) -> dict[Route, LinkFit]:
    """The fits of a network file; a route given twice with other numbers is a fault."""
    found: dict[Route, LinkFit] = {}
    for row in rows:
        kind, source, source_n, target, target_n, source_zone, target_zone, c2, c1, c0, top = row
        route = Route(
            str(kind),
            End(str(source), int(source_n), str(source_zone)),
            End(str(target), int(target_n), str(target_zone)),
        )
        if route.kind not in KINDS:
            close = nearest(route.kind, KINDS, 1)
            fix = f"did you mean {close[0]}?" if close else f"known: {', '.join(KINDS)}"
            faults.append(Problem(what=f"network: kind {route.kind[:40]!r}", why="unknown kind", fix=fix, field="kind"))
            continue
        fit = LinkFit(c2=float(c2), c1=float(c1), c0=float(c0), max_gb_s=float(top))
        if not 0 < fit.max_gb_s <= MOST_GB_S:
            why = f"a link has more than 0 and at most {MOST_GB_S:g}"
            what = f"network: {_said(route)} has max_GBps {fit.max_gb_s:g}"
            faults.append(Problem(what=what, why=why, fix="drop the row, or measure it again", field="max_GBps"))
        if found.setdefault(route, fit) != fit:
            faults.append(
                Problem(what=f"network: {_said(route)} twice", why="with two fits", fix="keep one", field="kind")
            )
    return found


def _said(route: Route) -> str:
    source, target = route.source, route.target
    return (
        f"{route.kind} {source.device} ({source.per_node} per node, {source.zone or 'no zone'}) to "
        f"{target.device} ({target.per_node} per node, {target.zone or 'no zone'})"
    )


def raise_all(faults: list[Problem], code: str = "MW260") -> None:
    """Raise what was found, the first `MAX_PROBLEMS` of it.

    Raises:
        InputError: there are faults.
    """
    if not faults:
        return
    more = len(faults) - MAX_PROBLEMS
    kept = faults[:MAX_PROBLEMS]
    raise InputError([*kept, Problem(what=f"and {more} more")] if more > 0 else kept, code=code)


def group_rows(
    rows: Iterable[tuple[str | float, ...]], keys: int
) -> Mapping[tuple[str | float, ...], dict[int, tuple[float, ...]]]:
    """Rows by their first `keys` columns, then by layer, the column after them."""
    grouped: dict[tuple[str | float, ...], dict[int, tuple[float, ...]]] = {}
    for row in rows:
        grouped.setdefault(row[:keys], {})[int(row[keys])] = tuple(float(value) for value in row[keys + 1 :])
    return grouped
