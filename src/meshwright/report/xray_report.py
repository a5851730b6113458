"""What one rank of a framework does, ours beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from meshwright.report.check_report import plan_as_read
from meshwright.report.parts import Hanging, bullet, columns, heading, plain_row, warning
from meshwright.report.words.xray import amount
from meshwright.units import gib, seconds

MOST = 12
"""Kinds of operators other than products that are listed."""


def render_xray(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.xray/1`.

    Args:
        document: the answer as data.
    """
    parts: list[RenderableType] = [
        *plan_as_read(document["read"], document["title"]),
        Hanging(document["text"], lead=""),
    ]
    parts += [warning(text) for text in document["warnings"]]
    parts += [heading("Products"), _products(document)]
    if document["collectives"]:
        parts += [heading("Collectives"), _collectives(document)]
    parts += [heading("Other operators"), _others(document)]
    parts += [heading("Live bytes at the peak"), _memory(document)]
    parts += [heading("Peak by moment"), _moments(document)]
    if document["differences"]:
        parts += [heading("Where they differ"), *(bullet(text) for text in document["differences"])]
    if document["substitutes"]:
        parts += [
            heading("Replacements for code that needs a GPU"),
            *(bullet(text) for text in document["substitutes"]),
        ]
    parts += [warning(text) for text in document["notes"]]
    return Group(*parts)


def _products(document: Mapping[str, Any]) -> RenderableType:
    table = columns("result", "over", "at once", "phase", "seen", "ours", "time", left=("phase",))
    for row in document["products"]:
        low, high = row["result"]
        time_s = row["seconds"]
        shown = "" if time_s is None else seconds(time_s)
        cells = (f"{low} x {high}", str(row["inner"]), str(row["groups"]), row["phase"])
        plain_row(table, *cells, f"{row['seen']:,}", f"{row['ours']:,}", shown)
    return table


def _collectives(document: Mapping[str, Any]) -> RenderableType:
    table = columns("kind", "over", "phase", "bytes", "seen", "ours", left=("kind", "over", "phase"))
    for row in document["collectives"]:
        kind, over = row["kind"].replace("_", "-"), f"{row['group']} {row['ranks']}"
        ours = amount(row["ours_bytes"]) if row["ours"] is None else f"{row['ours']:,}"
        plain_row(table, kind, over, row["phase"], amount(row["payload_bytes"]), f"{row['seen']:,}", ours)
    return table


def _others(document: Mapping[str, Any]) -> RenderableType:
    counts: Counter[tuple[str, str]] = Counter()
    for one in document["operators"]:
        if one["name"] != "gemm":
            counts[(one["name"], one["phase"])] += one["count"]
    table = columns("operator", "phase", "seen", left=("operator", "phase"))
    for (name, phase), count in counts.most_common(MOST):
        plain_row(table, name, phase, f"{count:,}")
    rest = sum(count for _, count in counts.most_common()[MOST:])
    if rest:
        plain_row(table, f"{len(counts) - MOST} more kinds", "", f"{rest:,}")
    return table


def _memory(document: Mapping[str, Any]) -> RenderableType:
    table = columns("", "seen", "ours", left=("",))
    for row in document["memory"]:
        plain_row(table, row["kind"], amount(row["seen_bytes"]), amount(row["ours_bytes"]))
    whole = [sum(row[side] for row in document["memory"]) for side in ("seen_bytes", "ours_bytes")]
    plain_row(table, "all", *(gib(size) for size in whole))
    return table


def _moments(document: Mapping[str, Any]) -> RenderableType:
    table = columns("moment", "live", left=("moment",))
    for one in document["moments"]:
        plain_row(table, one["name"], gib(one["live_bytes"]))
    return table
