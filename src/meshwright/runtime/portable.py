"""What a worker is given of a program: its list and, as serialised StableHLO, the executables that the list runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax import export
from jax.extend import core
from jax.sharding import Mesh

from meshwright.compiler.instructions import Buffer, Instruction, Op, Program
from meshwright.errors import InputError, Problem, UnsupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A program as one mesh sees it; unlike a jaxpr, it can be sent to another process."""

    mesh: int
    instructions: tuple[Instruction, ...]
    buffers: tuple[Buffer, ...]
    executables: dict[str, bytes]
    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    """Of the mesh along its axes."""

    def functions(self) -> dict[str, Callable[..., Any]]:
        """What the executables compute, flat in and out."""
        return {name: export.deserialize(bytearray(body)).call for name, body in self.executables.items()}


def parts_of(program: Program, meshes: list[Mesh]) -> list[Part]:
    """A program split into what each worker needs.

    Args:
        program: whole.
        meshes: one per list; only their axes matter.

    Raises:
        InputError: a function calls back into Python, or is otherwise bound to this process.
        UnsupportedError: the library that writes StableHLO is not installed.
    """
    serialised = {name: _serialised(name, closed) for name, closed in program.executables.items()}
    return [
        Part(
            mesh=mesh,
            instructions=own,
            buffers=program.buffers,
            executables={one.executable: serialised[one.executable] for one in own
                         if one.op is Op.RUN and one.executable is not None},
            axes=tuple(str(axis) for axis in meshes[mesh].axis_names),
            sizes=tuple(meshes[mesh].devices.shape),
        )
        for mesh, own in enumerate(program.lists)
    ]  # fmt: skip


def _serialised(name: str, closed: core.ClosedJaxpr) -> bytes:
    try:
        return bytes(export.export(jax.jit(core.jaxpr_as_fun(closed)))(*closed.in_avals).serialize())
    except ImportError:
        raise UnsupportedError(
            Problem(what="workers in other processes need flatbuffers, and it is not installed",
                    why="JAX writes with it what workers are sent", fix="pip install 'meshwright[jax]'",
                    field="backend"),
            code="MW409",
        ) from None  # fmt: skip
    except (NotImplementedError, ValueError) as error:
        raise InputError(
            Problem(what=f"part {name} of the step cannot be sent to another process",
                    why=str(error).splitlines()[0][:300],
                    fix='take callbacks and prints out of the step, or use backend="local"', field="backend")
        ) from None  # fmt: skip
