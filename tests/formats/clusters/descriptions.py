"""Descriptions as files, and what they are read as."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import MeshwrightError
from meshwright.formats.clusters import read_cluster
from meshwright.library.devices import device
from meshwright.specs.cluster import ClusterSpec
from meshwright.units import GIGA

DATA = Path(__file__).parents[2] / "data" / "clusters"


def groups(cluster: ClusterSpec) -> list[tuple[str, int, int]]:
    return [(group.device.name, group.nodes, group.devices_per_node) for group in cluster.groups]


def nested(cluster: ClusterSpec, group: int = 0) -> list[tuple[int, float]]:
    return [(domain.size, domain.bandwidth_bytes_per_s / GIGA) for domain in cluster.groups[group].domains]


def written(folder: Path, text: str, name: str = "given") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> list[str]:
    """All problems of a description, as sentences."""
    with pytest.raises(MeshwrightError) as caught:
        read_cluster(written(folder, text), device)
    return [" ".join((problem.what, problem.why, problem.fix)) for problem in caught.value.problems]
