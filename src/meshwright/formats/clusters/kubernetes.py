"""`kubectl get nodes -o json`: devices from the labels of the vendors' feature discovery, zones from topology labels.

Nodes without devices, and those that take no pods or are not ready, are left out and counted. A clique of NVIDIA's
feature discovery is an NVLink domain of several nodes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from meshwright.errors import InputError
from meshwright.formats.cluster import Refusals
from meshwright.formats.clusters.base import (
    CODE,
    ClusterNode,
    ClusterText,
    Description,
    DeviceNames,
    Format,
    counted,
    listed,
    node_groups,
)
from meshwright.specs.device import DeviceSpec
from meshwright.units import GIB, MIB

_PRODUCTS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
"""Labels that name the device. Sources: NVIDIA GPU Feature Discovery, AMD GPU operator, Google Kubernetes Engine."""
_COUNTS = ("nvidia.com/gpu.count", "amd.com/gpu.count", "cloud.google.com/gke-accelerator-count")
_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu")
_MEMORY = "nvidia.com/gpu.memory"
"""Label of the memory in MiB."""
_ZONES = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_CLIQUE = "nvidia.com/gpu.clique"
_SHARED = re.compile(r"-SHARED$")
_OTHER_MEMORY = 0.04
"""How far a node's memory may be from the library's to be the same device: drivers keep a little."""


def _holds(text: str) -> bool:
    """Whether it is JSON of nodes."""
    return text.lstrip()[:1] == "{" and re.search(r'"kind"\s*:\s*"Node(List)?"', text) is not None


def _read(request: ClusterText) -> Description:
    """The nodes of a list or the one node.

    Raises:
        InputError: no JSON, a node's labels contradict each other, or no node has a device; all problems together.
        UnsupportedError: unknown devices and nothing else wrong.
    """
    wrong, devices = Refusals(CODE), DeviceNames(request.lookup)
    gone, shared, plain, whole = Counter[str](), [], 0, []
    for item in _items(request.text):
        labels = _table(_table(item, "metadata"), "labels")
        name = str(_table(item, "metadata").get("name", "a node without a name"))
        product = next((str(labels[key]) for key in _PRODUCTS if labels.get(key)), None)
        count = _count(item, labels)
        if product is None and not count:
            plain += 1
            continue
        if why := _closed(item):
            gone[why] += 1
            continue
        if product is None or not count:
            missing = _PRODUCTS[0] if product is None else f"{_COUNTS[0]} and no capacity {_RESOURCES[0]}"
            fix = f"kubectl label node {name} {_PRODUCTS[0]}=H100" if product is None else ""
            wrong.add(f"node {name} has no label {missing}", "it says what its devices are", fix, name="labels")
            continue
        if _SHARED.search(product):
            shared.append(name)
        device = devices.find(_SHARED.sub("", product), name)
        if device is not None:
            zone = next((str(labels[key]) for key in _ZONES if labels.get(key)), None)
            whole.append((name, device, count, zone, _memory_gib(labels, device), _clique(labels)))
    if shared:
        why = "a device that pods share is not a device for training"
        wrong.add(f"{listed(shared)}: devices are shared (time slicing)", why, "leave these nodes out", name="labels")
    devices.refuse(wrong)
    if not whole and not wrong:
        shut = f"; left out: {counted(gone)}" if gone else ""
        fix = "install the vendor's feature discovery, which labels them"
        wrong.add("no node has a usable GPU", f"{plain} nodes without a label of one{shut}", fix, name="items")
    if wrong:
        wrong.done()
    cliques = Counter((device.name, clique) for _, device, _, _, _, clique in whole if clique)
    nodes = [
        ClusterNode(
            name=name,
            device=device.name,
            devices=count,
            zone=zone,
            keys=_keys(memory, cliques.get((device.name, clique), 0) * count),
        )
        for name, device, count, zone, memory, clique in whole
    ]
    notes = [f"left out: {counted(gone)}"] if gone else []
    notes.append("Kubernetes does not say the speed of links: node and fabric are the devices' usual ones")
    return Description(kind=FORMAT.name, table={"group": node_groups(nodes)}, notes=tuple(notes))


def _items(text: str) -> list[Mapping[str, Any]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        what, fix = "the list of nodes is not valid JSON", "write it again: kubectl get nodes -o json > nodes.json"
        raise InputError(what=what, why=reason, fix=fix, code="MW202") from None
    items = data.get("items", [data]) if isinstance(data, dict) else []
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _table(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = item.get(key)
    return found if isinstance(found, dict) else {}


def _count(item: Mapping[str, Any], labels: Mapping[str, Any]) -> int:
    """Devices of a node: what can be given to pods, or what the labels count."""
    capacity = _table(_table(item, "status"), "capacity")
    said = [capacity.get(key) for key in _RESOURCES] + [labels.get(key) for key in _COUNTS]
    numbers = [int(str(value)) for value in said if re.fullmatch(r"[0-9]{1,4}", str(value))]
    return next((number for number in numbers if number), 0)


def _memory_gib(labels: Mapping[str, Any], device: DeviceSpec) -> float | None:
    """Memory of the devices where it is not the library's."""
    text = str(labels.get(_MEMORY, ""))
    if not re.fullmatch(r"[0-9]{1,7}", text) or not int(text):
        return None
    stated_bytes = int(text) * MIB
    apart = abs(stated_bytes / device.memory_bytes - 1)
    return round(stated_bytes / GIB, 2) if apart > _OTHER_MEMORY else None


def _clique(labels: Mapping[str, Any]) -> str:
    """The clique, empty where NVLink ends at the node: its cluster has no identity then."""
    clique = str(labels.get(_CLIQUE) or "")
    return clique if re.search(r"[1-9a-f]", clique.rpartition(".")[0].lower()) else ""


def _closed(item: Mapping[str, Any]) -> str:
    """Why a node takes no pods, empty where it does."""
    if _table(item, "spec").get("unschedulable") is True:
        return "cordoned"
    conditions = _table(item, "status").get("conditions")
    ready = (
        [c for c in conditions if isinstance(c, dict) and c.get("type") == "Ready"]
        if isinstance(conditions, list)
        else []
    )
    return "not ready" if ready and ready[0].get("status") != "True" else ""


def _keys(memory_gib: float | None, domain: int) -> tuple[tuple[str, float | int | str], ...]:
    keys: list[tuple[str, float | int | str]] = []
    if memory_gib is not None:
        keys.append(("memory_gib", memory_gib))
    if domain:
        keys.append(("nvlink_domain", domain))
    return tuple(keys)


FORMAT = Format(name="kubectl get nodes -o json", holds=_holds, read=_read)
