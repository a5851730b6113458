"""Which nodes hold which stages: one letter per node and pipeline, and the stages in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from rich.text import Text

MOST_PLACES = 12
"""Runs of stages of a group that are named."""
MOST_CELLS = 64
"""Nodes of a group that get a cell each; of more, a cell stands for several."""
STYLES = ("cyan", "green", "magenta", "yellow", "blue", "red")
IDLE = "."


def cluster_map(groups: Sequence[Mapping[str, Any]], places: Sequence[Mapping[str, Any]]) -> list[Text]:
    """Lines of the map.

    Args:
        groups: the groups of the cluster, as a plan set describes them.
        places: runs of stages with the nodes that hold them, as `mixing.map` has them.
    """
    lines = []
    width = max(len(str(group["name"])) for group in groups)
    for group in groups:
        here = [place for place in places if place["group"] == group["name"]]
        line = Text.assemble(f"  {group['name']:<{width}}  ", _cells(int(group["nodes"]), here))
        noun = "node" if group["nodes"] == 1 else "nodes"
        line.append(f"  {group['nodes']:,} {noun} of {group['devices_per_node']}", style="dim")
        line.no_wrap, line.overflow = True, "ellipsis"
        lines.append(line)
        texts = [_place_text(place) for place in here[:MOST_PLACES]]
        texts += [f"... {len(here) - MOST_PLACES} more runs of stages"] if len(here) > MOST_PLACES else []
        lines += [Text(f"  {'':<{width}}  {text}", no_wrap=True, overflow="ellipsis") for text in texts]
    return lines


def _cells(nodes: int, places: Sequence[Mapping[str, Any]]) -> Text:
    """One letter per node: the pipeline it works for, or a dot."""
    each = -(-nodes // MOST_CELLS)
    cells = Text()
    for node in range(0, nodes, each):
        holder = next((p for p in places if p["nodes"][0] < node + each and node <= p["nodes"][1]), None)
        if holder is None:
            cells.append(IDLE, style="dim")
        else:
            number = int(holder["pipeline"])
            cells.append(ascii_uppercase[number % 26], style=STYLES[number % len(STYLES)])
    return cells


def _place_text(place: Mapping[str, Any]) -> str:
    letter = ascii_uppercase[int(place["pipeline"]) % 26]
    return (
        f"{letter} {_range('node', place['nodes'])}: pipeline {place['pipeline']} {_range('stage', place['stages'])}, "
        f"{place['layers']} layers"
    )


def _range(noun: str, ends: Sequence[int]) -> str:
    first, last = ends
    return f"{noun} {first}" if first == last else f"{noun}s {first}-{last}"
