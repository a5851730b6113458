"""Instruction lists run by workers in other processes: one call per worker and step, the state stays with them."""

from __future__ import annotations

import secrets
import weakref
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from meshwright.compiler.instructions import Buffer, Instruction, StepProgram
from meshwright.errors import InputError, LostError, Problem
from meshwright.runtime.crew import Crew, run_together
from meshwright.runtime.host_arrays import from_host, host_form, to_host
from meshwright.runtime.hosted import together_again
from meshwright.runtime.local import GIVEN
from meshwright.runtime.micro_batch_parts import fed_part
from meshwright.runtime.moments import Moments, from_start
from meshwright.runtime.portable import WorkerProgram, worker_programs
from meshwright.runtime.worker import BufferMove, Done, Key, Orders, Reading

COMPILING = 10
"""In the first step, which compiles, workers have so many times the limit."""
SECRET_BYTES = 16


class DistributedArray(ABC):
    """An array that is not in one place of this process."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""

    @property
    @abstractmethod
    def dtype(self) -> Any:
        """Type of the entries."""

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(eq=False, slots=True, kw_only=True)
class MadeValues:
    """What one step left with the workers."""

    team: _Team
    step: int
    """Under which the workers keep it."""
    program: int
    """Index of the program among those loaded in the workers."""
    timed: bool
    """Whether instructions were timed, and so compiled one by one."""
    buffers: Sequence[Buffer]
    """Of the program."""
    hosts: dict[int, np.ndarray] = field(default_factory=dict)
    """Values that are here too, by buffer."""
    given: set[int] = field(default_factory=set)
    """Buffers whose memory a step has taken."""
    dropped: list[int] = field(default_factory=list)
    """Buffers that nobody refers to any more, since the workers were told last."""


class RemoteArray(DistributedArray):
    """A value that a worker keeps; `numpy.asarray` gathers it."""

    # A step of a large model makes hundreds of these, so they hold no more than where they come from.
    __slots__ = ("_made", "_number")

    def __init__(self, made: MadeValues, number: int) -> None:
        """Refer to a value.

        Args:
            made: by which step.
            number: of the buffer that held it.
        """
        self._made = made
        self._number = number

    def __del__(self) -> None:
        # In a tenth of the time of a finalizer, of which a step would make one for every array of the state.
        made = self._made
        made.dropped.append(self._number)
        if len(made.dropped) == 1:
            made.team.dropping.append(made)

    @property
    def buffer(self) -> Buffer:
        """Buffer that held it, the same object after every step of a program."""
        return self._made.buffers[self._number]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return self.buffer.shape

    @property
    def dtype(self) -> Any:
        """Type of the entries."""
        form = host_form(self.buffer.shape, self.buffer.dtype)
        return jax.random.key(0, impl=form.keys).dtype if form.keys else form.dtype

    @property
    def mesh(self) -> int:
        """Mesh that holds it."""
        return self.buffer.mesh

    def gather(self) -> Any:
        """The whole value, as an array that JAX takes."""
        form = host_form(self.buffer.shape, self.buffer.dtype)
        return from_host(self._numbers(), form.keys)

    def give(self) -> None:
        """Its memory is taken by a step."""
        self._made.given.add(self._number)

    def check(self) -> None:
        """Whether it can still be read.

        Raises:
            InputError: a step has taken its memory.
        """
        if self._number in self._made.given:
            raise InputError(GIVEN)

    def _numbers(self) -> np.ndarray:
        hosts, number = self._made.hosts, self._number
        if number not in hosts:
            self.check()
            hosts[number] = self._made.team.fetch(self.mesh, (self._made.step, number))
        return hosts[number]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._numbers(), dtype=dtype, copy=copy)

    def __jax_array__(self) -> jax.Array:
        return jax.numpy.asarray(self.gather())

    def __float__(self) -> float:
        return float(self._numbers())

    def __int__(self) -> int:
        return int(self._numbers())

    def __getitem__(self, index: Any) -> Any:
        return self.gather()[index]

    def __repr__(self) -> str:
        return f"RemoteArray({self.buffer.dtype}{list(self.shape)} on mesh {self.mesh})"


class RemoteRuntime:
    """A program and the workers that run it; they are started by the first step."""

    def __init__(
        self,
        program: StepProgram,
        meshes: Sequence[Mesh],
        hire: Callable[[Sequence[int]], Crew],
        timeout_s: float,
        hosts: int = 1,
        beside: RemoteRuntime | None = None,
        platforms: Sequence[str] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            program: what to run.
            meshes: one per list; their shapes and axes are those of the workers' meshes.
            hire: makes a crew from the number of devices of each worker.
            timeout_s: in which a worker goes on to its next instruction, or counts as hung.
            hosts: that share each mesh; workers are counted host by host, then mesh by mesh.
            beside: whose workers run this program too, with the values that they keep.
            platforms: of the devices that each mesh has there, as JAX calls them; CPUs without it.
        """
        self.program, self.meshes, self.hosts = program, tuple(meshes), hosts
        self._hire, self._timeout_s = hire, timeout_s
        self._platforms = list(platforms or ["cpu"] * len(self.meshes))
        self._parts = [
            replace(part, host=host, hosts=hosts)
            for part in worker_programs(program, list(meshes), self._platforms)
            for host in range(hosts)
        ]
        self._taken = program.taken
        # A step of a large model goes through hundreds of these.
        self._feeds = [(feed.input, feed.buffer, program.buffers[feed.buffer].mesh, feed) for feed in program.feeds]
        self._made = tuple(dict.fromkeys(one.buffer for one in program.outcomes if one.buffer is not None))
        self._last: _LastReading | None = None
        self._team: _Team | None = None
        self._beside = beside
        self._loaded: tuple[_Team, int] | None = None

    def slow_down(self, paces: Sequence[Sequence[float]]) -> None:
        """Let every instruction take as long as on another device, from the start of the workers on.

        Args:
            paces: least seconds of each RUN and of the way of each message, by mesh.
        """
        self._parts = [replace(part, pace=tuple(paces[part.mesh])) for part in self._parts]

    def sharing(self, program: StepProgram) -> RemoteRuntime:
        """Another program for the same workers, which may take what this one leaves there, and the other way round.

        Args:
            program: for the same meshes.
        """
        return RemoteRuntime(program, self.meshes, self._hire, self._timeout_s, self.hosts, self, self._platforms)

    @property
    def crew(self) -> Crew | None:
        """The workers, where there are any."""
        return None if self._team is None else self._team.crew

    def close(self) -> None:
        """Let the workers and the state they keep go."""
        if self._team is not None:
            self._team.end(kill=False)
            self._team = None

    def step(self, inputs: Sequence[Any], micro_batches: int) -> list[Any]:
        """Run every list once.

        Args:
            inputs: of the step, flat; batch arguments whole; arrays, or what an earlier step returned.
            micro_batches: into which batch arguments are split.

        Returns:
            The outputs of the step, flat: scalars are arrays, of all else the workers keep the values.

        Raises:
            LostError: a worker died, failed or hung; the workers are let go.
        """
        return self._step(inputs, micro_batches, timed=False)[0]

    def recorded(self, inputs: Sequence[Any], micro_batches: int) -> tuple[list[Any], Moments]:
        """The same, and when each instruction ran; clocks of different machines are not compared.

        Args:
            inputs: as of `step`.
            micro_batches: as of `step`.
        """
        return self._step(inputs, micro_batches, timed=True)

    def _step(self, inputs: Sequence[Any], micro_batches: int, *, timed: bool) -> tuple[list[Any], Moments]:
        team = self._started()
        if self._loaded is None or self._loaded[0] is not team:
            self._loaded, self._last = (team, team.load(self._parts)), None
        made = MadeValues(
            team=team, step=team.steps, program=self._loaded[1], timed=timed, buffers=self.program.buffers
        )
        orders = self._orders(made, inputs, micro_batches)
        done = team.step(orders, self.program.lists)
        for place in self._taken:
            if isinstance(inputs[place], RemoteArray):
                inputs[place].give()
        for one in done:
            made.hosts.update(one.scalars)
        arrays = {number: RemoteArray(made, number) for number in self._made}
        outputs = [
            inputs[outcome.input] if outcome.buffer is None else arrays[outcome.buffer]  # type: ignore[index]
            for outcome in self.program.outcomes
        ]
        return outputs, from_start([one.moments for one in done[:: self.hosts]])

    def _started(self) -> _Team:
        """Workers that are connected."""
        if self._beside is not None:
            return self._beside._started()
        if self._team is None or self._team.over:
            devices = [mesh.size // self.hosts for mesh in self.meshes for _ in range(self.hosts)]
            self._team = _Team(self._hire(devices), self._timeout_s, self.hosts)
            self._team.start(len(devices))
        return self._team

    def _orders(self, made: MadeValues, inputs: Sequence[Any], micro_batches: int) -> list[Orders]:
        team = made.team
        fed: dict[int, dict[int, Any]] = defaultdict(dict)
        reused: list[tuple[int, int, MadeValues, int]] = []
        moves = []
        hosts: dict[int, np.ndarray] = {}
        for number, buffer, mesh, feed in self._feeds:
            value = inputs[number]
            if type(value) is RemoteArray:
                own, place = value._made, value._number
                if place in own.given:
                    value.check()
                if own.team is team and feed.micro_batch is None:
                    given = own.buffers[place]
                    if given.mesh == mesh:
                        reused.append((mesh, buffer, own, place))
                    else:
                        moves.append(BufferMove(key=(own.step, place), given=given, target=mesh, buffer=buffer))
                    continue
            if feed.micro_batch is None or type(value) is RemoteArray:
                if number not in hosts:
                    hosts[number] = to_host(value)
                value = hosts[number]
            fed[mesh][buffer] = to_host(fed_part({number: value}, feed, micro_batches))  # type: ignore[arg-type]
        steps, readings = self._reading(made, reused)
        dropped = team.take_dropped()
        return [
            Orders(
                fed=fed[mesh],
                steps=steps,
                reading=None if readings is None else readings[mesh],
                moves=moves,
                drop=dropped,
                step=made.step,
                timed=made.timed,
                program=made.program,
            )
            for mesh in range(self.program.meshes)
        ]

    def _reading(
        self, made: MadeValues, reused: Sequence[tuple[int, int, MadeValues, int]]
    ) -> tuple[list[int], list[Reading] | None]:
        """Steps that made the kept values which the lists read; and which of them each list reads, where that, or the
        program that made them, is not as in the last step."""
        indices: dict[MadeValues, int] = {}
        numbered = [(buffer, indices.setdefault(own, len(indices)), place) for _, buffer, own, place in reused]
        steps = [own.step for own in indices]
        now = _LastReading([(own.program, own.timed) for own in indices], numbered)
        if now == self._last:
            return steps, None
        self._last = now
        readings: list[Reading] = []
        for mesh in range(self.program.meshes):
            own = [one for (where, *_), one in zip(reused, numbered, strict=True) if where == mesh]
            readings.append(tuple(zip(*own, strict=True)) if own else ((), (), ()))  # type: ignore[arg-type]
        return steps, readings


@dataclass(frozen=True, slots=True)
class _LastReading:
    """What kept values the last step of a program read."""

    makers: list[tuple[int, bool]]
    """Programs that made them, and whether they were timed."""
    read: list[tuple[int, int, int]]
    """Buffer, index of the maker, and its buffer."""


@dataclass(eq=False)
class _Team:
    """Workers from their start to their end."""

    crew: Crew
    timeout_s: float
    hosts: int = 1
    steps: int = 0
    programs: int = 0
    over: bool = False

    def __post_init__(self) -> None:
        self.dropping: list[MadeValues] = []
        self._end = weakref.finalize(self, self.crew.close, kill=True)

    def start(self, count: int) -> None:
        """Connect the workers."""
        secret = secrets.token_bytes(SECRET_BYTES)
        workers = range(count)
        addresses = self._together(dict.fromkeys(workers, ("listen", self.crew.host)))
        self._together({worker: ("connect", [addresses[one] for one in workers], secret) for worker in workers})

    def load(self, parts: Sequence[WorkerProgram]) -> int:
        """Give the workers their parts of one more program; its number."""
        if self.hosts > 1 and not self.programs:
            first = range(0, len(parts), self.hosts)
            meeting = self._together(dict.fromkeys(first, ("coordinator", self.crew.host)))
            parts = [replace(part, coordinator=meeting[part.worker_of(part.mesh, 0)]) for part in parts]
        self._together({worker: ("load", part) for worker, part in enumerate(parts)})
        self.programs += 1
        return self.programs - 1

    def step(self, orders: Sequence[Orders], lists: Sequence[Sequence[Instruction]]) -> list[Done]:
        """One call per worker."""
        own = [one for one in orders for _ in range(self.hosts)]
        answers = self._together({worker: ("step", one) for worker, one in enumerate(own)}, lists)
        self.steps += 1
        return [answers[worker] for worker in range(len(own))]

    def fetch(self, mesh: int, key: Key) -> np.ndarray:
        """A value that a worker keeps."""
        if self.over:
            raise LostError(Problem(what="the workers that kept this value are gone", field="backend",
                                    why="a worker was lost, or the runtime was closed",
                                    fix="go on from the last checkpoint"))  # fmt: skip
        workers = range(mesh * self.hosts, (mesh + 1) * self.hosts)
        answers = self._together(dict.fromkeys(workers, ("fetch", key)))
        if self.hosts == 1:
            return answers[mesh]
        return together_again([part for worker in workers for part in answers[worker]])

    def take_dropped(self) -> dict[int, list[int]]:
        """Buffers that the driver no longer refers to since the last call, by the step that made them."""
        dropping, self.dropping = self.dropping, []
        dropped = {}
        for made in dropping:
            dropped[made.step], made.dropped = made.dropped, []
        return dropped

    def end(self, *, kill: bool) -> None:
        """Let the workers go."""
        self.over = True
        if self._end.detach():
            self.crew.close(kill=kill)

    def _together(
        self, calls: dict[int, tuple[Any, ...]], lists: Sequence[Sequence[Instruction]] = ()
    ) -> dict[int, Any]:
        limit_s = self.timeout_s * (1 if lists and self.steps >= self.programs else COMPILING)
        try:
            every = [own for own in lists for _ in range(self.hosts)]
            return run_together(self.crew, calls, limit_s, every, self.hosts)
        except BaseException:
            # Also where the user stops it: an answer still under way would be taken for that of the next call.
            self.end(kill=True)
            raise
