"""What a stage may be wherever it stands on a cluster of several groups."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.errors import InputError, UnsupportedError
from meshwright.search.space import Space, uncomposed
from meshwright.specs.cluster import ClusterSpec


def space_anywhere(cluster: ClusterSpec, space_for: Callable[[ClusterSpec], Space]) -> Space:
    """The values that the whole cluster or one of its groups allows.

    Args:
        cluster: one group or several.
        space_for: the search space of a part of it.

    Raises:
        UnsupportedError: a tensor strategy is pinned that mixed clusters are not planned with.
        InputError: neither the cluster nor any group allows what is pinned.
    """
    allowed: dict[str, dict[object, None]] = {}
    refused: list[InputError] = []
    for part in (
        cluster,
        *(cluster.part(alone_name(cluster, n), (g,)) for n, g in enumerate(cluster.groups)),
    ):
        try:
            space = space_for(part)
        except InputError as error:
            refused.append(error)
            continue
        for axis, values in space.pins:
            allowed.setdefault(axis, {}).update(dict.fromkeys(values))
    if len(refused) > len(cluster.groups):
        raise refused[0]
    if other := uncomposed("tensor", allowed.get("tensor", ())):
        raise UnsupportedError(
            what=f"tensor={other[0]} on a cluster of several groups",
            why="stages of unlike devices are composed with 1d tensor strategies",
            fix="drop the pin, or plan one group",
            field="tensor",
            code="MW406",
        )
    if uncomposed("offload", allowed.get("offload", ())):
        raise UnsupportedError(
            what="offload in a plan that is composed of stages",
            why="stages of unlike devices, and of parallelizers, keep their states on the devices",
            fix=f"leave --offload out, or plan one kind of device: --gpus {_largest(cluster)} --offload optimizer",
            field="offload",
            code="MW406",
        )
    for axis in ("tp_overlap", "prefetch"):
        if other := uncomposed(axis, allowed.get(axis, ())):
            raise UnsupportedError(
                what=f"{axis}={other[0]} on a cluster of several groups",
                why="stages of unlike devices compute whole micro-batches and gather the weights of the next layer",
                fix=f"leave {axis} out, or plan one kind of device: --gpus {_largest(cluster)}",
                field=axis,
                code="MW406",
            )
    return Space(pins=tuple((axis, tuple(values)) for axis, values in allowed.items()))


def alone_name(cluster: ClusterSpec, number: int) -> str:
    """What to call the cluster of one of its groups: `64xH100`."""
    group = cluster.groups[number]
    return f"{group.devices}x{group.device.name}"


def _largest(cluster: ClusterSpec) -> str:
    """The group that computes most, as `--gpus` takes it."""
    peaks = [group.devices * max(peak for _, peak in group.device.peak_flop_per_s) for group in cluster.groups]
    return alone_name(cluster, peaks.index(max(peaks)))
