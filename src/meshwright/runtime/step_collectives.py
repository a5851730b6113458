"""What XLA compiled for a step: the text of every executable, and what all runs of it in a step communicate."""

from __future__ import annotations

from typing import Any

import jax

from meshwright.compiler.instructions import Op, StepProgram
from meshwright.compiler.sharding.hlo_collectives import Collectives, count_collectives, in_all
from meshwright.runtime.executor import MeshExecutor
from meshwright.runtime.local import LocalRuntime


def step_collectives(runtime: LocalRuntime) -> dict[str, Collectives]:
    """Collectives of each executable of a step over all of its runs and meshes; nothing is run.

    Args:
        runtime: of the step.

    Returns:
        By name of the executable; those that send nothing are left out.
    """
    found: dict[str, list[Collectives]] = {}
    for executor in runtime.executors:
        counted: dict[int, Collectives] = {}
        for name, one in _compiled_of_mesh(executor, runtime.program):
            if id(one) not in counted:
                counted[id(one)] = count_collectives(one.as_text())
            found.setdefault(name, []).append(counted[id(one)])
    whole = {name: in_all(runs) for name, runs in found.items()}
    return {name: sent for name, sent in whole.items() if sent.count}


def step_texts(runtime: LocalRuntime) -> dict[str, str]:
    """HLO of each executable of a step as XLA optimised it, on the first mesh that runs it; nothing is run.

    Args:
        runtime: of the step.
    """
    found: dict[str, str] = {}
    for executor in runtime.executors:
        for name, one in _compiled_of_mesh(executor, runtime.program):
            if name not in found:
                found[name] = one.as_text()
    return found


def _compiled_of_mesh(executor: MeshExecutor, program: StepProgram) -> list[tuple[str, Any]]:
    """Executable of each RUN of a list, in order, and as it is compiled for what it reads."""
    shardings: dict[int, Any] = {}
    compiled: dict[Any, Any] = {}
    found = []
    for instruction in executor.instructions:
        if instruction.op is not Op.RUN:
            continue
        name = instruction.executable or ""
        given = [shardings.get(buffer, executor.sharding(buffer)) for buffer in instruction.reads]
        key = name, tuple(given)
        if key not in compiled:
            avals = program.executables[name].in_avals
            shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
                      for aval, sharding in zip(avals, given, strict=True)]  # fmt: skip
            compiled[key] = executor.compiled(instruction).lower(*shapes).compile()
        shardings.update(zip(instruction.writes, compiled[key].output_shardings, strict=True))
        found.append((name, compiled[key]))
    return found
