"""The files Metis' planner takes, as they lie in its folders (github.com/SamsungLabs/Metis).

DeviceType.<TYPE>_tp<t>_bs<b>.json   one point of one device: forward and backward together per layer, optimizer, memory
clusterfile.json                     {node: {instance_type, inter_bandwidth, intra_bandwidth, memory}}, GB/s and GB

What the files do not tell is derived:

    saved activations   what one more sequence adds to a layer's memory, between the smallest and the largest batch;
                        with one batch, the memory beyond the parameters' state
    boundary            `activation_parameters_bytes` where it is there; else a 17th of what the layers between
                        embedding and head save, since a transformer layer keeps 34 bytes per 2 bytes of its output
    update              of a layer, its part of the optimizer's time by parameters
    link                the lower `inter_bandwidth` of two types, of any payload

Source: the 34 bytes are Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), eq. 2
without attention scores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshwright.errors import Problem
from meshwright.formats.profiles.json_values import items, number_list, read_json
from meshwright.formats.profiles.profile_set import End, LinkFit, Point, Route
from meshwright.formats.profiles.sailor import Sizes, Times
from meshwright.shapes import Float

NAME = re.compile(r"DeviceType\.(?P<device>.+)_tp(?P<tp>\d+)_bs(?P<batch>\d+)\.json")
CLUSTER = "clusterfile.json"
ELEMENT_BYTES = 4
"""Profiles are taken as fp32."""
STATE_PER_PARAMETER_BYTE = 6
"""24 bytes of weights, gradients and optimizer per parameter of 4."""
SAVED_PER_BOUNDARY = 17
PER_NODE = (1, 2, 4, 8, 16)
_MEGABYTE = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _File:
    """One point as its file tells it."""

    model: str
    times_ms: Float[np.ndarray, "layers"]
    update_ms: float
    parameter_bytes: Float[np.ndarray, "layers"]
    boundary_bytes: Float[np.ndarray, "layers"] | None
    memory_bytes: Float[np.ndarray, "layers"] | None


class _Degree(NamedTuple):
    model: str
    tp: int


def has_metis_files(folder: Path) -> bool:
    """Whether a folder is one of Metis': it holds a profile named as Metis names them."""
    return any(NAME.fullmatch(path.name) for path in folder.rglob("DeviceType.*.json"))


def read_metis(folder: Path, faults: list[Problem]) -> tuple[Times, Sizes, dict[Route, LinkFit]]:
    """Times, sizes and links of a folder.

    Args:
        folder: any folder above the files.
        faults: what is wrong goes here.
    """
    times: Times = {}
    by_degree: dict[_Degree, dict[int, _File]] = {}
    devices = set()
    for path in sorted(folder.rglob("DeviceType.*.json")):
        match = NAME.fullmatch(path.name)
        file = _file(path, faults) if match else None
        if match is None or file is None:
            continue
        device, tp, batch = match["device"], int(match["tp"]), int(match["batch"])
        devices.add(device)
        by_degree.setdefault(_Degree(file.model, tp), {}).setdefault(batch, file)
        share = file.parameter_bytes / max(file.parameter_bytes.sum(), 1.0)
        times.setdefault(file.model, {})[Point(device, tp, batch)] = {
            layer: (each_ms / 3, each_ms * 2 / 3, file.update_ms * float(share[layer]))
            for layer, each_ms in enumerate(file.times_ms.tolist())
        }
    sizes: Sizes = {}
    for degree, batches in by_degree.items():
        table = _sizes(degree, batches, faults)
        if table:
            sizes.setdefault(degree.model, {})[degree.tp] = table
    return times, sizes, _links(folder, devices, faults)


