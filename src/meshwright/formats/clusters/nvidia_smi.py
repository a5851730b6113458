"""`nvidia-smi -L`, its CSV and its table: the devices of one node, or of several printed one after the other.

    GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-...)

    index, name, memory.total [MiB]
    0, NVIDIA H100 80GB HBM3, 81559 MiB

Numbers that start again begin a node, as do names of nodes before the lines, as `clush` and `srun --label` print them.
`# nodes = N` repeats the node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from meshwright.formats.cluster import Refusals, links_in_host
from meshwright.formats.clusters import nvidia_topo
from meshwright.formats.clusters.base import (
    CODE,
    ClusterNode,
    ClusterText,
    Description,
    DeviceNames,
    Format,
    directives,
    listed,
    node_groups,
    whole_directive,
)
from meshwright.specs.cluster import MAX_DEVICES
from meshwright.specs.device import DeviceSpec
from meshwright.units import GIGA, MEGA

_LABEL = r"^(?:(?P<node>[A-Za-z0-9][\w.-]*): )?"
_LISTED = re.compile(_LABEL + r"GPU (?P<index>\d{1,4}): (?P<name>.{1,80}?) \(UUID", re.M)
_PRINTED = re.compile(
    _LABEL + r"\| +(?P<index>\d{1,4}) +(?P<name>\S.{0,60}?) +(?:On|Off|N/A) +\| +[0-9A-Fa-f]{4,8}:", re.M
)
_HEADER = re.compile(_LABEL + r"(?:[a-z_.]+(?: \[\w+\])?, *)*name(?:, *[a-z_.]+(?: \[\w+\])?)* *$", re.M)
_SLICE = re.compile(r"^(?:[\w.-]+: )? +MIG \S+ +Device", re.M)


@dataclass(slots=True)
class _Node:
    """Names of one node's devices by their number."""

    name: str
    names: dict[int, str] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)
    """Numbers of the devices in MIG slices."""


def _holds(text: str) -> bool:
    """Whether there is a device as any of the three forms prints it, and no matrix, which says more."""
    found = any(form.search(text) is not None for form in (_LISTED, _PRINTED, _HEADER))
    return found and not nvidia_topo.FORMAT.holds(text)


def _read(request: ClusterText) -> Description:
    """The nodes of one or several outputs.

    Raises:
        InputError: no whole device is listed, or a directive is wrong.
        UnsupportedError: unknown devices and nothing else wrong.
    """
    said, wrong, devices = directives(request.text), Refusals(CODE), DeviceNames(request.lookup)
    copies, found = whole_directive(said, "nodes", wrong), _nodes(request.text)
    if copies is not None and (len(found) > 1 or copies > MAX_DEVICES):
        what = f"# nodes = {copies:,} beside {len(found)} nodes" if len(found) > 1 else f"# nodes = {copies:,}"
        why = f"it repeats one node, and at most {MAX_DEVICES:,} devices can be planned"
        wrong.add(what, why, "remove the line, or list one node", name="nodes")
    nodes: list[ClusterNode] = []
    mixed, slices = [], 0
    for node in found:
        slices += len(node.cut)
        kinds = Counter(name for index, name in node.names.items() if index not in node.cut)
        mixed += [node.name] if len(kinds) > 1 else []
        for name, count in kinds.items():
            device = devices.find(name, node.name)
            if device is not None:
                nodes.append(ClusterNode(name=node.name, device=device.name, devices=count))
    devices.refuse(wrong)
    if not nodes and not wrong:
        why = f"{slices} are in MIG slices, which train nothing together" if slices else "no line names one"
        wrong.add("no whole device is listed", why, "copy the whole output of nvidia-smi -L", name="device")
    if wrong:
        wrong.done()
    notes = [f"left out: {slices} device{'s' if slices > 1 else ''} in MIG slices"] if slices else []
    table: dict[str, Any] = {"group": node_groups(nodes * (copies or 1))}
    if mixed and len(found) == 1 and not copies:
        table["link"] = list(_in_one_host([request.lookup(node.device) for node in nodes]))
        notes.append("unlike devices of one host reach each other through it")
    elif mixed:
        notes.append(f"{listed(mixed)} hold several kinds of device: each kind is planned as nodes of its own")
    notes.append("nvidia-smi lists devices alone: links and hosts are the devices' usual ones")
    return Description(kind=FORMAT.name, table=table, notes=tuple(notes))


def _in_one_host(devices: list[DeviceSpec]) -> Iterator[dict[str, Any]]:
    """Links between kinds of device of one host, at the slower slot of both."""
    for link in links_in_host([(device.name, device) for device in devices]):
        speed = {"gb_s": link.bandwidth_bytes_per_s / GIGA, "latency_us": link.latency_s * MEGA}
        yield {"between": list(link.between), **speed, "efficiency": link.efficiency, "basis": "assumed"}


def _nodes(text: str) -> list[_Node]:
    """Devices by node, of the first form that lists any."""
    for rows in (_matched(_LISTED, text), _matched(_PRINTED, text), _of_csv(text)):
        nodes: list[_Node] = []
        for label, index, name in rows:
            if index < 0:
                if nodes and nodes[-1].names:
                    nodes[-1].cut.add(max(nodes[-1].names))
                continue
            named = next((node for node in nodes if label and node.name == label), None)
            if named is None and (not nodes or label or index in nodes[-1].names or index < max(nodes[-1].names)):
                named = _Node(name=label or f"node{len(nodes) + 1}")
                nodes.append(named)
            (named or nodes[-1]).names[index] = name
        if nodes:
            return nodes
    return []


def _matched(form: re.Pattern[str], text: str) -> list[tuple[str, int, str]]:
    """Node, number and name of each device in order; a slice of the one before has the number -1."""
    found = [(one.start(), one["node"] or "", int(one["index"]), one["name"]) for one in form.finditer(text)]
    found += [(one.start(), "", -1, "") for one in _SLICE.finditer(text)]
    return [(label, index, name) for _, label, index, name in sorted(found)]


def _of_csv(text: str) -> list[tuple[str, int, str]]:
    """The same of `nvidia-smi --query-gpu=...,name,... --format=csv`; lines without a number count up."""
    rows: list[tuple[str, int, str]] = []
    columns: list[str] = []
    count = 0
    for line in text.splitlines():
        label, _, rest = line.partition(": ") if re.match(r"[\w.-]+: ", line) else ("", "", line)
        cells = [cell.strip() for cell in rest.split(",")]
        if _HEADER.match(line):
            columns, count = [cell.split(" [")[0] for cell in cells], 0
        elif columns and len(cells) == len(columns):
            at = dict(zip(columns, cells, strict=True))
            index = at.get("index", "")
            number = int(index) if index.isdecimal() and len(index) < 5 else count
            rows.append((label, number, at["name"]))
            count += 1
    return rows


FORMAT = Format(name="nvidia-smi -L", holds=_holds, read=_read)
