"""Collectives of a whole step: those of every executable, as often as the lists run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.extend import core

from meshwright.compiler.instructions import Op
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
        for name, sent in _of_mesh(executor, runtime.program.executables):
            found.setdefault(name, []).append(sent)
    whole = {name: in_all(runs) for name, runs in found.items()}
    return {name: sent for name, sent in whole.items() if sent.count}


def _of_mesh(executor: MeshExecutor, programs: Mapping[str, core.ClosedJaxpr]) -> list[tuple[str, Collectives]]:
    """Executable and collectives of each RUN of a list, in order."""
    shardings: dict[int, Any] = {}
    compiled: dict[Any, tuple[Any, Collectives]] = {}
    found = []
    for instruction in executor.instructions:
        if instruction.op is not Op.RUN:
            continue
        name = instruction.executable or ""
        given = [shardings.get(buffer, executor.sharding(buffer)) for buffer in instruction.reads]
        key = name, tuple(given)
        if key not in compiled:
            shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
                      for aval, sharding in zip(programs[name].in_avals, given, strict=True)]  # fmt: skip
            one = executor.compiled(instruction).lower(*shapes).compile()
            compiled[key] = one.output_shardings, count_collectives(one.as_text())
        made, sent = compiled[key]
        shardings.update(zip(instruction.writes, made, strict=True))
        found.append((name, sent))
    return found