def _file(path: Path, faults: list[Problem]) -> _File | None:
    data = read_json(path, faults)
    if not isinstance(data, Mapping):
        faults.append(Problem(what=f"{path} holds no table", why="Metis writes one per point", fix="profile it again"))
        return None

    def found(*names: str) -> object:
        value: object = data
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    time_list = found("execution_time", "layer_compute_total_ms")
    count = len(time_list) if isinstance(time_list, list) else 1
    times = number_list(time_list, count, f"{path}: layer_compute_total_ms", faults)
    parameter_list = found("model", "parameters", "parameters_per_layer_bytes")
    parameters = number_list(parameter_list, count, f"{path}: parameters_per_layer_bytes", faults)
    update = number_list([found("execution_time", "optimizer_time_ms")], 1, f"{path}: optimizer_time_ms", faults)
    if not (times and parameters and update):
        return None
    if min((*times, *parameters, *update)) < 0:
        faults.append(
            Problem(
                what=f"{path} holds a negative number", why="times and bytes are at least 0", fix="profile it again"
            )
        )
        return None
    return _File(
        model=str(found("model", "model_name") or path.parent.name),
        times_ms=np.array(times),
        update_ms=update[0],
        parameter_bytes=np.array(parameters),
        boundary_bytes=_column(found("model", "parameters", "activation_parameters_bytes"), count),
        memory_bytes=_column(found("execution_memory", "layer_memory_total_mb"), count, _MEGABYTE),
    )


def _column(values: object, count: int, unit: float = 1.0) -> Float[np.ndarray, "layers"] | None:
    """A list that a file may lack or, as one that Metis ships, have too short."""
    numbers = number_list(values, count, "", [])
    return np.array(numbers) * unit if numbers else None


def _sizes(degree: _Degree, batches: Mapping[int, _File], faults: list[Problem]) -> dict[int, tuple[float, ...]]:
    known = {batch: file for batch, file in sorted(batches.items()) if file.memory_bytes is not None}
    if not known:
        faults.append(
            Problem(
                what=f"{degree.model} at tp {degree.tp} has no layer_memory_total_mb of every layer",
                why="what a stage keeps comes from it",
                fix="profile it again",
                field="layer_memory_total_mb",
            )
        )
        return {}
    small, large = min(known), max(known)
    file = known[large]
    most = file.memory_bytes if file.memory_bytes is not None else file.parameter_bytes
    if large > small:
        least = known[small].memory_bytes
        saved_bytes = (most - (least if least is not None else 0.0)) / (large - small)
    else:
        saved_bytes = (most - STATE_PER_PARAMETER_BYTE * file.parameter_bytes / degree.tp) / large
    saved = np.maximum(saved_bytes, 0.0) / ELEMENT_BYTES
    middle = saved[1:-1].mean() if len(saved) > 2 else saved.mean()
    boundary = np.full(len(saved), middle * degree.tp / SAVED_PER_BOUNDARY)
    if file.boundary_bytes is not None:
        boundary = file.boundary_bytes / ELEMENT_BYTES
    parameters = file.parameter_bytes / ELEMENT_BYTES / degree.tp
    return {
        layer: (float(parameters[layer]), float(boundary[max(layer - 1, 0)]), float(boundary[layer]), float(kept))
        for layer, kept in enumerate(saved)
    }


def _links(folder: Path, devices: set[str], faults: list[Problem]) -> dict[Route, LinkFit]:
    """Links between all types of the cluster files; the slowest node of a type stands for it."""
    gb_s: dict[str, float] = {}
    for path in sorted(folder.rglob(CLUSTER)):
        for node, entry in items(read_json(path, faults), str(path), faults):
            values = entry if isinstance(entry, Mapping) else {}
            speed = number_list([values.get("inter_bandwidth")], 1, f"{path}: {node}: inter_bandwidth", faults)
            if speed and speed[0] <= 0:
                why = "a link without bandwidth joins nothing"
                faults.append(Problem(what=f"{path}: {node}: inter_bandwidth is {speed[0]:g}", why=why, fix="fix it"))
            elif speed:
                device = str(values.get("instance_type"))
                gb_s[device] = min(speed[0], gb_s.get(device, speed[0]))
    for device in sorted(devices - set(gb_s)):
        faults.append(
            Problem(
                what=f"{CLUSTER} has no node of {device}",
                why="transfers and gradients need its inter_bandwidth",
                fix=f"put {CLUSTER} beside the profiles, with a node of instance_type {device}",
                field="instance_type",
            )
        )
    return {
        Route("inter_node_het", End(a, a_count, ""), End(b, b_count, "")): LinkFit(
            c2=0.0, c1=0.0, c0=min(gb_s[a], gb_s[b]), max_gb_s=min(gb_s[a], gb_s[b])
        )
        for (a, b), a_count, b_count in product(product(sorted(gb_s), repeat=2), PER_NODE, PER_NODE)
    }
