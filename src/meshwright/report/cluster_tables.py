"""A cluster as it was understood, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.report.parts import columns, plain_row
from meshwright.units import GIGA, gib, significant


def cluster_card(card: Mapping[str, Any]) -> RenderableType:
    """The `clusters show` page.

    Args:
        card: a `meshwright.cluster/1`.
    """
    parts: list[RenderableType] = [
        Text(f"{card['name']}: {card['devices']:,} devices, read from: {card['kind']}"),
        Text(),
        _groups(card["groups"]),
    ]
    if card["links"]:
        parts += [Text(), _links(card["links"])]
    parts += [Text(), *_islands(card)]
    if len(card["granularities"]) > 1:
        parts += [Text(), _granularities(card["granularities"])]
    lines = [*card["notes"], *(f"{one['name']}: {one['value']} ({one['basis']})" for one in card["assumptions"])]
    if lines:
        parts += [Text(), Text("assumed", style="bold"), *(Text(f"  {line}") for line in lines)]
    return Group(*parts)


def _groups(groups: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = _table("group", "device", "nodes", "per node", "memory", "links, GB/s per device and direction")
    for group in groups:
        plain_row(
            table,
            group["name"],
            group["device"],
            f"{group['nodes']:,}",
            str(group["devices_per_node"]),
            gib(group["memory_bytes"]),
            _domains(group["domains"]),
        )
    return table


def _links(links: Sequence[Mapping[str, Any]]) -> RenderableType:
    priced = any(link["price_per_gb"] for link in links)
    table = _table("between", "", "GB/s", "basis", *(["USD per GB"] if priced else []))
    for link in links:
        speed = significant(link["bandwidth_bytes_per_s"] / GIGA)
        price = [f"{link['price_per_gb']:g}"] if priced else []
        plain_row(table, *link["between"], speed, link["basis"], *price)
    return table


def _islands(card: Mapping[str, Any]) -> list[RenderableType]:
    islands, tolerance = card["islands"], card["tolerance"]
    noun = "island" if len(islands) == 1 else "islands"
    table = _table("island", "devices", "counts as", "apart")
    for island in islands:
        seen = island["counts_as"]
        how = _domains(seen["domains"]) if island["devices"] > 1 else "a device alone"
        plain_row(
            table,
            " + ".join(island["groups"]),
            f"{island['devices']:,}",
            f"{seen['device']} of {gib(seen['memory_bytes'])}, {how}",
            f"{100 * island['apart']:.3g}%" if len(island["groups"]) > 1 else "",
        )
    return [Text(f"{len(islands)} {noun}: devices equal within {100 * tolerance:.3g}%", style="bold"), table]


def _granularities(ways: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = _table("seen as", "islands", "devices of each")
    for way in ways:
        tolerance = way["tolerance"]
        within = "equal" if tolerance == 0 else f"alike within {100 * (tolerance or 0):.3g}%"
        name = "inner domains" if tolerance is None else within
        plain_row(table, name, f"{way['islands']:,}", ", ".join(way["of"]))
    return table


def _domains(domains: Sequence[Mapping[str, Any]]) -> str:
    """`NVLink4 450 over 8, InfiniBand NDR 50 over 64`."""
    return ", ".join(
        f"{one['name']} {significant(one['bandwidth_bytes_per_s'] / GIGA)} over {one['size']:,}"
        for one in domains
        if one["size"] > 1
    )


def _table(*names: str) -> Table:
    numbers = ("nodes", "per node", "GB/s", "devices", "islands", "apart", "USD per GB")
    return columns(*names, fold=[name for name in names if name not in numbers])
