"""Instruction lists run by workers in other processes: one call per worker and step, the state stays with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax.sharding import Mesh

from meshwright.compiler.instructions import StepProgram
from meshwright.runtime.host_arrays import to_host
from meshwright.runtime.micro_batch_parts import fed_part
from meshwright.runtime.moments import Moments, from_start
from meshwright.runtime.workers.crew import Crew
from meshwright.runtime.workers.portable import worker_programs
from meshwright.runtime.workers.remote_arrays import RemoteArray
from meshwright.runtime.workers.remote_team import MadeValues, Team
from meshwright.runtime.workers.worker import BufferMove, KeptReads, Orders


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
            timeout_s: the timeout in seconds in which a worker goes on to its next instruction, or counts as hung.
            hosts: the number of hosts that share each mesh; workers are counted host by host, then mesh by mesh.
            beside: the program whose workers run this one too, with the values that they keep.
            platforms: the platforms of the devices that each mesh has there, as JAX calls them; CPUs without it.
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
        self._team: Team | None = None
        self._beside = beside
        self._loaded: tuple[Team, int] | None = None

    def slow_down(self, paces: Sequence[Sequence[float]]) -> None:
        """Let every instruction take as long as on another device, from the start of the workers on.

        Args:
            paces: least seconds of each RUN and of the way of each message, by mesh.
        """
        self._parts = [replace(part, pace=tuple(paces[part.mesh])) for part in self._parts]

    def sharing(self, program: StepProgram) -> RemoteRuntime:
        """Another program for the same workers, which may take what this one leaves there, and the other way round.

        Args:
            program: the program for the same meshes.
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
            inputs: the inputs of the step, flat; batch arguments whole; arrays, or what an earlier step returned.
            micro_batches: the number of micro-batches into which batch arguments are split.

        Returns:
            The outputs of the step, flat: scalars are arrays, of all else the workers keep the values.

        Raises:
            LostError: a worker died, failed or hung; the workers are let go.
        """
        return self._step(inputs, micro_batches, timed=False)[0]

    def recorded(self, inputs: Sequence[Any], micro_batches: int) -> tuple[list[Any], Moments]:
        """The same, and when each instruction ran; clocks of different machines are not compared.

        Args:
            inputs: the inputs of `step`.
            micro_batches: the micro-batches of `step`.
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

    def _started(self) -> Team:
        """Workers that are connected."""
        if self._beside is not None:
            return self._beside._started()
        if self._team is None or self._team.over:
            devices = [mesh.size // self.hosts for mesh in self.meshes for _ in range(self.hosts)]
            self._team = Team(self._hire(devices), self._timeout_s, self.hosts)
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
    ) -> tuple[list[int], list[KeptReads] | None]:
        """Steps that made the kept values which the lists read; and which of them each list reads, where that, or the
        program that made them, is not as in the last step."""
        indices: dict[MadeValues, int] = {}
        numbered = [(buffer, indices.setdefault(own, len(indices)), place) for _, buffer, own, place in reused]
        steps = [own.step for own in indices]
        now = _LastReading([(own.program, own.timed) for own in indices], numbered)
        if now == self._last:
            return steps, None
        self._last = now
        readings: list[KeptReads] = []
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
