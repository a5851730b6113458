"""Cross-mesh resharding: which part of an array goes from which device of one mesh to which devices of another.

    tiles        distinct parts of the array on each mesh, and the devices that hold or want each
    pieces       intersections of what is held with what is wanted
    transfers    one sender for each piece, chosen so that no device sends much more than another
    seconds      the busiest device's share of what crosses, then what the target mesh does by itself

Two ways differ where several devices want the same tile. `each`: it crosses for every one of them, or once for those
that share a host. `gather`: the array arrives split over all axes of the target mesh, every entry once, and is
all-gathered there to the layout that is wanted.

Source: Zhuang et al., "On Optimizing the Communication of Model Parallelism" (MLSys 2023); the choice by cost is our
own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Literal

from jax.sharding import PartitionSpec

Box = tuple[tuple[int, int], ...]
"""Start and stop along each axis of the array."""
Way = Literal["each", "gather"]
WAYS: tuple[Way, ...] = ("each", "gather")


@dataclass(frozen=True, slots=True)
class TileLayout:
    """Sharding of an array on a mesh; its devices are counted along the last axis first."""

    sizes: tuple[int, ...]
    """Sizes of the mesh's axes."""
    axes: tuple[str, ...]
    spec: PartitionSpec

    @property
    def devices(self) -> int:
        """Number of devices of the mesh."""
        return prod(self.sizes)

    def boxes(self, shape: tuple[int, ...]) -> tuple[Box, ...]:
        """The part of each device.

        Args:
            shape: the shape of the array; axes that are split divide.

        Raises:
            ValueError: an axis does not divide, or the mesh has no such axis.
        """
        size = dict(zip(self.axes, self.sizes, strict=True))
        split = [_names(entry) for entry in self.spec] + [()] * (len(shape) - len(self.spec))
        parts = [prod(size[name] for name in names) for names in split]
        for length, count in zip(shape, parts, strict=True):
            if length % count:
                raise ValueError(f"{length} entries do not divide by {count} devices")
        found = []
        for place in product(*(range(count) for count in self.sizes)):
            at = dict(zip(self.axes, place, strict=True))
            box = []
            for length, names, count in zip(shape, split, parts, strict=True):
                index = 0
                for name in names:
                    index = index * size[name] + at[name]
                step = length // count
                box.append((index * step, (index + 1) * step))
            found.append(tuple(box))
        return tuple(found)

    def tiles(self, shape: tuple[int, ...]) -> dict[Box, tuple[int, ...]]:
        """Distinct parts, and the devices that hold each.

        Args:
            shape: the shape of the array.
        """
        found: dict[Box, list[int]] = {}
        for device, box in enumerate(self.boxes(shape)):
            found.setdefault(box, []).append(device)
        return {box: tuple(devices) for box, devices in found.items()}


