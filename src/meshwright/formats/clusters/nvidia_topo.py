"""`nvidia-smi topo -m`: which devices of a node NVLink joins, and by how many links.

    # device = H100
    # nodes = 4
            GPU0    GPU1    NIC0    CPU Affinity
    GPU0     X      NV18    PIX     0-47
    GPU1    NV18     X      SYS     0-47

The text does not name the devices: a line `# device = NAME`, or the output of `nvidia-smi -L` in the same file, does.
One matrix may stand for several equal nodes (`# nodes = N`), or the file holds one matrix per node: one after the
other, or with the node's name before each line, as `clush` and `srun --label` print them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from meshwright.formats.cluster import Refusals
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
from meshwright.shapes import Int
from meshwright.specs.cluster import MAX_DEVICES
from meshwright.specs.device import DeviceSpec
from meshwright.units import GIGA

PATHS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU",
    "NODE": "two PCIe roots of one NUMA node",
    "SYS": "the link between CPU sockets",
}
"""Ways between two devices without NVLink, nearest first. Source: the legend that nvidia-smi prints."""
_CELL = re.compile(r"X|NV\d+|" + "|".join(PATHS))
_LABEL = re.compile(r"([\w.-]+): *\t?(?=\s*GPU\d)")
_NODE_LINE = re.compile(r"[#=\-*\[\s]*([A-Za-z][\w.-]*?)[:=\-*\]\s]*")
_LISTED = re.compile(r"GPU \d+: (.{1,200}?) \(UUID")
_ESCAPE = re.compile(r"\x1b?\[[0-9;]{0,5}m")
"""nvidia-smi underlines its header; copied text may have lost the escape itself."""
_LINK_GB_S = 25.0
"""Speed of one NVLink of generations 2 to 4, per direction. Source: data sheets of V100 (6 links, 150 GB/s), A100 (12,
300) and H100 (18, 450)."""
_LINK_GB_S_OF = {"blackwell": 50.0}
"""NVLink 5. Source: data sheet of B200 (18 links, 900 GB/s)."""
_CARD_LINKS, _CARD_GB_S = 4, 56.25
"""The bridge of RTX 3090, A6000 and A40. Source: NVIDIA Ampere GA102 GPU architecture white paper."""


@dataclass(slots=True)
class _Matrix:
    """One node's matrix as printed."""

    name: str
    gpus: int
    rows: dict[str, list[str]] = field(default_factory=dict)
    nics: int = 0
    device: str = ""


def _holds(text: str) -> bool:
    """Whether there is a line of the matrix."""
    return re.search(r"^.*\bGPU0[ \t]+X\b", _ESCAPE.sub("", text), re.M) is not None


def _read(request: ClusterText) -> Description:
    """The nodes of one or several matrices.

    Raises:
        InputError: a matrix has holes or is not symmetric, or nothing names the devices; all problems together.
        UnsupportedError: unknown devices and nothing else wrong.
    """
    text = _ESCAPE.sub("", request.text)
    said, wrong, devices = directives(text), Refusals(CODE), DeviceNames(request.lookup)
    copies = whole_directive(said, "nodes", wrong)
    matrices = _matrices(text)
    if not matrices:
        what, why = "the matrix has no heading", "its first line names the devices: GPU0, GPU1, ..."
        wrong.add(what, why, "copy the whole output of nvidia-smi topo -m", name="matrix")
    if copies is not None and len(matrices) > 1:
        wrong.add(
            f"# nodes = {copies} beside {len(matrices)} matrices",
            "one of them says how many nodes there are",
            "remove the line, or keep one matrix",
            name="nodes",
        )
    if copies is not None and copies > MAX_DEVICES:
        wrong.add(f"# nodes = {copies:,}", f"at most {MAX_DEVICES:,} devices can be planned", "", name="nodes")
    nodes, notes = [], Counter[str]()
    for matrix in matrices:
        name = said.get("device") or matrix.device
        if not name:
            wrong.add(
                f"nothing says what the devices of {matrix.name} are",
                "nvidia-smi topo -m does not name them",
                "put a line '# device = H100' or the output of nvidia-smi -L at the top",
                name="device",
            )
        device = devices.find(name, matrix.name) if name else None
        links = _links(matrix, wrong)
        if device is None or links is None:
            continue
        keys = _speeds(links, device, notes)
        _paths(matrix, notes)
        nodes.append(ClusterNode(name=matrix.name, device=device.name, devices=matrix.gpus, keys=keys))
    devices.refuse(wrong)
    if wrong:
        wrong.done()
    if copies is not None:
        nodes *= copies
    notes["the matrix gives the ways between devices, not their speed: NVLink as in data sheets, the rest assumed"] += 1
    if len(nodes) > 1:
        notes["nvidia-smi does not see what joins nodes: the fabric is that of the devices' usual nodes"] += 1
    return Description(kind=FORMAT.name, table={"group": node_groups(nodes)}, notes=tuple(notes))


