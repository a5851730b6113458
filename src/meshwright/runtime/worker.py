"""A mesh worker: it owns the devices of one mesh, keeps its list and state, and does one step a call."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.compiler.instructions import Buffer
    from meshwright.runtime.executor import MeshExecutor
    from meshwright.runtime.moments import TimedInstruction
    from meshwright.runtime.portable import WorkerProgram
    from meshwright.runtime.sockets import Address, Listener, Wires

Key = tuple[int, int]
"""A value that a worker keeps: the step that made it, and its buffer there."""

FOLDER = "MESHWRIGHT_WORKERS"
"""Variable that names the folder of a run, where workers have the sockets by which they find each other."""
BETWEEN = -1
"""Place in the list of a worker that does none of its instructions."""
MOVING = -2
"""Place of one that waits for state that another mesh kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferMove:
    """A kept value that another mesh reads."""

    key: Key
    given: Buffer
    """Buffer that held the value where it was made."""
    target: int
    buffer: int
    """On the target."""

    @property
    def source(self) -> int:
        """Mesh that keeps it."""
        return self.given.mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What one worker does in one step."""

    fed: Mapping[int, Any] = field(default_factory=dict)
    """Values of buffers, from the driver."""
    reused: Mapping[int, Key] = field(default_factory=dict)
    """Buffers that hold kept values."""
    moves: Sequence[BufferMove] = ()
    """Moves between workers before the list runs, in the same order for all."""
    drop: Sequence[Key] = ()
    """Kept values that nobody refers to any more."""
    step: int = 0
    """Under which the worker keeps what it makes."""
    timed: bool = False
    """Whether instructions are timed, and waited for."""
    program: int = 0
    """Index of the program among those loaded in the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a worker reports of a step."""

    scalars: Mapping[Key, Any]
    """Kept values without axes."""
    moments: Sequence[TimedInstruction] = ()
    """When each instruction ran, where it was asked."""


class MeshWorker:
    """Lives in the process that owns the mesh's devices."""

    def __init__(self, mesh: int, watch: Callable[[int], None]) -> None:
        """JAX is not started yet.

        Args:
            mesh: its number.
            watch: called with the place in the list before each instruction, and `BETWEEN` when the list ends.
        """
        self.mesh, self._watch = mesh, watch
        watch(BETWEEN)
        self._kept: dict[Key, Any] = {}
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
        from meshwright.runtime.sockets import Listener

        run = os.environ.get(FOLDER)
        if run is not None:
            os.makedirs(run, mode=0o700, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix="meshwright-" if run is None else "w", dir=run)
        self._listener = Listener(Path(self._folder.name), host)
        return self._listener.address

    def connect(self, addresses: Sequence[Address], secret: bytes, parent: int | None = None) -> None:
        """Connect with the other workers.

        Args:
            addresses: of all workers, by mesh.
            secret: of this run.
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
            part: of the program.
        """
        import jax
        import numpy as np
        from jax.sharding import Mesh

        from meshwright.runtime.executor import MeshExecutor

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
            from meshwright.runtime.hosted import HostedExecutor

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

        for key in orders.drop:
            del self._kept[key]
        self._executor = self._executors[orders.program]
        buffers = self._executor.buffers
        fed = {buffer: from_host(value, host_form(buffers[buffer].shape, buffers[buffer].dtype).keys)
               for buffer, value in orders.fed.items()}  # fmt: skip
        fed |= {buffer: self._kept[key] for buffer, key in orders.reused.items()}
        for move in orders.moves:
            if move.source == self._part.mesh:
                self._give(move)
            elif move.target == self._part.mesh:
                self._watch(MOVING)
                fed[move.buffer] = self._taken(move)
        self._watch(BETWEEN)
        self._executor.begin(fed)
        self._executor.moments = None
        if orders.timed:
            self._executor.begin_timing()
        self._executor.advance(wait=True)
        self._watch(BETWEEN)
        kept = self._parts[orders.program].kept
        made = {(orders.step, buffer): self._executor.values[buffer] for buffer in kept}
        self._executor.values = {}
        self._kept.update(made)
        return Done(
            scalars={key: to_host(value) for key, value in made.items() if not value.shape},
            moments=tuple(self._executor.moments or ()),
        )

    def _give(self, move: BufferMove) -> None:
        from meshwright.runtime.host_arrays import host_form

        value = self._kept[move.key]
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
            key: of the value.
        """
        from meshwright.runtime.host_arrays import to_host

        if self._part.hosts > 1:
            from meshwright.runtime.hosted import parts_here

            return parts_here(self._kept[key])
        return to_host(self._kept[key])
