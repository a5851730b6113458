"""From a traced step to its stages: the loss seen layer by layer, cut, and written with one loop per stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jax.extend import core

from meshwright.compiler.cuts.cut import Body, CutStage, body_of, cut
from meshwright.compiler.cuts.stacks import PartedLoss, by_layer, layer_loops, parted_loss, parted_step
from meshwright.compiler.leading_axis import Bounds, Origin
from meshwright.compiler.traced_step import TracedStep
from meshwright.shapes import Int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Staged:
    """A step and the stages of its loss."""

    step: TracedStep
    """The step, with a loop for every stage where there was one over all layers."""
    stages: tuple[CutStage, ...]
    layers: tuple[tuple[CutStage, ...], ...]
    """Layers of each stage; a loop over several layers counts as one."""


def staged(step: TracedStep, ends: Callable[[Body], Sequence[int]], layers: Sequence[int] | None = None) -> Staged:
    """Cut the loss of a step.

    Args:
        step: the step as it was traced.
        ends: position behind the last spine equation of each stage, of the loss seen layer by layer.
        layers: the same of each layer; every stage is one layer without it.
    """
    fine = by_layer(step.loss, step.wrt)
    body = body_of(fine.jaxpr, fine.wrt)
    chosen = ends(body)
    layers = chosen if layers is None else layers
    stage_of: Int[np.ndarray, " layers"] = np.searchsorted(chosen, np.asarray(layers), side="left")
    loops = layer_loops(step.loss, step.wrt)
    if not loops:
        return _cut(step, body, layers, stage_of)
    layer_of = _layer_of_origins(fine, body, layers)
    partitions = {
        place: _partition([int(stage_of[layer_of[place, at / rounds]]) for at in range(rounds)])
        for place, rounds in ((place, step.loss.eqns[place].params["length"]) for place in loops)
    }
    loss = parted_loss(step.loss, step.wrt, partitions)
    step = parted_step(step, loss)
    body, own = _in_layers(loss, layer_of)
    present = np.unique(own)
    return _cut(step, body, np.searchsorted(own, present, side="right").tolist(), stage_of[present])


def _cut(step: TracedStep, body: Body, layers: Sequence[int], stage_of: Int[np.ndarray, " layers"]) -> Staged:
    """Stages and their layers."""
    last = np.searchsorted(stage_of, np.arange(int(stage_of[-1]) + 1), side="right") - 1
    parts = cut(body, step.wrt, layers)
    return Staged(
        step=step,
        stages=cut(body, step.wrt, [layers[place] for place in last]),
        layers=tuple(
            tuple(part for part, stage in zip(parts, stage_of, strict=True) if stage == k) for k in range(len(last))
        ),
    )


def _layer_of_origins(fine: PartedLoss, body: Body, layers: Sequence[int]) -> dict[Origin, int]:
    """The last layer that holds something of each origin."""
    origin_of = {id(eqn): origin for eqn, origin in zip(fine.jaxpr.eqns, fine.origins, strict=True)}
    numbers = np.searchsorted(np.asarray(layers), np.arange(len(body.spine)), side="right").tolist()
    return {origin_of[id(eqn)]: number for eqn, number in zip(body.spine, numbers, strict=True)}


def _in_layers(loss: PartedLoss, layer_of: dict[Origin, int]) -> tuple[Body, Int[np.ndarray, " spine"]]:
    """The loss with its spine in the order of layers, and the layer of each equation: never before what it reads."""
    body = body_of(loss.jaxpr, loss.wrt)
    origin_of = {id(eqn): origin for eqn, origin in zip(loss.jaxpr.eqns, loss.origins, strict=True)}
    home: dict[core.Var, int] = {}
    numbers = []
    for eqn in body.spine:
        reads = [home.get(atom, 0) for atom in eqn.invars if isinstance(atom, core.Var)]
        numbers.append(max([layer_of.get(origin_of[id(eqn)], 0), *reads]))
        home.update((var, numbers[-1]) for var in eqn.outvars)
    order = np.argsort(numbers, kind="stable")
    spine = tuple(body.spine[place] for place in order)
    return Body(jaxpr=body.jaxpr, spine=spine, light=body.light), np.asarray(numbers)[order]


def _partition(stages: Sequence[int]) -> Bounds:
    """Where the stage of the rounds changes."""
    changes = [at for at in range(1, len(stages)) if stages[at] != stages[at - 1]]
    return (0, *changes, len(stages))
