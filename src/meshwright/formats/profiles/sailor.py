"""The files Sailor's tools write, as they lie in its folders (github.com/eth-easl/sailor, MIT).

profile.json       <model>/<gpu>/profile.json: {mbs: {tp: {layer: [forward s, backward s, update s]}}}
profiles_tmp.json  the same for all: {model: {gpu: {mbs: ...}}}
llm_info.json      {model: {tp: {layer: {params_floats, act_input_floats, act_output_floats, act_mem_floats}}}}
multizone_bandwidths_het.json  {zone: {gpu: {n: {zone: {gpu: {n: [[c2, c1, c0], max bytes/s]}}}}}}
intra_node_bandwidths.json     {gpu: {n: [[c2, c1, c0], max bytes/s]}}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from meshwright.errors import Problem
from meshwright.formats.profiles.json_values import items, number_list, read_json, whole_number
from meshwright.formats.profiles.profile_set import End, LinkFit, Point, Route
from meshwright.units import GIGA, MILLI

SIZES = "llm_info.json"
ALL_TIMES = "profiles_tmp.json"
TIMES = "profile.json"
BETWEEN = "multizone_bandwidths_het.json"
INSIDE = "intra_node_bandwidths.json"

_ELEMENTS = ("params_floats", "act_input_floats", "act_output_floats", "act_mem_floats")

Times = dict[str, dict[Point, dict[int, tuple[float, ...]]]]
Sizes = dict[str, dict[int, dict[int, tuple[float, ...]]]]


def has_sailor_files(folder: Path) -> bool:
    """Whether a folder is one of Sailor's: it holds the sizes of its models."""
    return any(folder.rglob(SIZES))


def read_sailor(folder: Path, faults: list[Problem]) -> tuple[Times, Sizes, dict[Route, LinkFit]]:
    """Times, sizes and links of a folder; `profiles_tmp.json` where it is there, else each `profile.json`.

    Args:
        folder: any folder above the files.
        faults: what is wrong goes here.
    """
    times: Times = {}
    together = sorted(folder.rglob(ALL_TIMES))
    for path in together:
        for model, devices in items(read_json(path, faults), str(path), faults):
            for device, table in items(devices, f"{path}: {model}", faults):
                _add_times(times.setdefault(model, {}), device, table, f"{path}: {model} {device}", faults)
    for path in [] if together else sorted(folder.rglob(TIMES)):
        model, device = path.parent.parent.name, path.parent.name
        _add_times(times.setdefault(model, {}), device, read_json(path, faults), str(path), faults)
    sizes: Sizes = {}
    for path in sorted(folder.rglob(SIZES)):
        for model, degrees in items(read_json(path, faults), str(path), faults):
            for tp, layers in items(degrees, f"{path}: {model}", faults):
                found = sizes.setdefault(model, {}).setdefault(whole_number(tp, str(path), faults), {})
                for layer, row in items(layers, f"{path}: {model} tp {tp}", faults):
                    where = f"{path}: {model} tp {tp} layer {layer}"
                    values = [row.get(name) for name in _ELEMENTS] if isinstance(row, dict) else []
                    numbers = number_list(values, 4, where, faults)
                    if numbers:
                        found[whole_number(layer, where, faults)] = numbers
    return times, sizes, _links(folder, faults)


def _add_times(
    points: dict[Point, dict[int, tuple[float, ...]]], device: str, table: object, where: str, faults: list[Problem]
) -> None:
    for micro_batch, degrees in items(table, where, faults):
        for tp, layers in items(degrees, f"{where} mbs {micro_batch}", faults):
            point = Point(device, whole_number(tp, where, faults), whole_number(micro_batch, where, faults))
            for layer, row in items(layers, f"{where} mbs {micro_batch} tp {tp}", faults):
                numbers = number_list(row, 3, f"{where} mbs {micro_batch} tp {tp} layer {layer}", faults)
                if numbers:
                    in_ms = tuple(number / MILLI for number in numbers)
                    points.setdefault(point, {})[whole_number(layer, where, faults)] = in_ms


def _links(folder: Path, faults: list[Problem]) -> dict[Route, LinkFit]:
    links: dict[Route, LinkFit] = {}
    for path in sorted(folder.rglob(INSIDE)):
        for device, counts in items(read_json(path, faults), str(path), faults):
            for count, fit in items(counts, f"{path}: {device}", faults):
                end = End(device, whole_number(count, str(path), faults), "")
                _add_link(links, Route("intra_node", end, end), fit, f"{path}: {device}", faults)
    for path in sorted(folder.rglob(BETWEEN)):
        for source, rest in _ends(read_json(path, faults), str(path), faults):
            for target, fit in _ends(rest, f"{path}: {source.zone} {source.device}", faults):
                where = f"{path}: {source.device} to {target.device}"
                _add_link(links, Route("inter_node_het", source, target), fit, where, faults)
    return links


def _ends(data: object, where: str, faults: list[Problem]) -> Iterator[tuple[End, object]]:
    for zone, devices in items(data, where, faults):
        for device, counts in items(devices, f"{where} {zone}", faults):
            for count, rest in items(counts, f"{where} {zone} {device}", faults):
                yield End(device, whole_number(count, where, faults), zone), rest


def _add_link(links: dict[Route, LinkFit], route: Route, fit: object, where: str, faults: list[Problem]) -> None:
    parts = fit if isinstance(fit, list) and len(fit) == 2 else [None, None]
    curve = number_list(parts[0], 3, where, faults)
    top = number_list([parts[1]], 1, where, faults)
    if curve and top:
        links[route] = LinkFit(c2=curve[0], c1=curve[1], c0=curve[2], max_gb_s=top[0] / GIGA)
