"""Which lines of the user's code run on which mesh, and how much of the work each is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from jax.extend import core

from meshwright.compiler.cost import eqn_flop
from meshwright.compiler.instructions import Op, StepProgram
from meshwright.compiler.source_line import line_of

MOST = 8
"""Lines that are listed for a mesh, those with most work first."""


def placed_lines(program: StepProgram) -> str:
    """The lines of each mesh, with their share of the FLOP of the step.

    Args:
        program: the program that runs.
    """
    of_mesh: list[dict[str, float]] = []
    for instructions in program.lists:
        work: dict[str, float] = defaultdict(float)
        for name, runs in Counter(one.executable for one in instructions if one.op is Op.RUN).items():
            for line, flop in _lines(program.executables[name or ""].jaxpr):
                work[line] += runs * flop
        of_mesh.append(work)
    total = sum(sum(work.values()) for work in of_mesh) or 1
    found = []
    for mesh, work in enumerate(of_mesh):
        found.append(f"mesh {mesh}: {sum(work.values()) / total:.0%} of the products and convolutions of a step")
        found += [
            f"  {flop / total:6.1%}  {line}" for line, flop in sorted(work.items(), key=lambda item: -item[1])[:MOST]
        ]
    return "\n".join(found)


def _lines(jaxpr: core.Jaxpr) -> Iterator[tuple[str, float]]:
    for eqn in jaxpr.eqns:
        flop = float(eqn_flop(eqn))
        line = line_of(eqn)
        if flop and line:
            yield line, flop
