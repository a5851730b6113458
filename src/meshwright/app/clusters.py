"""A cluster as it was understood: groups, links, what was assumed, and its islands at each granularity."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.app.answer import Answer
from meshwright.formats.cluster import assumptions
from meshwright.formats.cluster_file import cluster_from_table
from meshwright.formats.clusters import ALIKE, read_description
from meshwright.formats.clusters.base import Description
from meshwright.formats.clusters.write import cluster_file
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import device
from meshwright.planning.compose.islands import AlikeDevices, Granularity, check_tolerance, granularities, islands
from meshwright.planning.question.job_inputs import is_cluster_path
from meshwright.specs.cluster import ClusterSpec

MOST_GRANULARITIES = 12
"""Shown; a cluster of 64 groups has up to 64."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClusterCard(Answer):
    """Everything `clusters show` says."""

    description: Description
    cluster: ClusterSpec
    tolerance: float
    islands: tuple[AlikeDevices, ...]
    granularities: tuple[Granularity, ...]

    def data(self) -> dict[str, Any]:
        """`meshwright.cluster/1`."""
        return {
            "schema": "meshwright.cluster/1",
            "kind": self.description.kind,
            **self.cluster.describe(),
            "notes": list(self.cluster.notes),
            "assumptions": [
                {"name": one.name, "value": one.value, "basis": one.basis}
                for one in assumptions(self.cluster)
                if one.name != "cluster"
            ],
            "tolerance": self.tolerance,
            "islands": [_island(island) for island in self.islands],
            "granularities": [
                {"tolerance": one.tolerance, "islands": one.num_islands, "of": [_size(i) for i in one.islands]}
                for one in self.granularities[:MOST_GRANULARITIES]
            ],
        }

    def to_toml(self) -> str:
        """The text of a cluster file that gives this cluster."""
        return cluster_file(self.description, self.cluster)


def show_cluster(source: str | os.PathLike[str], tolerance: float = ALIKE) -> ClusterCard:
    """How a description of a cluster is read.

    Args:
        source: path of a cluster file, of another description that is known, or the one-line form of `--gpus`.
        tolerance: how far apart devices of an island, and measured speeds that count as one, may be.

    Raises:
        InputError: the description or the tolerance cannot be used; all problems together.
        UnsupportedError: unknown devices and nothing else wrong.
    """
    check_tolerance(tolerance)
    if is_cluster_path(source):
        description = read_description(Path(source), device, tolerance)
        table, name = description.table, Path(source).stem
        cluster = cluster_from_table(table, device, name=name, notes=description.notes)
    else:
        cluster = resolve_gpus(os.fspath(source))
        groups = [
            {"device": group.device.name, "nodes": group.nodes, "devices_per_node": group.devices_per_node}
            for group in cluster.groups
        ]
        description = Description(kind=f"--gpus {cluster.name}", table={"group": groups})
    return ClusterCard(
        description=description,
        cluster=cluster,
        tolerance=tolerance,
        islands=islands(cluster, tolerance),
        granularities=granularities(cluster),
    )


def _island(island: AlikeDevices) -> dict[str, Any]:
    group = island.counts_as
    return {
        "groups": list(island.groups),
        "devices": island.num_devices,
        "ranges": [list(ends) for ends in island.devices],
        "apart": island.apart,
        "counts_as": {
            "device": group.device.name,
            "memory_bytes": group.device.memory_bytes,
            "nodes": group.nodes,
            "devices_per_node": group.devices_per_node,
            "domains": [
                {"name": domain.name, "size": domain.size, "bandwidth_bytes_per_s": domain.bandwidth_bytes_per_s}
                for domain in group.domains
            ],
        },
    }


def _size(island: AlikeDevices) -> str:
    """`2 x 8 (H100)`."""
    each = f"{island.num_devices // island.copies:,} ({' + '.join(island.groups)})"
    return each if island.copies == 1 else f"{island.copies:,} x {each}"
