"""A measured bandwidth matrix: CSV of nodes x nodes or devices x devices, GB/s per device and direction.

    node,device,devices,n1,n2,n3
    n1,H100,8,380,45,24
    n2,H100,8,45,380,24
    n3,A100-80,8,24,24,235

The first column names the rows, `node` or `gpu`; columns `device`, `devices` (of a node), `node` (of a gpu) and `zone`
may follow; the rest are the cells. Lines `# device = H100`, `# devices_per_node = 8` and `# rows = gpus` say the same
for all rows, `# per = node` that cells are for whole nodes. The diagonal of a matrix of nodes is the speed inside a
node, or empty. Nodes that are alike and joined alike within the tolerance become a group.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.formats.cluster import MAX_GROUPS, Refusals, group_names
from meshwright.formats.clusters.base import CODE, ClusterText, Description, DeviceNames, Format, listed
from meshwright.formats.clusters.matrix_cells import MatrixCells, is_matrix, matrix_cells
from meshwright.kernels.alike import linkage, links_apart, ratio_apart
from meshwright.shapes import Float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A node as the matrix shows it; speeds in GB/s per device, 0 where they were not measured."""

    name: str
    device: str
    devices: int
    zone: str | None
    domain: int = 0
    """Consecutive devices of the fastest speed inside; 0 where it was not measured."""
    intra_gb_s: float = 0.0
    host_gb_s: float = 0.0
    """Speed between domains, where there are several."""

    @property
    def shape(self) -> tuple[object, ...]:
        """What must be equal in a group."""
        return self.device, self.devices, self.zone, self.domain


def _read(request: ClusterText) -> Description:
    """The groups of a matrix.

    Raises:
        InputError: it has holes, is not symmetric, joins groups by nothing, or names no devices; all together.
        UnsupportedError: unknown devices and nothing else wrong.
    """
    wrong, devices = Refusals(CODE), DeviceNames(request.lookup)
    cells = matrix_cells(request.text, devices, wrong)
    devices.refuse(wrong)
    if wrong:
        wrong.done()
    assert cells is not None
    nodes, between = _of_gpus(cells, request.tolerance, wrong) if cells.of_gpus else _of_nodes(cells)
    if wrong:
        wrong.done()
    members = _alike(nodes, between, request.tolerance)
    if len(members) > MAX_GROUPS:
        wrong.add(
            f"the matrix falls into {len(members)} groups at a tolerance of {request.tolerance:.0%}",
            f"at most {MAX_GROUPS} groups can be planned",
            "allow a larger tolerance",
            name="matrix",
        )
        wrong.done()
    names = group_names([nodes[group[0]].device for group in members])
    groups = [_group(name, group, nodes, between) for name, group in zip(names, members, strict=True)]
    links = _links(names, members, between, wrong)
    if wrong:
        wrong.done()
    notes = [*cells.notes, *_spread(names, members, between)]
    if all(not node.intra_gb_s for node in nodes if node.devices > 1):
        notes.append("bandwidth inside nodes was not measured: defaults of the device's usual node are used")
    notes.append("the matrix has no latencies: defaults of the device's usual node are used, and 20 µs between groups")
    return Description(kind=FORMAT.name, table={"group": groups, "link": links}, notes=tuple(notes))


def _of_nodes(cells: MatrixCells) -> tuple[list[_Node], Float[np.ndarray, "nodes nodes"]]:
    rows = zip(cells.names, cells.device, cells.devices, cells.zone, np.diag(cells.gb_s).tolist(), strict=True)
    nodes = [
        _Node(
            name=name,
            device=device.name,
            devices=devices,
            zone=zone,
            domain=devices if inside and devices > 1 else 0,
            intra_gb_s=inside if devices > 1 else 0.0,
        )
        for name, device, devices, zone, inside in rows
    ]
    return nodes, cells.gb_s


def _of_gpus(
    cells: MatrixCells, tolerance: float, wrong: Refusals
) -> tuple[list[_Node], Float[np.ndarray, "nodes nodes"]]:
    """Nodes of a matrix of devices; between two nodes the slowest pair counts."""
    names = list(dict.fromkeys(cells.node))
    rows = {name: [i for i, node in enumerate(cells.node) if node == name] for name in names}
    nodes = []
    for name in names:
        mine = rows[name]
        kinds = sorted({cells.device[i].name for i in mine})
        if len(kinds) > 1:
            why, fix = "a node holds devices of one kind here", "give each kind a node of its own"
            wrong.add(f"node {name} holds {listed(kinds)}", why, fix, name="node")
        domain, intra, host = _inside(cells.gb_s[np.ix_(mine, mine)], tolerance)
        if len(mine) > 1 and not min(intra, host or intra):
            wrong.add(
                f"devices of node {name} are joined by 0 GB/s", "they share a host", "measure again", name="matrix"
            )
        nodes.append(
            _Node(
                name=name,
                device=kinds[0],
                devices=len(mine),
                zone=cells.zone[mine[0]],
                domain=domain,
                intra_gb_s=intra,
                host_gb_s=host,
            )
        )
    between = np.array([[float(cells.gb_s[np.ix_(rows[a], rows[b])].min()) for b in names] for a in names])
    return nodes, between


