"""The workers of a run, as the driver sees them, wherever they live."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from meshwright.compiler.instructions import Instruction
from meshwright.errors import LostError, Problem
from meshwright.runtime.workers.worker import BEHIND, MOVING

LOOK_S = 0.5
"""Time between two looks at where workers are."""
AFTERWARDS_S = 1.0
"""When a worker fails, others may only have missed it: so long the cause is waited for."""
DOING = {
    "listen": "while it opened an address for the others",
    "connect": "while it connected with the others",
    "coordinator": "while it looked for a port where the hosts of its mesh meet",
    "load": "while it started JAX and loaded its program",
    "fetch": "while it gave back a value that it keeps",
    "step": "before its first instruction",
}
"""What a worker does in each call, said where no place in its list says it closer."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer of a worker whose call failed."""

    why: str
    lost: int | None = None
    """Mesh that was gone when this one wanted something from it."""

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """An error in a form that another process can read.

        Args:
            error: any.
        """
        first = (str(error).splitlines() or [""])[0][:300]
        return cls(f"{type(error).__name__}: {first}", getattr(error, "peer", None))


@dataclass(frozen=True, slots=True)
class Gone:
    """Stands for an answer where the worker is no more."""

    why: str


Answer = Any
"""What a call returned, `Failed` or `Gone`."""


class Crew(Protocol):
    """One worker per mesh."""

    host: str
    """Address under which workers of this machine listen; empty where each knows its own."""

    def call(self, mesh: int, name: str, *arguments: Any) -> None:
        """Start a call of a worker's method; one at a time.

        Args:
            mesh: the mesh of the worker.
            name: the name of the method of `MeshWorker`.
            arguments: the arguments of the method.
        """
        ...

    def answers(self, meshes: Sequence[int], limit_s: float) -> list[tuple[int, Answer]]:
        """Answers to calls, of at least one worker unless time runs out.

        Args:
            meshes: the meshes whose answers are wanted.
            limit_s: the limit in seconds to wait.
        """
        ...

    def places(self) -> list[int]:
        """Place of each worker in its list, as last heard."""
        ...

    def close(self, *, kill: bool) -> None:
        """Let the workers go.

        Args:
            kill: whether to stop them without giving them time.
        """
        ...


def run_together(
    crew: Crew,
    calls: dict[int, tuple[Any, ...]],
    limit_s: float,
    lists: Sequence[Sequence[Instruction]],
    hosts: int = 1,
) -> dict[int, Any]:
    """Call workers at the same time and wait for all.

    Args:
        crew: the workers.
        calls: method and arguments by mesh.
        limit_s: the limit in seconds in which every worker answers or goes on to another instruction.
        lists: the instruction lists of all workers, to say where one was.
        hosts: the number of hosts that share each mesh.

    Returns:
        What the methods returned, by mesh.

    Raises:
        LostError: a worker died, failed, or stood still for longer.
    """
    for mesh, (name, *arguments) in calls.items():
        crew.call(mesh, name, *arguments)
    results: dict[int, Any] = {}
    wrong: dict[int, Failed | Gone] = {}
    seen, moved = crew.places(), time.monotonic()
    deadline: float | None = None
    while len(results) + len(wrong) < len(calls) and (deadline is None or time.monotonic() < deadline):
        waiting = [mesh for mesh in calls if mesh not in results and mesh not in wrong]
        for mesh, answer in crew.answers(waiting, LOOK_S):
            (wrong if isinstance(answer, Failed | Gone) else results)[mesh] = answer
            moved = time.monotonic()
        if wrong and deadline is None:
            deadline = time.monotonic() + AFTERWARDS_S
        if (places := crew.places()) != seen:
            seen, moved = places, time.monotonic()
        if not wrong and time.monotonic() - moved > limit_s:
            raise _stalled({mesh: calls[mesh][0] for mesh in waiting}, seen, lists, limit_s, hosts)
    if wrong:
        raise _lost(wrong, {mesh: calls[mesh][0] for mesh in wrong}, crew.places(), lists, hosts)
    return results


def _where(mesh: int, call: str, places: Sequence[int], lists: Sequence[Sequence[Instruction]]) -> str:
    at = _instruction(mesh, places, lists)
    if at is not None:
        return f"at instruction {places[mesh] + 1} of {len(lists[mesh])}, {at.op} {at.label}"
    if lists and places[mesh] == MOVING:
        return "while it waited for state that another mesh kept, before its first instruction"
    return "after its last instruction" if lists and places[mesh] == BEHIND else DOING[call]


def _instruction(mesh: int, places: Sequence[int], lists: Sequence[Sequence[Instruction]]) -> Instruction | None:
    return lists[mesh][places[mesh]] if lists and places[mesh] >= 0 else None


_FIX = "call the step with arrays of the last checkpoint: workers are started anew"


def _name(worker: int, hosts: int) -> str:
    mesh = f"the worker of mesh {worker // hosts}"
    return mesh if hosts == 1 else f"{mesh} on its host {worker % hosts}"


def _lost(
    wrong: dict[int, Failed | Gone],
    calls: Mapping[int, str],
    places: Sequence[int],
    lists: Sequence[Sequence[Instruction]],
    hosts: int,
) -> LostError:
    """The cause: a worker that is gone, or one that failed by itself; workers that waited for it are left out."""
    gone: dict[int, Failed | Gone] = {mesh: one for mesh, one in wrong.items() if isinstance(one, Gone)}
    causes = gone or {mesh: one for mesh, one in wrong.items() if isinstance(one, Failed) and one.lost is None}
    return LostError(
        [
            Problem(
                what=f"{_name(mesh, hosts)} {'died' if isinstance(one, Gone) else 'failed'} "
                f"{_where(mesh, calls[mesh], places, lists)}",
                why=one.why,
                fix=_FIX,
                field="backend",
            )
            for mesh, one in sorted((causes or wrong).items())
        ]
    ).of(sorted(causes or wrong))


def _stalled(
    calls: Mapping[int, str],
    places: Sequence[int],
    lists: Sequence[Sequence[Instruction]],
    limit_s: float,
    hosts: int,
) -> LostError:
    """The error for workers that stand still: those that do not wait for a message are the cause."""
    at = {mesh: _instruction(mesh, places, lists) for mesh in calls if places[mesh] != MOVING}
    at_work = [worker for worker, one in at.items() if one is None or not one.sources(worker // hosts)]
    return LostError(
        [
            Problem(
                what=f"{_name(mesh, hosts)} hangs {_where(mesh, calls[mesh], places, lists)}",
                why=f"no worker has made progress for {limit_s:g} s",
                fix=f"{_FIX}; raise timeout_s if it is only slow",
                field="timeout_s",
            )
            for mesh in (at_work or calls)
        ]
    ).of(at_work or list(calls))
