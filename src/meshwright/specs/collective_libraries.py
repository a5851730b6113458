"""Libraries that devices of a vendor communicate by; devices under two of them share no communicator."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from meshwright.specs.cluster import ClusterSpec

_FILE = Path(__file__).parent / "data" / "collective_libraries.toml"


def collective_library(vendor: str) -> str | None:
    """The library that a vendor's devices communicate by; None where the vendor is not known.

    Args:
        vendor: the vendor as a device states it: `NVIDIA`.
    """
    return _by_vendor().get(vendor)


def crossed(cluster: ClusterSpec, used: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Collective libraries of the groups in use, and the transports between them; None where there is one library.

    Args:
        cluster: the cluster of a plan.
        used: names of the groups in use.
    """
    groups = [group for group in cluster.groups if group.name in used]
    libraries = {name: collective_library(group.device.vendor) for group in groups for name in (group.name,)}
    known = tuple(dict.fromkeys(name for name in libraries.values() if name))
    if len(known) < 2:
        return None
    carried = (link.transport for link in cluster.links if set(link.between) <= libraries.keys() and link.transport)
    return known, tuple(dict.fromkeys(carried))


@cache
def _by_vendor() -> dict[str, str]:
    return {entry["vendor"]: name for name, entry in tomllib.loads(_FILE.read_text("utf-8")).items()}