@dataclass(frozen=True, slots=True)
class MeshLinks:
    """Links between two meshes, and within the target."""

    cross_bytes_per_s: float
    """Out of or into one device."""
    inside_bytes_per_s: float
    """Bandwidth between devices of the target mesh, out of one device."""
    latency_s: float = 0.0
    """Latency of one message."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A piece that crosses once."""

    box: Box
    source: int
    """Device of the source mesh."""
    target: int
    """Device of the target mesh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharding:
    """A message between two meshes, device by device."""

    way: Way
    arrival: TileLayout
    """Layout in which the message arrives; the target mesh brings it into its own."""
    transfers: tuple[Transfer, ...]
    crossing_bytes: float
    gathered_bytes: float
    """Bytes that one device of the target mesh then receives from the others of that mesh."""
    seconds: float


def overlap(one: Box, other: Box) -> Box | None:
    """What two boxes share.

    Args:
        one: a box.
        other: another part of the same array.
    """
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return shared if all(start < stop for start, stop in shared) else None


def entries(box: Box) -> int:
    """Entries of an array in a box.

    Args:
        box: the box of it.
    """
    return prod(stop - start for start, stop in box)


def reshard(
    shape: tuple[int, ...],
    itemsize: int,
    source: TileLayout,
    target: TileLayout,
    links: MeshLinks,
    ways: Sequence[Way] = WAYS,
) -> Resharding:
    """The cheapest way to bring an array from one mesh to another.

    Args:
        shape: the shape of the array.
        itemsize: bytes of an entry.
        source: the source where it is.
        target: the target where it is wanted.
        links: what bytes take.
        ways: the ways to choose from; the first of those equally quick.
    """
    held = source.tiles(shape)
    return min((_one_way(way, shape, itemsize, held, target, links) for way in ways), key=lambda one: one.seconds)


def finer(layout: TileLayout, shape: tuple[int, ...]) -> TileLayout:
    """The layout split over the axes of the mesh that it leaves whole, as far as the array divides.

    Args:
        layout: the layout of an array.
        shape: the shape of the array.
    """
    size = dict(zip(layout.axes, layout.sizes, strict=True))
    split = [list(_names(entry)) for entry in layout.spec] + [[] for _ in range(len(shape) - len(layout.spec))]
    used = {name for names in split for name in names}
    for axis in layout.axes:
        if axis in used or size[axis] == 1:
            continue
        left = [length // prod(size[name] for name in names) for length, names in zip(shape, split, strict=True)]
        able = [place for place, length in enumerate(left) if length % size[axis] == 0]
        if able:
            split[max(able, key=lambda place: left[place])].append(axis)
    return TileLayout(layout.sizes, layout.axes, PartitionSpec(*(tuple(names) or None for names in split)))


def _one_way(
    way: Way,
    shape: tuple[int, ...],
    itemsize: int,
    held: Mapping[Box, tuple[int, ...]],
    target: TileLayout,
    links: MeshLinks,
) -> Resharding:
    arrival = finer(target, shape) if way == "gather" else target
    pieces = [
        (piece, holders, device)
        for box, devices in arrival.tiles(shape).items()
        for other, holders in held.items()
        if (piece := overlap(box, other)) is not None
        for device in devices
    ]
    transfers = _balanced(pieces)
    sent: Counter[int] = Counter()
    into: Counter[int] = Counter()
    messages: Counter[int] = Counter()
    for one in transfers:
        size = entries(one.box) * itemsize
        sent[one.source] += size
        into[one.target] += size
        messages[one.source] += 1
    gathered = itemsize * max(
        entries(whole) - entries(part) for whole, part in zip(target.boxes(shape), arrival.boxes(shape), strict=True)
    )
    seconds = (
        max(max(sent.values(), default=0), max(into.values(), default=0)) / links.cross_bytes_per_s
        + gathered / links.inside_bytes_per_s
        + links.latency_s * (max(messages.values(), default=0) + (gathered > 0))
    )
    return Resharding(
        way=way,
        arrival=arrival,
        transfers=tuple(transfers),
        crossing_bytes=float(sum(sent.values())),
        gathered_bytes=float(gathered),
        seconds=seconds,
    )


def _balanced(pieces: Sequence[tuple[Box, tuple[int, ...], int]]) -> list[Transfer]:
    """A sender for each piece: largest pieces first, each from the holder that sends least so far.

    Each sender starts with another receiver, so that they do not all wait for the same one.
    """
    load: Counter[int] = Counter()
    chosen: dict[int, list[Transfer]] = {}
    for box, holders, receiver in sorted(pieces, key=lambda piece: (-entries(piece[0]), piece[0], piece[2])):
        sender = min(holders, key=lambda device: (load[device], device))
        load[sender] += entries(box)
        chosen.setdefault(sender, []).append(Transfer(box, sender, receiver))
    ordered = []
    for turn, (_, own) in enumerate(sorted(chosen.items())):
        own.sort(key=lambda one: (one.target, one.box))
        first = turn % len(own)
        ordered.append(own[first:] + own[:first])
    return [own[at] for at in range(max(map(len, ordered), default=0)) for own in ordered if at < len(own)]


def _names(entry: object) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)  # type: ignore[arg-type]
