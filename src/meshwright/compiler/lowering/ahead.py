"""Products of the update that need no gradient: every mesh makes its own where it waits longest for a micro-batch.

What an optimizer makes of earlier steps alone, as K-FAC the inverses of its factors, is known before a step begins.
Behind the last backward all meshes would wait for it; between two of its tasks a mesh has nothing else to do.

Source: Osawa et al. 2023, PipeFisher (arXiv 2211.14133), section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jax.extend import core

from meshwright.compiler.cost import is_heavy
from meshwright.compiler.inline import depended_on, reached
from meshwright.compiler.lowering.update import Update, repeated_eqns, spread_update
from meshwright.compiler.traced_step import TracedStep
from meshwright.schedules.kinds import LANE, Kind, Lane
from meshwright.schedules.simulate import simulate
from meshwright.schedules.table import ScheduleTable
from meshwright.schedules.times import Times

ROUNDING_S = 1e-9
"""Seconds by which waits differ that are alike; the first of them counts."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Ahead:
    """Equations of the update that run before the gradients are there."""

    update: Update
    eqns: tuple[core.JaxprEqn, ...]
    """Equations that no other mesh runs again behind the gradients."""

    @property
    def made(self) -> dict[core.Var, int]:
        """Mesh of each value that they make for others."""
        return {var: part.mesh for part in self.update.pieces for var in part.outputs}


NOTHING = Ahead(update=Update(pieces=(), home={}), eqns=())


def ahead_of(step: TracedStep, homes: Mapping[core.Var, int]) -> Ahead:
    """What of an update may run ahead, spread over meshes.

    Args:
        step: the step with this update.
        homes: mesh of each gradient, parameter and result of the loss.
    """
    known = [*step.mark.outvars, *step.wholes, *(step.jaxpr.invars[place] for place in step.batch)]
    late = reached(known, [*step.before, *step.after])
    early = [eqn for eqn in step.after if not late.intersection(eqn.outvars) and not eqn.effects]
    made = {var: eqn for eqn in early for var in eqn.outvars}
    chosen = depended_on([var for eqn in early if is_heavy(eqn) for var in eqn.outvars], made)
    eqns = [eqn for eqn in early if id(eqn) in chosen]
    repeated = {id(eqn) for eqn in repeated_eqns(step.jaxpr, step.after, homes)}
    own = tuple(eqn for eqn in eqns if id(eqn) not in repeated)
    if not own:
        return NOTHING
    moved = {id(eqn) for eqn in own}
    readers = (eqn.invars for eqn in step.after if id(eqn) not in moved)
    read = {atom for atoms in (*readers, step.jaxpr.outvars) for atom in atoms if isinstance(atom, core.Var)}
    given = [var for eqn in own for var in eqn.outvars if var in read]
    seen = step.jaxpr.replace(outvars=given, debug_info=step.jaxpr.debug_info.with_unknown_names())
    # Where a state is that no gradient belongs to, what reads it behind the gradients tells.
    update = spread_update(seen, eqns, spread_update(step.jaxpr, step.after, homes).home)
    # Nobody sends while pipelines run what only an update needs.
    alone = all(update.home.get(var, part.mesh) == part.mesh for part in update.pieces for var in part.inputs)
    return Ahead(update=update, eqns=own) if alone else NOTHING


def longest_waits(table: ScheduleTable) -> dict[int, int]:
    """Worker of each task before which a worker of equal stages waits longest, for its first one or between two.

    A backward takes two forwards here. The task is the one that waits, or the receive of what it waits for.

    Args:
        table: the tasks, with communication.
    """
    equal = Times.equal(table.p, table.placement.v, weight_s=1.0, recompute_s=1.0)
    line = simulate(table, replace(equal, others_s={Kind.X: equal.forward_s}))
    found = {}
    for worker in range(table.p):
        own = np.arange(table.first[worker], table.first[worker + 1])
        computing = own[LANE[table.kind[own]] == Lane.COMPUTE]
        free_s = np.append(0.0, line.end_s[computing[:-1]])
        longest = int(np.argmax(line.start_s[computing] - free_s - ROUNDING_S * np.arange(len(computing))))
        behind = own[0] if longest == 0 else computing[longest - 1] + 1
        between = np.arange(behind, computing[longest] + 1)
        found[int(between[LANE[table.kind[between]] != Lane.SEND][0])] = worker
    return found
