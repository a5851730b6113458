"""Where devices do no work of their own, though the step runs: said to whoever runs it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from jax.sharding import Mesh

from meshwright.compiler.cost import PRODUCTS, eqn_flop, is_heavy
from meshwright.compiler.cuts.cut import CutStage
from meshwright.compiler.grid import GridSharding
from meshwright.compiler.sharding.apply import SolvedSharding
from meshwright.compiler.shardings import DataSharding, MeshSharding
from meshwright.compiler.source_line import line_of
from meshwright.compiler.traced_step import TracedStep

UNEVEN = 1.5
"""Shares of the work that one equation may hold before it is said that it is not cut."""


class IdleDevicesWarning(UserWarning):
    """Some devices repeat the work of others, or wait for them."""


def idle_devices_notice(
    step: TracedStep, stages: Sequence[CutStage], shardings: Sequence[MeshSharding], meshes: Sequence[Mesh]
) -> tuple[str, ...]:
    """What is said about devices that do no work of their own.

    Args:
        step: the step that runs.
        stages: the stages of its loss, in order.
        shardings: the shardings of values, by mesh.
        meshes: the meshes of devices.
    """
    return (*_repeated(step, shardings, meshes), *_undivided(shardings), *_uncut(stages))


def _repeated(step: TracedStep, shardings: Sequence[MeshSharding], meshes: Sequence[Mesh]) -> list[str]:
    """Samples of a micro-batch that data ranks cannot share."""
    samples = min((step.jaxpr.invars[place].aval.shape[0] for place in step.batch), default=0)
    ranks = max((_data_ranks(sharding, mesh) for sharding, mesh in zip(shardings, meshes, strict=True)), default=1)
    if not samples or samples % ranks == 0:
        return []
    batch = samples * step.micro_batches
    fits = [n for n in range(1, batch + 1) if batch % n == 0 and batch // n % ranks == 0]
    fix = (
        f"num_micro_batches={min(fits, key=lambda n: abs(n - step.micro_batches))}"
        if fits
        else (f"a batch of {-(-batch // (ranks * step.micro_batches)) * ranks * step.micro_batches}")
    )
    return [
        f"micro-batches of {samples} samples are not shared by {ranks} data ranks: every device computes all of"
        f" each; {fix} would share them"
    ]


def _undivided(shardings: Sequence[MeshSharding]) -> list[str]:
    """Meshes whose devices share no product, because that takes longer by its price or cannot be."""
    said = [sharding.undivided() if isinstance(sharding, SolvedSharding) else None for sharding in shardings]
    many = len(shardings) > 1
    return [f"stage {number}: {why}" if many else why for number, why in enumerate(said) if why is not None]


def _data_ranks(sharding: MeshSharding, mesh: Mesh) -> int:
    if isinstance(sharding, DataSharding):
        names = (sharding.axis,) if isinstance(sharding.axis, str) else sharding.axis
    elif isinstance(sharding, GridSharding):
        names = tuple(sharding.split.grid.data)
    else:
        return 1
    return prod(mesh.shape[name] for name in names if name in mesh.shape)


def _uncut(stages: Sequence[CutStage]) -> list[str]:
    """A checkpoint, or another call, that holds the work of several stages."""
    if len(stages) < 2:
        return []
    work = [(eqn_flop(eqn), stage.index, eqn) for stage in stages for eqn in stage.program.jaxpr.eqns]
    total = sum(flop for flop, _, _ in work)
    most, index, eqn = max(work, key=lambda one: one[0])
    inside = is_heavy(eqn) and eqn.primitive.name not in (*PRODUCTS, "scan")
    if not inside or most <= UNEVEN * total / len(stages):
        return []
    line, name = line_of(eqn), eqn.primitive.name
    return [
        f"stage {index} of {len(stages)} computes {most / total:.0%} of the loss, in one {name} that is not cut"
        f"{f' ({line})' if line else ''}; one around each layer can be"
    ]
