"""The stages of a loss as one data rank runs them: their losses add up to the loss by construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from meshwright.compiler.cuts.cut import CutStage
from meshwright.compiler.inline import free_variables
from meshwright.compiler.samples.placements import WHOLE, NotShared, Placement, sample_placements
from meshwright.compiler.samples.sorting import in_batch_order
from meshwright.compiler.samples.values import RankValue, part_shape
from meshwright.compiler.samples.walk import Walk
from meshwright.compiler.traced_step import TracedStep


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class RankStages:
    """What one of several data ranks runs of a step."""

    step: TracedStep
    """The step; where some stage has to know which rank it is, with one operand of the loss more, the last."""
    stages: tuple[CutStage, ...]
    """The stages with programs for the samples of one rank; variables outside of them are those of all samples."""
    number: int | None
    """The operand that holds the number of the rank."""
    operands: tuple[Placement, ...]
    """Placement of each operand of the loss."""
    carried: Mapping[core.Var, Placement]
    """Placement of each value passed between stages."""
    results: Mapping[int, Placement]
    """Placement of each result of the loss, by its index."""
    axes: tuple[tuple[str, int], ...]
    """Axes of the mesh of the ranks, with their sizes."""

    @property
    def ranks(self) -> int:
        """Number of ranks that share the samples."""
        return prod(size for _, size in self.axes)


def stages_of_one(step: TracedStep, stages: Sequence[CutStage]) -> RankStages:
    """The stages where one rank has all samples: as they are.

    Args:
        step: the step.
        stages: the stages of its loss, in order.
    """
    return RankStages(
        step=step,
        stages=tuple(stages),
        number=None,
        operands=(WHOLE,) * len(step.mark.invars),
        carried={var: 0 for stage in stages for var in stage.carried_out},
        results={place: WHOLE for stage in stages for place in stage.results},
        axes=(),
    )


def rank_stages(step: TracedStep, stages: Sequence[CutStage], axes: Sequence[tuple[str, int]]) -> RankStages:
    """The stages of one rank.

    Args:
        step: the step of all ranks.
        stages: the stages of its loss, in order.
        axes: the axes of the mesh of the ranks, and devices along them.

    Raises:
        NotShared: it cannot be shown that the losses of the ranks add up to the whole.
    """
    ranks, number = prod(size for _, size in axes), len(step.mark.invars)
    operands = _operand_placements(step, ranks)
    carried: dict[core.Var, Placement] = {}
    results: dict[int, Placement] = {}
    found = []
    for stage in stages:
        placements = [
            *(operands[place] for place in stage.parameters),
            *(carried[var] for var in stage.carried_in),
            *(operands[place] for place in stage.others),
        ]
        program, made = _for_rank(stage, placements, axes)
        carried |= dict(zip(stage.carried_out, made, strict=False))
        results |= dict(zip(stage.results, made[len(stage.carried_out) :], strict=True))
        returned = [atom for atom in program.jaxpr.outvars if isinstance(atom, core.Var)]
        if program.jaxpr.invars[-1] in {*free_variables(program.jaxpr.eqns), *returned}:
            found.append(replace(stage, program=program, others=(*stage.others, number)))
        else:
            jaxpr = program.jaxpr
            jaxpr = jaxpr.replace(invars=jaxpr.invars[:-1], debug_info=jaxpr.debug_info.with_unknown_names())
            found.append(replace(stage, program=core.ClosedJaxpr(jaxpr, program.consts)))
    numbered = any(number in stage.others for stage in found)
    return RankStages(
        step=_numbered(step, ranks) if numbered else step,
        stages=tuple(found),
        number=number if numbered else None,
        operands=tuple(operands),
        carried=carried,
        results=results,
        axes=tuple(axes),
    )


def _for_rank(
    stage: CutStage, placements: Sequence[Placement], axes: Sequence[tuple[str, int]]
) -> tuple[core.ClosedJaxpr, tuple[Placement, ...]]:
    """The program of a stage for one rank, which takes its number last, and the placements of its results."""
    jaxpr, ranks = stage.program.jaxpr, prod(size for _, size in axes)
    loss_at = len(stage.carried_out) + stage.results.index(0) if 0 in stage.results else None
    made_placements: list[Placement] = []

    def run(*given: Any) -> list[Any]:
        walk = Walk(tuple(name for name, _ in axes), ranks, given[-1])
        values = [RankValue(value, placement) for value, placement in zip(given, placements, strict=False)]
        made = list(in_batch_order(walk.read(jaxpr, values, stage.program.consts)))
        if loss_at is not None:
            made[loss_at] = walk.summand(made[loss_at])
        made_placements[:] = [value.placement for value in made]
        return [value.value for value in made]

    shapes = [
        jax.ShapeDtypeStruct(part_shape(var.aval.shape, placement, ranks), var.aval.dtype)
        for var, placement in zip(jaxpr.invars, placements, strict=True)
    ]
    number = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.make_jaxpr(run, axis_env=list(axes))(*shapes, number), tuple(made_placements)


def _operand_placements(step: TracedStep, ranks: int) -> list[Placement]:
    """Which dimension of each operand of the loss counts samples; what nobody knows every rank holds whole."""
    placements: dict[Any, Placement] = {step.jaxpr.invars[place]: 0 for place in step.batch}
    for var in placements:
        if var.aval.shape[0] % ranks:
            raise NotShared(f"micro-batches of {var.aval.shape[0]} samples on {ranks} data ranks")
    for eqn in step.before:
        given = [placements.get(atom, WHOLE) if isinstance(atom, core.Var) else WHOLE for atom in eqn.invars]
        if any(placement >= 0 for placement in given):
            try:
                made = sample_placements(eqn, given, ranks)[1]
            except NotShared:
                continue
            placements.update(
                (var, placement) for var, placement in zip(eqn.outvars, made, strict=True) if placement >= 0
            )
    return [placements.get(atom, WHOLE) if isinstance(atom, core.Var) else WHOLE for atom in step.mark.invars]


def _numbered(step: TracedStep, ranks: int) -> TracedStep:
    """The step whose loss receives the numbers of the ranks."""
    numbers, unread = (core.Var(jax.core.ShapedArray((ranks,), jnp.dtype("int32"))) for _ in range(2))
    jaxpr, loss = step.jaxpr, step.loss
    jaxpr = jaxpr.replace(constvars=[*jaxpr.constvars, numbers], debug_info=jaxpr.debug_info.with_unknown_names())
    return replace(
        step,
        jaxpr=jaxpr,
        consts=(*step.consts, np.arange(ranks, dtype=np.int32)),
        loss=loss.replace(invars=[*loss.invars, unread], debug_info=loss.debug_info.with_unknown_names()),
        mark=step.mark.replace(invars=[*step.mark.invars, numbers]),
    )
