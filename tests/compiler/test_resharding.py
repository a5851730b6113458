"""Cross-mesh resharding: every way brings the whole array, nothing twice, and the load is even."""

from __future__ import annotations

from collections import Counter
from math import prod

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.compiler.resharding import WAYS, MeshLinks, Resharding, TileLayout, Way, entries, reshard

LINKS = MeshLinks(cross_bytes_per_s=10e9, inside_bytes_per_s=100e9, latency_s=1e-5)
AXES = ("x", "y")


def layout(sizes: tuple[int, int], *spec: str | tuple[str, ...] | None) -> TileLayout:
    return TileLayout(sizes, AXES, PartitionSpec(*spec))


@st.composite
def layouts(draw: st.DrawFn, rank: int) -> TileLayout:
    sizes = draw(st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3])))
    entries: list[str | tuple[str, ...] | None] = [None] * rank
    for axis in draw(st.permutations(AXES)):
        place = draw(st.integers(-1, rank - 1))
        if place >= 0:
            held = entries[place]
            entries[place] = axis if held is None else (*((held,) if isinstance(held, str) else held), axis)
    return TileLayout(sizes, AXES, PartitionSpec(*entries))


def arrived(shape: tuple[int, ...], source: TileLayout, target: TileLayout, found: Resharding) -> list[np.ndarray]:
    """What each target device has, moved piece by piece: -1 where nothing came. A `gather` is done at the end."""
    whole = np.arange(prod(shape), dtype=np.int64).reshape(shape)
    held = source.boxes(shape)
    parts = [np.full(shape, -1, np.int64) for _ in range(target.devices)]
    for one in found.transfers:
        for (start, stop), (first, last) in zip(one.box, held[one.source], strict=True):
            assert first <= start < stop <= last, "a device sends what it does not hold"
        where = tuple(slice(start, stop) for start, stop in one.box)
        assert (parts[one.target][where] == -1).all(), "an entry arrives twice"
        parts[one.target][where] = whole[where]
    if found.way == "gather":
        for devices in target.tiles(shape).values():
            union = np.max([parts[device] for device in devices], axis=0)
            for device in devices:
                parts[device] = union
    return parts


@given(st.data(), st.integers(1, 3), st.sampled_from(WAYS))
def test_every_device_gets_its_part_and_no_entry_twice(data: st.DataObject, rank: int, way: Way) -> None:
    shape = tuple(data.draw(st.sampled_from([24, 48, 144])) for _ in range(rank))
    source, target = data.draw(layouts(rank)), data.draw(layouts(rank))
    found = reshard(shape, 4, source, target, LINKS, (way,))
    whole = np.arange(prod(shape)).reshape(shape)
    for part, box in zip(arrived(shape, source, target, found), target.boxes(shape), strict=True):
        where = tuple(slice(start, stop) for start, stop in box)
        assert (part[where] == whole[where]).all()
    if way == "gather" and all(length % (4 * 3 * 4 * 3) == 0 for length in shape):
        assert found.crossing_bytes == prod(shape) * 4
    assert found.seconds >= found.crossing_bytes / source.devices / LINKS.cross_bytes_per_s * (1 - 1e-12)


@given(layouts(2))
def test_boxes_are_those_of_jax(found: TileLayout) -> None:
    shape = (48, 24)
    if found.devices > len(jax.devices()):
        return
    mesh = Mesh(np.array(jax.devices()[: found.devices]).reshape(found.sizes), found.axes)
    theirs = NamedSharding(mesh, found.spec).devices_indices_map(shape)
    ours = dict(zip(mesh.devices.flat, found.boxes(shape), strict=True))
    for device, slices in theirs.items():
        box = tuple(s.indices(length)[:2] for s, length in zip(slices, shape, strict=True))
        assert ours[device] == box


def test_replicas_share_the_sending() -> None:
    """Four devices hold all of it: each sends a quarter."""
    found = reshard((64, 8), 4, layout((4, 1)), layout((4, 1), "x"), LINKS)
    sent = Counter[int]()
    for one in found.transfers:
        sent[one.source] += entries(one.box)
    assert sorted(sent.values()) == [128] * 4


def test_replicated_targets_receive_once_and_gather() -> None:
    """What all four want crosses once, in quarters: a quarter of the time of sending it to each."""
    source, target = layout((4, 1), "x"), layout((4, 1))
    shape = (4096, 4096)
    times = {way: reshard(shape, 2, source, target, LINKS, (way,)).seconds for way in WAYS}
    best = reshard(shape, 2, source, target, LINKS)
    assert best.way == "gather"
    assert best.gathered_bytes == prod(shape) * 2 * 3 / 4
    assert times["each"] / times["gather"] == pytest.approx(4 / 1.3, rel=0.02)
    assert best.crossing_bytes == prod(shape) * 2


def test_small_messages_go_to_each() -> None:
    """Latency counts: one message to one device beats cutting it up."""
    assert reshard((8,), 4, layout((1, 1)), layout((1, 1)), LINKS).way == "each"


def test_equal_layouts_go_device_by_device() -> None:
    found = reshard((64, 64), 4, layout((2, 2), "x", "y"), layout((2, 2), "x", "y"), LINKS)
    assert sorted((one.source, one.target) for one in found.transfers) == [(i, i) for i in range(4)]


def test_scalars_and_axes_that_do_not_divide() -> None:
    found = reshard((), 4, layout((2, 1)), layout((2, 2)), LINKS)
    assert sorted(one.target for one in found.transfers) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="do not divide"):
        reshard((6,), 4, layout((4, 1), "x"), layout((2, 1)), LINKS)
