"""What XLA compiled for a step: the text of every executable, and what all runs of it in a step communicate."""

from __future__ import annotations

from meshwright.compiler.sharding.hlo_collectives import Collectives, count_collectives, in_all
from meshwright.runtime.local import LocalRuntime


def step_collectives(runtime: LocalRuntime) -> dict[str, Collectives]:
    """Collectives of each executable of a step over all of its runs and meshes; nothing is run.

    Args:
        runtime: the runtime of the step.

    Returns:
        Collectives by name of the executable; those that send nothing are left out.
    """
    found: dict[str, list[Collectives]] = {}
    for executor in runtime.executors:
        counted: dict[int, Collectives] = {}
        for place, one in executor.compiled_apart().items():
            if id(one) not in counted:
                counted[id(one)] = count_collectives(one.as_text())
            found.setdefault(executor.instructions[place].executable or "", []).append(counted[id(one)])
    whole = {name: in_all(runs) for name, runs in found.items()}
    return {name: sent for name, sent in whole.items() if sent.count}


def step_texts(runtime: LocalRuntime) -> dict[str, str]:
    """HLO of each executable of a step as XLA optimised it, on the first mesh that runs it; nothing is run.

    Args:
        runtime: the runtime of the step.

    Returns:
        HLO by name of the executable; what runs as one, by the names of all that it does, with a comma between them.
    """
    found: dict[str, str] = {}
    for executor in runtime.executors:
        for place, one in executor.compiled_apart().items():
            name = executor.instructions[place].executable or ""
            if name not in found:
                found[name] = one.as_text()
        for part in executor.joined.values():
            if part.name not in found:
                found[part.name] = executor.compiled_together(part).as_text()
    return found
