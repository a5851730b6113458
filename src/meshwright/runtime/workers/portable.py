"""What a worker is given of a program: its list and, as serialised StableHLO, the executables that the list runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import export
from jax.extend import core
from jax.sharding import Mesh

from meshwright.compiler.instructions import Buffer, Instruction, Op, StepProgram
from meshwright.compiler.instructions.transposed_products import without_transposed_products
from meshwright.errors import InputError, Problem, UnsupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProgram:
    """A program as one mesh sees it; unlike a jaxpr, it can be sent to another process."""

    mesh: int
    instructions: tuple[Instruction, ...]
    buffers: tuple[Buffer, ...]
    executables: dict[str, bytes]
    grids: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]
    """Axes and sizes of all meshes."""
    matched: Mapping[tuple[int, int], Instruction]
    """Matching instruction of the other mesh, by the index of an instruction and the mesh it exchanges with."""
    platform: str = "cpu"
    """What the executables are written for."""
    kept: tuple[int, ...] = ()
    """Buffers of this mesh that outputs of the step are in when the list ends."""
    host: int = 0
    """Index of this host among the mesh's hosts."""
    hosts: int = 1
    """Number of hosts that share each mesh."""
    pace: tuple[float, ...] = ()
    """Least seconds of each RUN, and of the way of each message; empty where nothing is slowed down."""
    coordinator: str = ""
    """Address where the hosts of a mesh find each other."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes of the mesh."""
        return self.grids[self.mesh][0]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the mesh's axes."""
        return self.grids[self.mesh][1]

    def worker_of(self, mesh: int, host: int) -> int:
        """Number of a worker.

        Args:
            mesh: any.
            host: the host of that mesh.
        """
        return mesh * self.hosts + host

    def functions(self) -> dict[str, Callable[..., Any]]:
        """What the executables compute, flat in and out."""
        return {name: export.deserialize(bytearray(body)).call for name, body in self.executables.items()}


def worker_programs(program: StepProgram, meshes: list[Mesh], platforms: Sequence[str]) -> list[WorkerProgram]:
    """A program split into what each worker needs.

    Args:
        program: whole.
        meshes: one per list; only their axes matter.
        platforms: the platforms of the devices that each of them has, as JAX calls them.

    Raises:
        InputError: a function calls back into Python, or is otherwise bound to this process.
        UnsupportedError: the library that writes StableHLO is not installed.
    """
    grids = tuple((tuple(str(axis) for axis in one.axis_names), tuple(one.devices.shape)) for one in meshes)
    made = {one.buffer for one in program.outcomes if one.buffer is not None}
    named = set(zip(_executables(program), platforms, strict=True))
    serialised = {
        (name, platform): _serialised(name, program.executables[name], platform)
        for names, platform in named
        for name in names
    }
    return [
        WorkerProgram(
            mesh=mesh,
            instructions=own,
            buffers=program.buffers,
            executables={name: serialised[name, platforms[mesh]] for name in names},
            platform=platforms[mesh],
            grids=grids,
            matched=_matched(program, mesh),
            kept=tuple(sorted(on_mesh for on_mesh in made if program.buffers[on_mesh].mesh == mesh)),
        )
        for mesh, (own, names) in enumerate(zip(program.lists, _executables(program), strict=True))
    ]


def _executables(program: StepProgram) -> list[tuple[str, ...]]:
    """Names of what each list runs."""
    return [
        tuple(dict.fromkeys(one.executable for one in own if one.op is Op.RUN and one.executable is not None))
        for own in program.lists
    ]


def _matched(program: StepProgram, mesh: int) -> dict[tuple[int, int], Instruction]:
    """What stands on the other side of each message: messages between two meshes keep their order."""
    found: dict[tuple[int, int], Instruction] = {}
    own = program.lists[mesh]
    for peer, others in enumerate(program.lists):
        sent = [place for place, one in enumerate(own) if peer in one.targets(mesh)]
        taken = [place for place, one in enumerate(own) if peer in one.sources(mesh)]
        takers = [one for one in others if mesh in one.sources(peer)]
        givers = [one for one in others if mesh in one.targets(peer)]
        found |= {(place, peer): one for place, one in zip(sent, takers, strict=True)}
        found |= {(place, peer): one for place, one in zip(taken, givers, strict=True)}
    return found


def _serialised(name: str, closed: core.ClosedJaxpr, platform: str) -> bytes:
    try:
        written = export.export(jax.jit(core.jaxpr_as_fun(without_transposed_products(closed))), platforms=[platform])
        return bytes(written(*closed.in_avals).serialize())
    except ImportError:
        raise UnsupportedError(
            Problem(
                what="workers in other processes need flatbuffers, and it is not installed",
                why="JAX writes with it what workers are sent",
                fix="pip install 'meshwright[jax]'",
                field="backend",
            ),
            code="MW409",
        ) from None
    except (NotImplementedError, ValueError) as error:
        raise InputError(
            Problem(
                what=f"part {name} of the step cannot be sent to another process",
                why=str(error).splitlines()[0][:300],
                fix='take callbacks and prints out of the step, or use backend="local"',
                field="backend",
            )
        ) from None