def _inside(gb_s: Float[np.ndarray, "devices devices"], tolerance: float) -> tuple[int, float, float]:
    """Domain, its speed and the speed between domains: equal consecutive blocks of alike links, or all devices."""
    count = len(gb_s)
    if count == 1:
        return 0, 0.0, 0.0
    pairs = ~np.eye(count, dtype=bool)
    label = linkage(links_apart(gb_s)).labels(tolerance)
    size = int((label == label[0]).sum())
    blocks = np.repeat(np.arange(count // size), size) * size
    if size == count or count % size or size == 1 or (label != blocks).any():
        return count, float(gb_s[pairs].min()), 0.0
    within = (label[:, None] == label[None, :]) & pairs
    return size, float(gb_s[within].min()), float(gb_s[~within & pairs].min())


def _alike(nodes: list[_Node], between: Float[np.ndarray, "nodes nodes"], tolerance: float) -> list[list[int]]:
    """Nodes of each group, in order of first appearance; equal whatever the order of the rows."""
    order = sorted(range(len(nodes)), key=lambda i: nodes[i].name)
    kinds = {shape: kind for kind, shape in enumerate(dict.fromkeys(nodes[i].shape for i in order))}
    kind = np.array([kinds[nodes[i].shape] for i in order])
    speeds = [np.array([max(getattr(nodes[i], name), 1e-9) for i in order]) for name in ("intra_gb_s", "host_gb_s")]
    apart = np.maximum(ratio_apart(speeds), links_apart(between[np.ix_(order, order)]))
    apart[kind[:, None] != kind[None, :]] = np.inf
    label = linkage(apart).labels(tolerance) if len(nodes) > 1 else np.zeros(1, dtype=np.int64)
    members: dict[int, list[int]] = {}
    for place in np.argsort(order):
        members.setdefault(int(label[place]), []).append(order[place])
    return list(members.values())


def _group(
    name: str, members: list[int], nodes: list[_Node], between: Float[np.ndarray, "nodes nodes"]
) -> dict[str, Any]:
    """The keys of a group; of speeds that count as one, the slowest."""
    first = nodes[members[0]]
    group: dict[str, Any] = {
        "name": name,
        "device": first.device,
        "nodes": len(members),
        "devices_per_node": first.devices,
    }
    if first.zone:
        group["zone"] = first.zone
    if first.domain:
        group |= {"nvlink_domain": first.domain, "intra_gb_s": min(nodes[i].intra_gb_s for i in members)}
    if first.host_gb_s:
        group["host_gb_s"] = min(nodes[i].host_gb_s for i in members)
    if len(members) > 1:
        group["inter_gb_s"] = min(float(between[i, j]) for i, j in itertools.combinations(members, 2))
    return {**group, "basis": "measured"} if {"intra_gb_s", "inter_gb_s"} & group.keys() else group


def _links(
    names: list[str], members: list[list[int]], between: Float[np.ndarray, "nodes nodes"], wrong: Refusals
) -> list[dict[str, Any]]:
    """A link between each two groups: the slowest pair of their nodes."""
    links, apart = [], []
    for (a, first), (b, second) in itertools.combinations(zip(names, members, strict=True), 2):
        gb_s = float(between[np.ix_(first, second)].min())
        if not gb_s:
            apart.append(f"{a} and {b}")
        links.append({"between": [a, b], "gb_s": gb_s, "basis": "measured"})
    if apart:
        wrong.add(
            f"nothing joins {listed(apart)}: 0 GB/s between some of their nodes",
            "gradients and activations cross it",
            "plan each side by itself, or measure again",
            name="matrix",
        )
    return links


def _spread(names: list[str], members: list[list[int]], between: Float[np.ndarray, "nodes nodes"]) -> list[str]:
    """How far the links inside a group differ, where they do."""
    notes = []
    for name, group in zip(names, members, strict=True):
        speeds: Float[np.ndarray, "pairs"] = between[np.ix_(group, group)][np.triu_indices(len(group), 1)]
        if len(speeds) and speeds.max() > speeds.min():
            apart = speeds.max() / speeds.min() - 1
            notes.append(f"links between nodes of {name} differ by up to {apart:.0%}; the slowest counts")
    return notes


FORMAT = Format(name="bandwidth matrix", holds=is_matrix, read=_read)
