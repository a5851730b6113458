"""Workers in other processes from their start to their end, and the values that a step left with them."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meshwright.compiler.instructions import Buffer, Instruction
from meshwright.errors import LostError, Problem
from meshwright.runtime.workers.crew import Crew, run_together
from meshwright.runtime.workers.hosted import together_again
from meshwright.runtime.workers.portable import WorkerProgram
from meshwright.runtime.workers.worker import Done, Key, Orders

COMPILING = 10
"""Factor on the workers' time limit in the first step, which compiles."""
SECRET_BYTES = 16


@dataclass(eq=False, slots=True, kw_only=True)
class MadeValues:
    """What one step left with the workers."""

    team: Team
    step: int
    """Number of the step under which the workers keep it."""
    program: int
    """Index of the program among those loaded in the workers."""
    timed: bool
    """Whether instructions were timed, and so compiled one by one."""
    buffers: Sequence[Buffer]
    """Buffers of the program."""
    hosts: dict[int, np.ndarray] = field(default_factory=dict)
    """Values that are here too, by buffer."""
    given: set[int] = field(default_factory=set)
    """Buffers whose memory a step has taken."""
    dropped: list[int] = field(default_factory=list)
    """Buffers that nobody refers to any more, since the workers were told last."""


@dataclass(eq=False)
class Team:
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
            raise LostError(
                Problem(
                    what="the workers that kept this value are gone",
                    field="backend",
                    why="a worker was lost, or the runtime was closed",
                    fix="go on from the last checkpoint",
                )
            )
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
