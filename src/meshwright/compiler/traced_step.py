"""A training step as it was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jax.extend import core

from meshwright.compiler.joins import Join
from meshwright.compiler.leading_axis import Stacking
from meshwright.compiler.reports import Reports


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TracedStep:
    """One step on one micro-batch: flat inputs and outputs, the mark, and the equations around it."""

    jaxpr: core.Jaxpr
    consts: tuple[Any, ...]
    """Values of `jaxpr.constvars`."""
    loss: core.Jaxpr
    """What is differentiated, its calls opened; its operands are `mark.invars`."""
    wrt: tuple[int, ...]
    """Operands of the loss that are differentiated."""
    mark: core.JaxprEqn
    before: tuple[core.JaxprEqn, ...]
    """Equations that the operands of the loss need."""
    after: tuple[core.JaxprEqn, ...]
    """Equations that need results of the loss, and those for which nobody before the mark waits."""
    batch: tuple[int, ...]
    """Inputs that are split into micro-batches, on their first axis."""
    micro_batches: int
    in_tree: Any
    out_tree: Any
    mean: bool = False
    """Whether the user has said that the loss is the mean of those of micro-batches; else they add up to it."""
    joins: tuple[Join, ...] = ()
    """What each result of the loss becomes in all micro-batches."""
    number: core.Var | None = None
    """What the number of the micro-batch is called, where the loss or what is before it depends on it."""
    wholes: Mapping[core.Var, int] = field(default_factory=dict)
    """Variables behind the mark that are inputs with the samples of all micro-batches, and which."""
    updates: int = 1
    """Updates of the state in one call, each with its share of the micro-batches."""
    stacking: Stacking | None = None
    """Leaves of the user that are split here, as tuples in `in_tree` and `out_tree`."""
    meeting: str = ""
    """Where samples meet, and what that costs; empty where each makes its part of the loss by itself."""
    reports: Reports | None = None
    """Prints and callbacks, with what `out_tree` then holds beside the results."""
    whole: TracedStep | None = None
    """The step before anything was parted, where something is."""

    def without_reports(self, returned: Any) -> Any:
        """What the user's step returns.

        Args:
            returned: what the program returned, as a tree.
        """
        return returned if self.reports is None else returned[0]

    def after_reports(self, returned: Any) -> Any:
        """The same, once what the step prints is printed.

        Args:
            returned: what the program returned, as a tree.
        """
        if self.reports is not None:
            self.reports.run(returned[1])
        return self.without_reports(returned)

    @property
    def gradients(self) -> list[core.Var]:
        """Results of the mark that are gradients, one for each entry of `wrt`."""
        return self.mark.outvars[len(self.loss.outvars) :]


def around_mark(jaxpr: core.Jaxpr, mark: core.JaxprEqn) -> tuple[tuple[core.JaxprEqn, ...], tuple[core.JaxprEqn, ...]]:
    """Equations that the mark waits for, and all others that some output needs.

    Args:
        jaxpr: the jaxpr of a step.
        mark: its mark.
    """
    wanted = {atom for atom in mark.invars if isinstance(atom, core.Var)}
    before, rest = [], []
    for eqn in reversed(jaxpr.eqns):
        if eqn is mark:
            continue
        if wanted & set(eqn.outvars):
            wanted.update(atom for atom in eqn.invars if isinstance(atom, core.Var))
            before.append(eqn)
        else:
            rest.append(eqn)
    needed = {atom for atom in jaxpr.outvars if isinstance(atom, core.Var)}
    after = []
    for eqn in rest:
        if needed & set(eqn.outvars):
            needed.update(atom for atom in eqn.invars if isinstance(atom, core.Var))
            after.append(eqn)
    return tuple(reversed(before)), tuple(reversed(after))
