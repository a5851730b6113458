"""Results beside a loss whose samples meet (a deviation, a norm over the batch): made behind it, of all samples.

The loss returns what each sample makes by itself, which is joined over micro-batches as results per sample are, and the
equations that need all samples stand behind the last micro-batch. No gradient is taken of them, so nothing runs twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jax.extend import core

from meshwright.compiler.inline import free_variables, is_dropped
from meshwright.compiler.samples.placements import NotShared
from meshwright.compiler.traced_step import TracedStep


def met_behind(step: TracedStep, together: Sequence[core.JaxprEqn]) -> TracedStep:
    """The step with some equations of its loss behind it.

    Args:
        step: the step as it reads for the whole batch.
        together: equations that need all samples; the loss needs none of them.

    Raises:
        NotShared: the loss needs one of them all the same.
    """
    loss, results = step.loss, len(step.loss.outvars)
    held = {id(eqn) for eqn in together}
    alone = [eqn for eqn in loss.eqns if id(eqn) not in held]
    made = {var for eqn in together for var in eqn.outvars}
    if made.intersection(free_variables(alone)):
        raise NotShared("the loss needs what all samples make together")
    own = list(zip(loss.outvars, step.mark.outvars[:results], strict=True))
    kept = [(atom, var) for atom, var in own if not (isinstance(atom, core.Var) and atom in made)]
    names: dict[Any, Any] = dict(zip(loss.invars, step.mark.invars, strict=True))
    met = [var for var in free_variables(together) if var not in names]
    names |= {var: core.Var(var.aval) for var in [*met, *made] if not is_dropped(var)}
    for atom, var in own:
        if isinstance(atom, core.Var) and atom in made and not is_dropped(var):
            if names[atom] in step.mark.outvars:
                raise NotShared("one value is returned twice")
            names[atom] = var
    mark = step.mark.replace(
        outvars=[*(var for _, var in kept), *(names[var] for var in met), *step.mark.outvars[results:]],
        params={
            **step.mark.params,
            "loss": loss.replace(
                eqns=alone,
                outvars=[*(atom for atom, _ in kept), *met],
                debug_info=loss.debug_info.with_unknown_names(),
            ),
        },
    )
    behind = [
        eqn.replace(
            invars=[names.get(atom, atom) if isinstance(atom, core.Var) else atom for atom in eqn.invars],
            outvars=[var if is_dropped(var) else names[var] for var in eqn.outvars],
        )
        for eqn in together
    ]
    after = (*behind, *step.after)
    jaxpr = step.jaxpr.replace(eqns=[*step.before, mark, *after], debug_info=step.jaxpr.debug_info.with_unknown_names())
    return replace(step, jaxpr=jaxpr, loss=mark.params["loss"], mark=mark, after=after)
