"""A mesh worker: it owns the devices of one mesh, keeps its list and state, and does one step a call."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.compiler.instructions import Buffer
    from meshwright.runtime.executor import MeshExecutor
    from meshwright.runtime.moments import TimedInstruction
    from meshwright.runtime.workers.portable import WorkerProgram
    from meshwright.runtime.workers.sockets import Address, Listener, Wires

Key = tuple[int, int]
"""A value that a worker keeps: the step that made it, and its buffer there."""
KeptReads = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""What a list reads of kept values: its buffers, and of each the index of its step and its buffer there."""

FOLDER = "MESHWRIGHT_WORKERS"
"""Variable that names the folder of a run, where workers have the sockets by which they find each other."""
BETWEEN = -1
"""Place in the list of a worker that does none of its instructions."""
MOVING = -2
"""Place of one that waits for state that another mesh kept."""
BEHIND = -3
"""Place of one that has done its list and gathers what it keeps and returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferMove:
    """A kept value that another mesh reads."""

    key: Key
    given: Buffer
    """Buffer that held the value where it was made."""
    target: int
    buffer: int
    """Buffer on the target."""

    @property
    def source(self) -> int:
        """Mesh that keeps it."""
        return self.given.mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What one worker does in one step."""

    fed: Mapping[int, Any] = field(default_factory=dict)
    """Values of buffers, from the driver."""
    steps: Sequence[int] = ()
    """Steps that made the kept values which the list reads."""
    reading: KeptReads | None = None
    """Which values of these steps; None where it is as in the last step of this program, and they were made alike."""
    moves: Sequence[BufferMove] = ()
    """Moves between workers before the list runs, in the same order for all."""
    drop: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Buffers, of all meshes, whose kept values nobody refers to any more, by the step that made them."""
    step: int = 0
    """Number of the step under which the worker keeps what it makes."""
    timed: bool = False
    """Whether instructions are timed, and waited for."""
    program: int = 0
    """Index of the program among those loaded in the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a worker reports of a step."""

    scalars: Mapping[int, Any]
    """Kept values without axes, by buffer."""
    moments: Sequence[TimedInstruction] = ()
    """When each instruction ran, where it was asked."""


class MeshWorker:
    """Lives in the process that owns the mesh's devices."""

    def __init__(self, mesh: int, watch: Callable[[int], None]) -> None:
        """JAX is not started yet.

        Args:
            mesh: its number.
            watch: called with the place in the list before each instruction, with `MOVING` and `BEHIND` around the
                list, and with `BETWEEN` where the worker waits for a call.
        """
        self.mesh, self._watch = mesh, watch
        watch(BETWEEN)
        self._kept: dict[int, dict[int, Any]] = {}
        self._readings: dict[int, KeptReads] = {}
        """What each program read in its last step."""
        self._lying: dict[int, Collection[int]] = {}
        """Buffers of each program whose kept values then had their shardings: values made alike have them too."""
        self._listener: Listener
        self._wires: Wires
        self._part: WorkerProgram
        self._executor: MeshExecutor
        self._executors: list[MeshExecutor] = []
        self._parts: list[WorkerProgram] = []

    def listen(self, host: str) -> Address:
        """Open what the other workers connect to.

        Args:
            host: address of this machine that the others reach.
        """
        from meshwright.runtime.workers.sockets import Listener

        run = os.environ.get(FOLDER)
        if run is not None:
            os.makedirs(run, mode=0o700, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix="meshwright-" if run is None else "w", dir=run)
        self._listener = Listener(Path(self._folder.name), host)
        return self._listener.address

    def connect(self, addresses: Sequence[Address], secret: bytes, parent: int | None = None) -> None:
        """Connect with the other workers.

        Args:
            addresses: the addresses of all workers, by mesh.
            secret: the secret of this run.
            parent: file whose other end the driver holds.
        """
        self._wires = self._listener.connect(self.mesh, addresses, secret)
        self._folder.cleanup()
        if FOLDER in os.environ:
            # The last worker of a machine to be connected; others still have their sockets there.
            with suppress(OSError):
                os.rmdir(os.environ[FOLDER])
        if parent is not None:
            self._wires.end_with(parent)

    def coordinator(self, host: str) -> str:
        """An address where the hosts of this worker's mesh find each other.

        Args:
            host: address of this machine that the others reach.
        """
        with socket.create_server((host, 0)) as free:
            return f"{host}:{free.getsockname()[1]}"

    def load(self, part: WorkerProgram) -> None:
        """Take the list and the executables of one more program; programs are counted as they come.

        Args:
            part: the part of the program.
        """
        import jax
        import numpy as np
        from jax.sharding import Mesh

        from meshwright.runtime.compilation_cache import write_whole_entries
        from meshwright.runtime.executor import MeshExecutor

        write_whole_entries()  # a worker may be killed while it compiles
        self._part = part
        self._parts.append(part)
        if part.hosts > 1 and not self._executors:
            jax.distributed.initialize(part.coordinator, part.hosts, part.host)
        count = int(np.prod(part.sizes))
        own = jax.devices()
        if len(own) < count:
            raise RuntimeError(f"this mesh has {count} devices of {part.platform}, and its workers own {len(own)}")
        devices = np.array(own[:count]).reshape(part.sizes)
        if part.hosts > 1:
            from meshwright.runtime.workers.hosted import HostedExecutor

            mesh = Mesh(devices, part.axes)
            hosted = HostedExecutor(part, part.functions(), mesh, self._wires.channel, self._watch)
            self._executors.append(hosted)
            return
        peers = {peer for one in part.instructions for peer in (*one.targets(part.mesh), *one.sources(part.mesh))}
        one = MeshExecutor(
            part.mesh,
            part.instructions,
            part.buffers,
            part.functions(),
            Mesh(devices, part.axes),
            {peer: self._wires.channel(peer) for peer in peers},
            self._watch,
        )
        if part.pace:
            one.slow_down(part.pace)
        self._executors.append(one)

    def step(self, orders: Orders) -> Done:
        """Run the list once.

        Args:
            orders: what it starts from and what is kept.
        """
        from meshwright.runtime.host_arrays import from_host, host_form, to_host

        self._drop(orders.drop)
        self._executor = self._executors[orders.program]
        buffers = self._executor.buffers
        fed = {
            buffer: from_host(value, host_form(buffers[buffer].shape, buffers[buffer].dtype).keys)
            for buffer, value in orders.fed.items()
        }
        if orders.reading is not None:
            self._readings[orders.program] = orders.reading
        targets, indices, sources = self._readings.get(orders.program, ((), (), ()))
        made_by = [self._kept.get(step, {}) for step in orders.steps]
        fed |= {target: made_by[index][source] for target, index, source in zip(targets, indices, sources, strict=True)}
        for move in orders.moves:
            if move.source == self._part.mesh:
                self._give(move)
            elif move.target == self._part.mesh:
                self._watch(MOVING)
                fed[move.buffer] = self._taken(move)
        self._watch(BETWEEN)
        lying = self._lying.get(orders.program, ()) if orders.reading is None else ()
        placed = self._executor.begin(fed, lying)
        if orders.reading is not None:
            self._lying[orders.program] = frozenset(targets).difference(placed)
        self._executor.moments = None
        if orders.timed:
            self._executor.begin_timing()
        self._executor.advance(wait=True)
        self._watch(BEHIND)
        kept = self._parts[orders.program].kept
        values = self._executor.values
        if made := {buffer: values[buffer] for buffer in kept}:
            self._kept[orders.step] = made
        self._executor.values = {}
        scalars = {buffer: to_host(made[buffer]) for buffer in kept if not buffers[buffer].shape}
        self._watch(BETWEEN)
        return Done(scalars=scalars, moments=tuple(self._executor.moments or ()))

    def _drop(self, dropped: Mapping[int, Sequence[int]]) -> None:
        for step, numbers in dropped.items():
            if (made := self._kept.get(step)) is None:
                continue
            for number in numbers:
                made.pop(number, None)
            if not made:
                del self._kept[step]

    def _value(self, key: Key) -> Any:
        step, number = key
        return self._kept[step][number]

    def _give(self, move: BufferMove) -> None:
        from meshwright.runtime.host_arrays import host_form

        value = self._value(move.key)
        if self._part.hosts > 1:
            self._executor.send([value], [move.given], [self._executor.buffers[move.buffer]])  # type: ignore[attr-defined]
        else:
            self._wires.channel(move.target).send([value], [host_form(move.given.shape, move.given.dtype)])

    def _taken(self, move: BufferMove) -> Any:
        from meshwright.runtime.host_arrays import host_form

        if self._part.hosts > 1:
            wanted = self._executor.buffers[move.buffer]
            (value,) = self._executor.receive([move.given], [wanted])  # type: ignore[attr-defined]
        else:
            wanted = self._executor.buffers[move.buffer]
            (value,) = self._wires.channel(move.source).receive([host_form(wanted.shape, wanted.dtype)])
        return value

    def fetch(self, key: Key) -> Any:
        """A kept value, gathered; of a mesh with several hosts, the parts of this one.

        Args:
            key: the key of the value.
        """
        from meshwright.runtime.host_arrays import to_host

        if self._part.hosts > 1:
            from meshwright.runtime.workers.hosted import parts_here

            return parts_here(self._value(key))
        return to_host(self._value(key))