def _matrices(text: str) -> list[_Matrix]:
    """The matrices of all nodes, by the name before each line or by their headers."""
    by_name: dict[str, _Matrix] = {}
    current: _Matrix | None = None
    heading, device = "", ""
    for line in text.splitlines():
        label = _LABEL.match(line)
        words = line[label.end() :].split() if label else line.split()
        if found := _LISTED.search(line):
            device = found[1]
        elif words[:1] == ["GPU0"] and words[1:2] != ["X"]:
            name = label[1] if label else heading or f"node{len(by_name) + 1}"
            current = _Matrix(
                name=name,
                gpus=sum(1 for word in words if re.fullmatch(r"GPU\d+", word)),
                nics=sum(1 for word in words if re.fullmatch(r"NIC\d+|mlx\d+_\d+", word)),
                device=device,
            )
            by_name[name if name not in by_name else f"{name}#{len(by_name) + 1}"] = current
            heading = ""
        elif words and re.fullmatch(r"GPU\d+", words[0]):
            matrix = by_name.get(label[1]) if label else current
            if matrix is not None:
                matrix.rows[words[0]] = words[1 : 1 + matrix.gpus]
        elif words and (named := _NODE_LINE.fullmatch(line)):
            heading = named[1]
    return list(by_name.values())


def _links(matrix: _Matrix, wrong: Refusals) -> Int[np.ndarray, "devices devices"] | None:
    """NVLinks of each pair, or None with the problems noted."""
    names = [f"GPU{i}" for i in range(matrix.gpus)]
    before = len(wrong.problems)
    for row in names:
        cells = matrix.rows.get(row, [])
        bad = [cell for cell in cells if not _CELL.fullmatch(cell)]
        if len(cells) < matrix.gpus or bad:
            what = f"{matrix.name}: row {row} " + (f"holds {bad[0][:20]!r}" if bad else f"has {len(cells)} cells")
            why = f"each of the {matrix.gpus} devices has a cell: X, NV with a number, {', '.join(PATHS)}"
            wrong.add(what, why, "copy the whole output of nvidia-smi topo -m", name=row)
    if len(wrong.problems) > before:
        return None
    table = np.array([matrix.rows[name] for name in names])
    uneven = [(names[i], names[j]) for i, j in np.argwhere(table != table.T) if i < j]
    if uneven:
        pairs = ", ".join(f"{a} - {b}" for a, b in uneven[:4])
        wrong.add(f"{matrix.name}: the matrix is not symmetric at {pairs}", "a way goes both ways", "", name="matrix")
        return None
    return np.array([[int(cell[2:]) if cell.startswith("NV") else 0 for cell in row] for row in table.tolist()])


def _speeds(
    links: Int[np.ndarray, "devices devices"], device: DeviceSpec, notes: Counter[str]
) -> tuple[tuple[str, float | int | str], ...]:
    """Domain and speed of NVLink in a node.

    Pairs of n links each may be n links into a switch or a bundle for each pair: a device cannot have more links than
    its generation, so that a sum over pairs beyond them is a switch.
    """
    count = len(links)
    if count == 1:
        return ()
    domains = _joined(links)
    sizes = {len(domain) for domain in domains}
    if len(sizes) > 1:
        parts = " + ".join(str(len(domain)) for domain in domains)
        notes[f"NVLink joins {parts} of {count} devices: no equal domains, taken as none"] += 1
        return (("nvlink_domain", 1),)
    size = sizes.pop()
    if size == 1:
        return (("nvlink_domain", 1),)
    if any(domain != list(range(domain[0], domain[0] + size)) for domain in domains):
        notes[f"NVLink domains of {size} are taken as consecutive devices; number them so (CUDA_VISIBLE_DEVICES)"] += 1
    one_gb_s, most = _one_link(device)
    per_device = links.sum(axis=1)
    switched = int(per_device.max()) > most
    number = int(np.where(links > 0, links, links.max()).min() if switched else per_device.min())
    return (("nvlink_domain", size), ("intra_gb_s", number * one_gb_s))


def _one_link(device: DeviceSpec) -> tuple[float, int]:
    """GB/s of one link, and the links of a device."""
    usual = device.node.scaleup_bytes_per_s / GIGA if device.node else 0.0
    if usual == _CARD_GB_S:
        return _CARD_GB_S / _CARD_LINKS, _CARD_LINKS
    one = _LINK_GB_S_OF.get(device.efficiency.generation, _LINK_GB_S)
    return one, max(round(usual / one), 1)


def _joined(links: Int[np.ndarray, "devices devices"]) -> list[list[int]]:
    """Sets of devices that NVLink joins, directly or through others."""
    reach = (links > 0) | np.eye(len(links), dtype=bool)
    for _ in range(len(links).bit_length()):
        reach = (reach.astype(np.int64) @ reach.astype(np.int64)) > 0
    return [list(one) for one in dict.fromkeys(tuple(np.flatnonzero(row).tolist()) for row in reach)]


def _paths(matrix: _Matrix, notes: Counter[str]) -> None:
    """Say what pairs without NVLink cross."""
    pairs = Counter(
        cell for i in range(matrix.gpus) for cell in matrix.rows[f"GPU{i}"][i + 1 :] if not cell.startswith("NV")
    )
    total = matrix.gpus * (matrix.gpus - 1) // 2
    if pairs:
        ways = listed([f"{pairs[path]} cross {way} ({path})" for path, way in PATHS.items() if pairs[path]], 5)
        notes[f"of {total} pairs in a node {ways}; all are priced at one speed"] += 1
    if matrix.nics:
        notes[f"{matrix.nics} network cards a node are listed without their speed"] += 1


FORMAT = Format(name="nvidia-smi topo -m", holds=_holds, read=_read)
