"""Slurm's nodes: `scontrol show node`, in records or one line each, and `sinfo -o "%N %G %T"` with any columns.

    NodeName=gpu01 ... ActiveFeatures=a100-80 Gres=gpu:a100:8(S:0-1) State=IDLE

Kinds of device are the types of generic resources. A type that Slurm does not know (`gpu:8`) is looked for among the
node's features.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from meshwright.errors import MeshwrightError
from meshwright.formats.cluster import Refusals
from meshwright.formats.clusters.base import (
    CODE,
    ClusterNode,
    ClusterText,
    Description,
    DeviceNames,
    Format,
    counted,
    data_lines,
    listed,
    node_groups,
)
from meshwright.specs.device import DeviceSpec

MAX_HOSTS = 200_000
_ITEM = re.compile(r"(?:[^,\[]|\[[^\]]*\]?)+")
"""An item between commas that stand in no brackets."""


def hosts(text: str) -> list[str]:
    """All hosts of a list, in order.

    Raises:
        ValueError: a range that is none, or more than `MAX_HOSTS`.
    """
    found: list[str] = []
    for item in _ITEM.findall(text.strip()):
        parts = re.split(r"\[([^\]]*)\]", item)
        # Every second part stood in brackets.
        choices = [_ranges(part) if index % 2 else [part] for index, part in enumerate(parts)]
        found += itertools.islice(map("".join, itertools.product(*choices)), MAX_HOSTS + 1)
        if len(found) > MAX_HOSTS:
            raise ValueError(f"more than {MAX_HOSTS:,} hosts")
    return found


def _ranges(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        if match is None:
            raise ValueError(f"{part[:20]!r} is no range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last <= first + MAX_HOSTS:
            raise ValueError(f"{part[:20]!r} is no range of numbers")
        width = len(match[1])
        numbers += [f"{number:0{width}d}" for number in range(first, last + 1)]
    return numbers


_GPU = re.compile(r"gpu:(?:([^:,()\s]{1,80}):)?(\d{1,6})(?:\([^)]{0,200}\))?")
_TRES = re.compile(r"gres/gpu(?::([^=,\s]{1,80}))?=(\d{1,6})")
_GONE = (
    *("DOWN", "DRAIN", "DRAINED", "DRAINING", "DRNG", "FAIL", "FAILING", "FAILG", "MAINT"),
    *("FUTURE", "FUTR", "UNKNOWN", "UNK", "NOT_RESPONDING", "INVAL"),
)
"""States, long and short, of nodes on which no job can start; a `*` behind a state says that a node does not respond.
Nodes that are switched off until a job wants them (POWERED_DOWN) can be used. Source: man sinfo, NODE STATE CODES."""
_COLUMNS = {
    "nodelist": "nodes", "hostnames": "nodes", "nodes": "count", "gres": "gres", "state": "state", "statelong": "state",
    "avail_features": "features", "active_features": "features", "features": "features",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """Nodes that Slurm describes together."""

    names: tuple[str, ...]
    gpus: tuple[tuple[str, int], ...]
    """Type, empty where Slurm does not say, and number."""
    state: str
    features: tuple[str, ...]


def holds_records(text: str) -> bool:
    """Whether `scontrol show node` printed it."""
    return re.search(r"^\s*NodeName=\S+\s", text, re.M) is not None


def holds_table(text: str) -> bool:
    """Whether `sinfo` printed it: a header with its words."""
    header = _header(text)
    return "nodes" in header.values() and len(header) >= 2


def read_records(request: ClusterText) -> Description:
    """The nodes of `scontrol show node`.

    Raises:
        InputError: no node has a device, or what it has is not said; all problems together.
        UnsupportedError: unknown devices and nothing else wrong.
    """
    texts = re.split(r"(?=^\s*NodeName=)", request.text, flags=re.M)
    records = []
    for text in texts:
        fields: dict[str, str] = dict(re.findall(r"(\w+)=(\S*)", text))
        if "NodeName" not in fields:
            continue
        gpus = _gpus(_GPU, fields.get("Gres", ""))
        # The trackable resources know the type where the generic ones do not.
        typed = [one for one in _gpus(_TRES, fields.get("CfgTRES", "")) if one[0]]
        if typed and not all(kind for kind, _ in gpus):
            gpus = typed
        records.append(
            _Record(
                names=(fields["NodeName"],),
                gpus=tuple(gpus),
                state=fields.get("State", ""),
                features=tuple(fields.get("ActiveFeatures", fields.get("AvailableFeatures", "")).split(",")),
            )
        )
    return _description(records, SCONTROL.name, request, Refusals(CODE))


def read_slurm_table(request: ClusterText) -> Description:
    """The nodes of `sinfo`.

    Raises:
        InputError: a column that is needed is not there, a list of nodes cannot be read, or as `read_records`.
        UnsupportedError: unknown devices and nothing else wrong.
    """
    wrong = Refusals(CODE)
    header = _header(request.text)
    if "gres" not in header.values():
        fix = 'ask for it: sinfo -o "%N %G %T %f"'
        wrong.add("the table of sinfo has no column GRES", "it says which devices a node has", fix, name="GRES")
        wrong.done()
    records = []
    for line in data_lines(request.text)[1:]:
        words = line.split()
        cells = {word: words[place] for place, word in header.items() if place < len(words)}
        try:
            names = tuple(hosts(cells.get("nodes", "")))
        except ValueError as error:
            wrong.add(f"NODELIST {cells.get('nodes', '')[:40]!r}", str(error), "", name="NODELIST")
            continue
        features = tuple(cells.get("features", "").split(","))
        gpus = tuple(_gpus(_GPU, cells.get("gres", "")))
        records.append(_Record(names=names, gpus=gpus, state=cells.get("state", ""), features=features))
    return _description(records, SINFO.name, request, wrong)


def _header(text: str) -> Mapping[int, str]:
    """Places of the known columns; empty where the first line is no header of sinfo."""
    lines = data_lines(text)
    words = lines[0].split() if lines else []
    return {i: _COLUMNS[word.lower()] for i, word in enumerate(words) if word.isupper() and word.lower() in _COLUMNS}


def _gpus(pattern: re.Pattern[str], text: str) -> list[tuple[str, int]]:
    return [(kind or "", int(number)) for kind, number in pattern.findall(text) if int(number)]


def _description(records: Iterable[_Record], kind: str, request: ClusterText, wrong: Refusals) -> Description:
    devices = DeviceNames(request.lookup)
    nodes: list[ClusterNode] = []
    seen: set[str] = set()
    gone, bare, untyped, mixed = Counter[str](), 0, [], []
    for record in records:
        # Partitions share nodes, and sinfo lists a node once for each.
        names = [name for name in record.names if name not in seen]
        seen.update(names)
        if not record.gpus or not names:
            bare += len(names)
            continue
        words = re.split(r"[+~#!%$@^-]", record.state.upper())
        if any(word.endswith("*") or word in _GONE for word in words):
            gone[record.state.lower()] += len(names)
            continue
        if len(record.gpus) > 1:
            mixed += names
        for name, number in record.gpus:
            device = devices.find(name, listed(names)) if name else _by_feature(record.features, request)
            if device is None and not name:
                untyped += names
            elif device is not None:
                nodes += [ClusterNode(name=one, device=device.name, devices=number) for one in names]
    if untyped:
        fix = "write the type into the file: gpu:h100:8, or a feature such as h100"
        wrong.add(
            f"{listed(untyped)}: Slurm does not say which GPU", "its resource is gpu without a type", fix, name="Gres"
        )
    devices.refuse(wrong)
    if not nodes and not wrong:
        shut = f"; not usable: {counted(gone)}" if gone else ""
        wrong.add("no node has a usable GPU", f"{bare} nodes without a gpu in Gres{shut}", "", name="Gres")
    if wrong:
        wrong.done()
    notes = [f"left out: {counted(gone)}"] if gone else []
    notes += (
        [f"{listed(mixed)} hold several kinds of device: each kind is planned as nodes of its own"] if mixed else []
    )
    notes.append("Slurm does not say the speed of links: node and fabric are the devices' usual ones")
    return Description(kind=kind, table={"group": node_groups(nodes)}, notes=tuple(notes))


def _by_feature(features: Iterable[str], request: ClusterText) -> DeviceSpec | None:
    for feature in filter(None, features):
        try:
            return request.lookup(feature)
        except MeshwrightError:
            continue
    return None


SCONTROL = Format(name="scontrol show node", holds=holds_records, read=read_records)
SINFO = Format(name="sinfo", holds=holds_table, read=read_slurm_table)
