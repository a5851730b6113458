"""A cluster as a cluster file to edit: what is known as keys, what is taken from the library as comments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from meshwright.formats.cluster import UNKNOWN_NODE
from meshwright.formats.clusters.base import Description
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.units import GIGA, MICRO


def cluster_file(description: Description, cluster: ClusterSpec) -> str:
    """The text of a cluster file.

    Args:
        description: the description as read.
        cluster: made of it.

    Returns:
        TOML that gives the same cluster; removing the `#` before a key states what was assumed.
    """
    lines = [f"# {cluster.devices:,} devices, read from: {description.kind}"]
    lines += [f"# {note}" for note in description.notes]
    top = ("name", "pue", "carbon_kg_per_kwh")
    lines += _keys({key: description.table[key] for key in top if key in description.table})
    for table, group in zip(description.table["group"], cluster.groups, strict=True):
        keys = {"name": group.name, **table}
        lines += ["", "[[group]]", *_keys(keys), *_assumed(keys, group)]
    for link in description.table.get("link", []):
        lines += ["", "[[link]]", *_keys(link)]
    stated = {frozenset(link["between"]) for link in description.table.get("link", [])}
    zone = {group.name: group.zone for group in cluster.groups}
    for found in cluster.links:
        ends = frozenset(found.between)
        if found.basis == "assumed" and ends not in stated and frozenset(map(zone.get, ends)) not in stated:
            keys = {"between": list(found.between), "gb_s": found.bandwidth_bytes_per_s / GIGA}
            if found.efficiency is not None:  # of one host, which a file does not say in another way
                keys |= {"efficiency": found.efficiency, "latency_us": found.latency_s / MICRO, "basis": "assumed"}
                lines += ["", "[[link]]", *_keys(keys)]
                continue
            lines += ["", "# [[link]]", *(f"# {line}" for line in _keys(keys)), "# # the slower of both fabrics"]
    return "\n".join(lines) + "\n"


def _keys(table: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {_value(value)}" for name, value in table.items()]


def _value(value: Any) -> str:
    """A value of TOML; its text has the escapes of JSON."""
    if isinstance(value, float):
        return f"{value:.12g}"
    return json.dumps(value, ensure_ascii=False)


def _assumed(keys: Mapping[str, Any], group: NodeGroup) -> list[str]:
    """Keys that were not said, at the values they count with."""
    usual = group.device.node or UNKNOWN_NODE
    by_name = {domain.name: domain for domain in reversed(group.domains)}
    found: dict[str, float | int] = {}
    for key, name in (
        ("intra_gb_s", usual.scaleup_name),
        ("host_gb_s", usual.host_name),
        ("inter_gb_s", usual.fabric_name),
    ):
        if name in by_name and by_name[name].size > 1:
            found.setdefault(key, by_name[name].bandwidth_bytes_per_s / GIGA)
    if usual.fabric_name in by_name:
        found["latency_us"] = by_name[usual.fabric_name].latency_s / MICRO
    return [f"# {name} = {_value(value)}" for name, value in found.items() if name not in keys]
