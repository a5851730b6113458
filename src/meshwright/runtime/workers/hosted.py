"""A mesh whose devices belong to several hosts: every host runs the mesh's list, and holds its own devices' parts.

The workers of a mesh are one group of JAX: what an executable sends within the mesh, XLA sends. Between two meshes goes
what `compiler.resharding` says, piece by piece, from the host that holds it to the hosts that want it, once each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.compiler.instructions import Buffer, Instruction
from meshwright.compiler.resharding import Box, MeshLinks, Resharding, TileLayout, reshard
from meshwright.runtime.channels import Channel
from meshwright.runtime.executor import MeshExecutor
from meshwright.runtime.host_arrays import HostForm, from_host, host_form
from meshwright.runtime.workers.portable import WorkerProgram

LINKS = MeshLinks(cross_bytes_per_s=1e9, inside_bytes_per_s=10e9, latency_s=5e-5)
"""Assumed links between neighbouring hosts; only the choice between two ways of sending depends on them."""


@dataclass(frozen=True, slots=True)
class HostedPiece:
    """A part of a value that one host sends another."""

    box: Box
    source: int
    """Device of the source mesh."""
    targets: tuple[int, ...]
    """Devices of the target mesh, all of one host."""


class HostedExecutor(MeshExecutor):
    """The list of one mesh on one of its hosts."""

    def __init__(
        self,
        part: WorkerProgram,
        functions: Mapping[str, Callable[..., Any]],
        mesh: Mesh,
        channel: Callable[[int], Channel],
        watch: Callable[[int], None],
    ) -> None:
        """Nothing is compiled yet.

        Args:
            part: the part of the program.
            functions: what executables compute, flat in and out.
            mesh: its devices, of all hosts.
            channel: the channel to another worker.
            watch: called with the place in the list before each instruction.
        """
        super().__init__(part.mesh, part.instructions, part.buffers, functions, mesh, {}, watch)
        self._part, self._worker = part, channel

    def placed(self, values: Sequence[Any], buffers: Sequence[int]) -> Sequence[Any]:
        """Values that every host has, each keeping the parts of its own devices."""
        return [self._placed(value, buffer) for value, buffer in zip(values, buffers, strict=True)]

    def _placed(self, value: Any, buffer: int) -> Any:
        if isinstance(value, jax.Array) and len(value.sharding.device_set) == self.mesh.size:
            return jax.device_put(value, self.sharding(buffer))
        form = host_form(self.buffers[buffer].shape, self.buffers[buffer].dtype)
        numbers = np.asarray(jax.random.key_data(value) if form.keys else value)
        whole = jax.make_array_from_callback(form.shape, self.sharding(buffer), lambda index: numbers[index])
        return from_host(whole, form.keys) if form.keys else whole

    def send(self, values: Sequence[Any], given: Sequence[Buffer], wanted: Sequence[Buffer]) -> None:
        """Send this host's share of values to every host of another mesh that wants some of it.

        Args:
            values: the values of this mesh.
            given: buffers that hold or held them.
            wanted: buffers of the other mesh that they become.
        """
        out: dict[int, list[np.ndarray]] = {}
        for value, own, other in zip(values, given, wanted, strict=True):
            form = host_form(own.shape, own.dtype)
            layout = self._layout(own)
            array = jax.random.key_data(value) if form.keys else value
            array = jax.device_put(array, NamedSharding(self.mesh, layout.spec))
            held = {shard.device: shard for shard in array.addressable_shards}
            devices = list(self.mesh.devices.flat)
            boxes = layout.boxes(form.shape)
            for (source, target), pieces in self._pieces(form, layout, self._layout(other)).items():
                if source == self._part.host:
                    out.setdefault(target, []).extend(
                        _cut(np.asarray(held[devices[piece.source]].data), boxes[piece.source], piece.box)
                        for piece in pieces
                    )
        for target, arrays in sorted(out.items()):
            forms = [host_form(one.shape, str(one.dtype)) for one in arrays]
            self._worker(self._part.worker_of(wanted[0].mesh, target)).send(arrays, forms)

    def receive(self, given: Sequence[Buffer], wanted: Sequence[Buffer]) -> list[Any]:
        """What another mesh sent, placed.

        Args:
            given: buffers of the other mesh that were sent.
            wanted: buffers of this mesh that they become.
        """
        plans = [
            self._pieces(host_form(own.shape, own.dtype), self._layout(other), self._layout(own))
            for other, own in zip(given, wanted, strict=True)
        ]
        arrived = {source: iter(self._message(source, plans, given, wanted)) for source in self._senders(plans)}
        return [
            self._assembled(own, self._layout(other), plan, arrived)
            for own, other, plan in zip(wanted, given, plans, strict=True)
        ]

    def _give(self, instruction: Instruction) -> None:
        values, own = [self.values[one] for one in instruction.reads], self._held(instruction.reads)
        for peer in instruction.targets(self._part.mesh):
            self.send(values, own, self._held(self._part.matched[self.place, peer].writes))

    def _take(self, instruction: Instruction, source: int) -> list[Any]:
        given = self._held(self._part.matched[self.place, source].reads)
        return self.receive(given, self._held(instruction.writes))

    def _held(self, numbers: Sequence[int]) -> list[Buffer]:
        return [self.buffers[number] for number in numbers]

    def _senders(self, plans: Sequence[Mapping[tuple[int, int], Sequence[HostedPiece]]]) -> list[int]:
        own = self._part.host
        return sorted({source for plan in plans for source, target in plan if target == own})

    def _message(
        self,
        source: int,
        plans: Sequence[Mapping[tuple[int, int], Sequence[HostedPiece]]],
        given: Sequence[Buffer],
        wanted: Sequence[Buffer],
    ) -> list[Any]:
        """Pieces of all values that one host of another mesh sent this one, in order."""
        forms = []
        for own, plan in zip(wanted, plans, strict=True):
            dtype = str(host_form(own.shape, own.dtype).dtype)
            for piece in plan.get((source, self._part.host), ()):
                shape = tuple(stop - start for start, stop in piece.box)
                forms.append(host_form(shape, dtype))
        return self._worker(self._part.worker_of(given[0].mesh, source)).receive(forms)

    def _assembled(
        self,
        own: Buffer,
        source: TileLayout,
        plan: Mapping[tuple[int, int], Sequence[HostedPiece]],
        arrived: Mapping[int, Iterator[Any]],
    ) -> Any:
        form, layout = host_form(own.shape, own.dtype), self._layout(own)
        arrival = _planned(form.shape, form.dtype.itemsize, source, layout).arrival
        boxes = arrival.boxes(form.shape)
        devices = list(self.mesh.devices.flat)
        mine = [at for at, device in enumerate(devices) if device.process_index == jax.process_index()]
        parts = {at: np.empty([stop - start for start, stop in boxes[at]], form.dtype) for at in mine}
        for (sender, target), pieces in plan.items():
            if target == self._part.host:
                for piece in pieces:
                    body = next(arrived[sender])
                    for at in piece.targets:
                        parts[at][_within(boxes[at], piece.box)] = body
        whole = jax.make_array_from_single_device_arrays(
            form.shape,
            NamedSharding(self.mesh, arrival.spec),
            [jax.device_put(part, devices[at]) for at, part in parts.items()],
        )
        if arrival != layout:
            whole = jax.device_put(whole, NamedSharding(self.mesh, layout.spec))
        return from_host(whole, form.keys)

    def _layout(self, buffer: Buffer) -> TileLayout:
        axes, sizes = self._part.grids[buffer.mesh]
        return TileLayout(sizes, axes, buffer.spec or PartitionSpec())

    def _pieces(
        self, form: HostForm, source: TileLayout, target: TileLayout
    ) -> Mapping[tuple[int, int], tuple[HostedPiece, ...]]:
        return _pieces(form.shape, form.dtype.itemsize, source, target, self._part.hosts)


def parts_here(value: jax.Array) -> list[tuple[Box, np.ndarray]]:
    """The parts of an array that this host has and no host before it.

    Args:
        value: the value over the devices of several hosts.
    """
    array = jax.random.key_data(value) if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key) else value
    return [
        (
            tuple(one.indices(length)[:2] for one, length in zip(shard.index, array.shape, strict=True)),
            np.asarray(shard.data),
        )
        for shard in array.addressable_shards
        if shard.replica_id == 0
    ]


def together_again(parts: Sequence[tuple[Box, np.ndarray]]) -> np.ndarray:
    """The whole of an array from the parts of all hosts.

    Args:
        parts: the parts of every host.
    """
    shape = [max(box[axis][1] for box, _ in parts) for axis in range(len(parts[0][0]))]
    whole = np.empty(shape, parts[0][1].dtype)
    for box, body in parts:
        whole[tuple(slice(*ends) for ends in box)] = body
    return whole


@lru_cache(maxsize=4096)
def _planned(shape: tuple[int, ...], itemsize: int, source: TileLayout, target: TileLayout) -> Resharding:
    return reshard(shape, itemsize, source, target, LINKS)


@lru_cache(maxsize=4096)
def _pieces(
    shape: tuple[int, ...], itemsize: int, source: TileLayout, target: TileLayout, hosts: int
) -> Mapping[tuple[int, int], tuple[HostedPiece, ...]]:
    """Pieces by sending and receiving host; devices of one host that want the same receive it once."""
    found: dict[tuple[int, int], dict[Box, HostedPiece]] = {}
    from_one, to_one = source.devices // hosts, target.devices // hosts
    senders: dict[tuple[int, Box], int] = {}
    for one in _planned(shape, itemsize, source, target).transfers:
        receiver = one.target // to_one
        # The first sender of a piece to a host sends it for all its devices.
        sender = senders.setdefault((receiver, one.box), one.source)
        pieces = found.setdefault((sender // from_one, receiver), {})
        known = pieces.get(one.box)
        targets = (one.target,) if known is None else (*known.targets, one.target)
        pieces[one.box] = HostedPiece(one.box, sender, targets)
    return {hosts_: tuple(pieces.values()) for hosts_, pieces in found.items()}


def _cut(held: np.ndarray, box: Box, piece: Box) -> np.ndarray:
    return np.ascontiguousarray(held[_within(box, piece)])


def _within(box: Box, piece: Box) -> tuple[slice, ...]:
    """Offset of a piece in a box."""
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in zip(piece, box, strict=True))
