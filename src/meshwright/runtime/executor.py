"""One mesh at work: its instructions done one after the other, on buffers it owns."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.compiler.instructions import Buffer, Instruction, Op
from meshwright.runtime.channels import Channel, LateChannel
from meshwright.runtime.host_arrays import HostForm, as_it_lies, host_form
from meshwright.runtime.host_runs import HOST, on_host
from meshwright.runtime.joined_runs import JoinedRuns, joined_runs
from meshwright.runtime.moments import TimedInstruction

SMALL_BYTES = 1 << 14
"""Up to here placing an array is all overhead."""
COMBINE: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": jnp.add, "and": jnp.bitwise_and, "or": jnp.bitwise_or, "max": jnp.maximum, "min": jnp.minimum,
}  # fmt: skip
"""Operations of ALLREDUCE by name."""


class MeshExecutor:
    """The list of one mesh, its executables and its buffers."""

    def __init__(
        self,
        number: int,
        instructions: Sequence[Instruction],
        buffers: Sequence[Buffer],
        functions: Mapping[str, Callable[..., Any]],
        mesh: Mesh,
        channels: Mapping[int, Channel],
        watch: Callable[[int], None] = lambda place: None,
    ) -> None:
        """Nothing is compiled yet: an executable is compiled when it first runs.

        Args:
            number: the number of this mesh.
            instructions: the instructions of this mesh.
            buffers: the buffers of the whole program, by number.
            functions: what executables compute, flat in and out.
            mesh: its devices.
            channels: the channels to the other meshes.
            watch: called with the place in the list before each instruction.
        """
        self.number, self.instructions, self.buffers, self.mesh = number, instructions, buffers, mesh
        self.values: dict[int, Any] = {}
        self.place = 0
        self.moments: list[TimedInstruction] | None = None
        """Where instructions are timed; each is then waited for."""
        self._functions, self._channels, self._watch = functions, channels, watch
        self.calling: Collection[str] = ()
        """Executables that call Python."""
        self._compiled: dict[Any, Any] = {}
        self._runs: dict[int, Any] = {}
        """Compiled function of each RUN, by its index in the list."""
        self._runs_joined: dict[int, Any] = {}
        """The same of what is joined, by the index of its first."""
        self._runs_apart: dict[int, Any] = {}
        """The same where instructions are timed."""
        self.joined = {} if any(buffer.host for buffer in buffers) else joined_runs(instructions, buffers)
        """Parts of the list that are one executable, where instructions are not timed one by one."""
        self._pace: tuple[float, ...] = ()
        self._posted = -1
        """Place of the ALLREDUCE whose own part was sent last."""
        self._shardings: dict[int, NamedSharding] = {}
        self._forms = [self._of_message(one) for one in instructions]
        self._default = mesh.size == 1 and mesh.devices.flat[0] == jax.devices()[0]

    def slow_down(self, pace: Sequence[float]) -> None:
        """Let every instruction take as long as on another device: results are there, and messages arrive, no sooner.

        Args:
            pace: least seconds of each RUN, and of the way of each message.
        """
        self._pace = tuple(pace)
        self._channels = {peer: LateChannel(channel, self._late_s) for peer, channel in self._channels.items()}

    def _late_s(self) -> float:
        """Delay of the message that is sent now."""
        return self._pace[self.place]

    def begin_timing(self) -> None:
        """Time every instruction from here on, apart, once what the devices are still at is done."""
        self.moments = []
        if not self._pace:
            self.compiled_apart()
        jax.block_until_ready((list(self.values.values()), jax.live_arrays()))

    def compiled_apart(self) -> Mapping[int, Any]:
        """Every RUN compiled by itself for what it reads, by its place; nothing is run."""
        if self._runs_apart:
            return self._runs_apart
        shardings: dict[int, Any] = {}
        known: dict[Any, Any] = {}
        for place, instruction in enumerate(self.instructions):
            if instruction.op is not Op.RUN:
                continue
            given = tuple(shardings.get(buffer, self.sharding(buffer)) for buffer in instruction.reads)
            key = instruction.executable, instruction.donates, given
            if key not in known:
                known[key] = self.compiled(instruction).lower(*self._shapes(instruction.reads, given)).compile()
            self._runs_apart[place] = known[key]
            shardings.update(zip(instruction.writes, known[key].output_shardings, strict=True))
        return self._runs_apart

    def compiled_together(self, part: JoinedRuns) -> Any:
        """A joined part of the list compiled for what it reads; nothing is run.

        Args:
            part: the part of this mesh.
        """
        given = [self.sharding(buffer) for buffer in part.reads]
        return self.compiled_joined(part).lower(*self._shapes(part.reads, given)).compile()

    def _shapes(self, buffers: Sequence[int], given: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
        return [
            jax.ShapeDtypeStruct(self.buffers[buffer].shape, self._dtype(buffer), sharding=sharding)
            for buffer, sharding in zip(buffers, given, strict=True)
        ]

    @property
    def ended(self) -> bool:
        """Whether the list is done."""
        return self.place == len(self.instructions)

    def sharding(self, buffer: int) -> NamedSharding:
        """Sharding of a buffer.

        Args:
            buffer: its number.
        """
        if buffer not in self._shardings:
            own = self.buffers[buffer]
            memory = HOST if own.host else None
            self._shardings[buffer] = NamedSharding(self.mesh, own.spec or PartitionSpec(), memory_kind=memory)
        return self._shardings[buffer]

    def begin(self, values: Mapping[int, Any], lying: Collection[int] = ()) -> list[int]:
        """Go to the start of the list.

        Args:
            values: the values of the buffers that hold one there, anywhere; they are placed.
            lying: buffers whose values are known to have their shardings.

        Returns:
            Buffers whose values had to be placed.
        """
        asked = [buffer for buffer in values if buffer not in lying] if lying else values
        apart = [buffer for buffer in asked if not self._is_placed(values[buffer], buffer)]
        self.values = dict(values)
        if apart:
            self.values.update(zip(apart, self.placed([values[one] for one in apart], apart), strict=True))
        self.place, self._posted = 0, -1
        return apart

    def placed(self, values: Sequence[Any], buffers: Sequence[int]) -> Sequence[Any]:
        """Values with the shardings of buffers; one call for all of them takes less than half of one for each.

        Args:
            values: anywhere.
            buffers: their numbers.
        """
        return jax.device_put([*map(as_it_lies, values)], [self.sharding(buffer) for buffer in buffers])

    def advance(self, *, wait: bool) -> bool:
        """Do instructions up to the end of the list.

        Args:
            wait: whether to wait for messages; without it, stop where one is missing.

        Returns:
            Whether anything was done.
        """
        start = self.place
        while not self.ended:
            instruction = self.instructions[self.place]
            if instruction.op is Op.ALLREDUCE and self._posted != self.place:
                self._watch(self.place)
                self._give(instruction)
                self._posted = self.place
            if not wait and not all(self._channels[one].ready() for one in instruction.sources(self.number)):
                break
            self._watch(self.place)
            if self.moments is not None:
                self.moments.append(self._timed(instruction))
            elif (part := self.joined.get(self.place)) is not None and not self._pace:
                self._do_joined(part)
                self.place = part.end
                continue
            else:
                self._do(instruction)
            self.place += 1
        return self.place > start

    def _timed(self, instruction: Instruction) -> TimedInstruction:
        start_s = time.monotonic()
        self._do(instruction)
        jax.block_until_ready([self.values[buffer] for buffer in instruction.writes])
        return TimedInstruction(self.place, start_s, time.monotonic())

    def _do(self, instruction: Instruction) -> None:
        match instruction.op:
            case Op.RUN:
                self._do_run(instruction)
            case Op.SEND:
                self._give(instruction)
            case Op.RECV:
                self._keep(instruction, self._take(instruction, self._peer(instruction)))
            case Op.BROADCAST if self.number == instruction.group[0]:
                self._give(instruction)
            case Op.BROADCAST:
                self._keep(instruction, self._take(instruction, instruction.group[0]))
            case Op.ALLREDUCE:
                self._do_all_reduce(instruction)
            case Op.RELOAD | Op.OFFLOAD:
                moved = self.placed([self.values[buffer] for buffer in instruction.reads], instruction.writes)
                self.values.update(zip(instruction.writes, moved, strict=True))
            case Op.FREE:
                for buffer in instruction.reads:
                    del self.values[buffer]

    def _do_run(self, instruction: Instruction) -> None:
        run = self._runs_apart.get(self.place) if self.moments is not None else None
        if run is None and (run := self._runs.get(self.place)) is None:
            run = self._runs[self.place] = self.compiled(instruction)
        begun = time.monotonic()
        results = run(*[self.values[buffer] for buffer in instruction.reads])
        if self._pace:
            jax.block_until_ready(results)
            time.sleep(max(begun + self._pace[self.place] - time.monotonic(), 0.0))
        for buffer in instruction.donates:
            del self.values[buffer]
        self.values.update(zip(instruction.writes, results, strict=True))

    def _do_all_reduce(self, instruction: Instruction) -> None:
        (own,), (whole,) = instruction.reads, instruction.writes
        given = [self.values[own] if one == self.number else self._taken(instruction, one) for one in instruction.group]
        self.values[whole] = self._combined(instruction)(*given)

    def _do_joined(self, part: JoinedRuns) -> None:
        if (run := self._runs_joined.get(self.place)) is None:
            run = self._runs_joined[self.place] = self.compiled_joined(part)
        results = run(*[self.values[buffer] for buffer in part.reads])
        for buffer in (*part.donates, *part.freed):
            del self.values[buffer]
        self.values.update(zip(part.writes, results, strict=True))

    def _give(self, instruction: Instruction) -> None:
        """Send what an instruction reads to all whom it concerns."""
        values = [self.values[buffer] for buffer in instruction.reads]
        forms = self._forms[self.place][: len(values)]
        for peer in instruction.targets(self.number):
            self._channels[peer].send(values, forms)

    def _take(self, instruction: Instruction, source: int) -> list[Any]:
        """Receive what an instruction writes."""
        return self._channels[source].receive(self._forms[self.place][len(instruction.reads) :])

    def _taken(self, instruction: Instruction, source: int) -> Any:
        """Part of another mesh in an ALLREDUCE, on this one."""
        (value,) = self._take(instruction, source)
        return value if self._takes(value) else self.placed([value], instruction.writes[:1])[0]

    def _keep(self, instruction: Instruction, values: Sequence[Any]) -> None:
        for buffer, value in zip(instruction.writes, values, strict=True):
            self.values[buffer] = value if self._takes(value) else self.placed([value], [buffer])[0]

    def _combined(self, instruction: Instruction) -> Any:
        """What an ALLREDUCE calls: the same order on all meshes gives all the same result."""
        name = f"{instruction.combine} {len(instruction.group)} {self.buffers[instruction.writes[0]].spec}"
        if name not in self._compiled:
            combine = COMBINE[instruction.combine or ""]
            self._compiled[name] = jax.jit(
                lambda *parts: reduce(combine, parts), out_shardings=self.sharding(instruction.writes[0])
            )
        return self._compiled[name]

    def _is_placed(self, value: Any, buffer: int) -> bool:
        """Whether a value has its buffer's sharding, which to hear from `device_put` takes a hundred times as long."""
        return isinstance(value, jax.Array) and value.committed and value.sharding == self.sharding(buffer)

    def _dtype(self, buffer: int) -> Any:
        form = host_form(self.buffers[buffer].shape, self.buffers[buffer].dtype)
        return jax.random.key(0, impl=form.keys).dtype if form.keys else form.dtype

    def _of_message(self, instruction: Instruction) -> tuple[HostForm, ...]:
        """Host forms of what messages carry: what is read, then what is written."""
        talks = instruction.peer is not None or instruction.group
        moved = (*instruction.reads, *instruction.writes) if talks else ()
        return tuple(host_form(self.buffers[buffer].shape, self.buffers[buffer].dtype) for buffer in moved)

    def _takes(self, value: Any) -> bool:
        """Whether executables take a received value as it is.

        A compiled call places a small array of the host where it runs in a sixth of the time that `device_put` takes.
        """
        return self._default and isinstance(value, np.ndarray) and value.nbytes <= SMALL_BYTES

    def _peer(self, instruction: Instruction) -> int:
        assert instruction.peer is not None
        return instruction.peer

    def compiled(self, instruction: Instruction) -> Any:
        """What a RUN calls.

        Args:
            instruction: a RUN of this mesh.
        """
        places = tuple(place for place, buffer in enumerate(instruction.reads) if buffer in instruction.donates)
        name = instruction.executable or "", places
        if name not in self._compiled:
            wanted, function = self._wanted([instruction], instruction), self._functions[name[0]]
            if any(self.buffers[buffer].host for buffer in instruction.reads):
                function = on_host(function, [self.buffers[buffer].host for buffer in instruction.writes])
            self._compiled[name] = jax.jit(function, out_shardings=wanted, donate_argnums=places)
        return self._compiled[name]

    def compiled_joined(self, part: JoinedRuns) -> Any:
        """What a joined part of the list calls.

        Args:
            part: the part of this mesh.
        """
        if part.form not in self._compiled:
            wanted = self._wanted(part.runs, part)
            places = tuple(place for place, buffer in enumerate(part.reads) if buffer in part.donates)
            function = part.function(self._functions, self.buffers, self._within)
            self._compiled[part.form] = jax.jit(function, out_shardings=wanted, donate_argnums=places)
        return self._compiled[part.form]

    def _wanted(self, runs: Sequence[Instruction], part: Instruction | JoinedRuns) -> list[NamedSharding | None]:
        """Shardings of what is written; XLA chooses the others, but where it would choose one device.

        Without an argument nothing else says on which devices it runs, and what Python is called with is on one.
        """
        chosen = part.reads and not any(run.executable in self.calling for run in runs)
        anywhere = None if chosen else NamedSharding(self.mesh, PartitionSpec())
        left = {buffer for buffer in part.writes if self.buffers[buffer].spec is None and not self.buffers[buffer].host}
        return [anywhere if buffer in left else self.sharding(buffer) for buffer in part.writes]

    def _within(self, value: Any, buffer: int, stacked: bool) -> Any:
        """A value inside of a joined part, or a stack of several, sharded as its buffer is."""
        spec = self.buffers[buffer].spec
        if spec is None or self.mesh.size == 1:
            return value
        sharding = NamedSharding(self.mesh, PartitionSpec(None, *spec)) if stacked else self.sharding(buffer)
        return jax.lax.with_sharding_constraint(value, sharding)
