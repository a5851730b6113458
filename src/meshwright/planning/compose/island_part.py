"""So many devices of one island: what a pipeline, or a question about a part of a cluster, takes of it."""

from __future__ import annotations

from typing import NamedTuple


class IslandPart(NamedTuple):
    """Devices of a group."""

    group: int
    """Number of the group in the cluster."""
    devices: int
