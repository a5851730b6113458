"""Which form a step takes: that of data ranks where their losses can be shown to add up, else the partitioner's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from jax.sharding import AbstractMesh, Mesh

from meshwright.compiler.cuts.cut import CutStage
from meshwright.compiler.grid import GridSharding, Ranks
from meshwright.compiler.ranks.layout import Layout, PartitionedLayout
from meshwright.compiler.ranks.rank_layout import RankLayout
from meshwright.compiler.ranks.stages import RankStages, rank_stages, stages_of_one
from meshwright.compiler.samples.placements import NotShared
from meshwright.compiler.sharding.apply import SolvedSharding
from meshwright.compiler.sharding.cost import LogicalMesh
from meshwright.compiler.shardings import DataSharding, MeshSharding
from meshwright.compiler.traced_step import TracedStep
from meshwright.errors import InputError, Problem


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Form:
    """How the stages of a step run on their meshes."""

    step: TracedStep
    stages: tuple[CutStage, ...]
    layouts: tuple[Layout, ...]
    """Layout of values on each mesh."""
    axes: tuple[tuple[str, int], ...] = ()
    """Mesh axes of the data ranks that run stages on their own samples, with their sizes."""
    reductions: str = ""
    """When gradients are reduced, and why, as users read it."""


def form_of(
    step: TracedStep,
    stages: Sequence[CutStage],
    shardings: Sequence[MeshSharding],
    meshes: Sequence[Mesh],
    *,
    versions: bool,
) -> Form:
    """The form of a step.

    Args:
        step: the step that runs.
        stages: the stages of its loss, in order.
        shardings: the shardings of values, by mesh.
        meshes: the meshes of devices.
        versions: whether micro-batches run on weights of several versions.
    """
    try:
        return _of_ranks(step, stages, shardings, meshes, versions=versions)
    except NotShared as why:
        layouts = [
            PartitionedLayout(step=step, sharding=sharding, devices=mesh.size)
            for sharding, mesh in zip(shardings, meshes, strict=True)
        ]
        alone = all(mesh.size == 1 for mesh in meshes)
        return Form(
            step=step,
            stages=tuple(stages),
            layouts=tuple(layouts),
            reductions="" if alone else f"gradients are reduced with every micro-batch, by XLA's partitioner: {why}",
        )


def _of_ranks(
    step: TracedStep,
    stages: Sequence[CutStage],
    shardings: Sequence[MeshSharding],
    meshes: Sequence[Mesh],
    *,
    versions: bool,
) -> Form:
    sharding = shardings[0]
    if isinstance(sharding, SolvedSharding) and isinstance(sharding.ranks, RankStages):
        return _decided(stages, sharding, sharding.ranks, meshes[0])
    grids = {tuple(mesh.shape.items()) for mesh in meshes}
    if len(grids) > 1:
        raise NotShared("stages have different numbers of data ranks")
    data, names = _data_axes(sharding)
    if versions and data.stage:
        raise NotShared("ranks that share states update in the midst of a step")
    axes = tuple((name, meshes[0].shape[name]) for name in names)
    each = data.stage == 3 or (data.stage == 2 and data.split_sums)
    beside, beside_experts = _beside(sharding, meshes[0])
    alone = prod(size for _, size in axes) == 1
    if alone and not beside and not beside_experts:
        raise NotShared("there is one data rank")
    ranks = stages_of_one(step, stages) if alone else rank_stages(step, stages, axes)
    layout = RankLayout(
        ranks=ranks,
        sharding=sharding,
        zero=data.stage,
        splits_sums=each,
        beside=beside,
        beside_experts=beside_experts,
        mesh=AbstractMesh(meshes[0].devices.shape, meshes[0].axis_names),
    )
    when = "by every backward, so that no device keeps whole ones" if each else "once, after the last micro-batch"
    adding = "context ranks add up" if beside else "ranks of the same experts add up"
    whose = f"{adding} what micro-batches leave" if alone else "every data rank runs the loss of its own samples"
    return Form(
        step=ranks.step,
        stages=ranks.stages,
        layouts=(layout,) * len(meshes),
        axes=ranks.axes,
        reductions=f"{whose}; gradients are reduced {when}",
    )


def _decided(stages: Sequence[CutStage], sharding: SolvedSharding, ranks: RankStages, mesh: Mesh) -> Form:
    """Ranks that were found with the way each operator is split."""
    layout = RankLayout(
        ranks=ranks,
        sharding=sharding,
        zero=0,
        splits_sums=False,
        mesh=AbstractMesh(mesh.devices.shape, mesh.axis_names),
    )
    return Form(
        step=ranks.step,
        stages=tuple(stages),
        layouts=(layout,),
        axes=ranks.axes,
        reductions=f"{ranks.ranks} data ranks (axis {', '.join(sharding.rank_axes)}) run the loss of their own samples;"
        " gradients are reduced over them once, after the last micro-batch",
    )


def ranks_along(
    step: TracedStep, stage: CutStage, meshes: Sequence[tuple[LogicalMesh, Mesh]]
) -> list[tuple[LogicalMesh, Mesh, RankStages]]:
    """A whole loss for the data ranks along the first axis of each mesh; meshes on which it cannot be shared are left
    out.

    Args:
        step: the step that runs.
        stage: its loss.
        meshes: priced, and as JAX has them.
    """
    found: dict[int, RankStages | None] = {}
    for _, mesh in meshes:
        name, ranks = mesh.axis_names[0], mesh.devices.shape[0]
        if ranks not in found:
            try:
                found[ranks] = rank_stages(step, [stage], [(name, ranks)]) if ranks > 1 else None
            except NotShared:
                found[ranks] = None
    shared = [(view, mesh, found[mesh.devices.shape[0]]) for view, mesh in meshes]
    return [(view, mesh, own) for view, mesh, own in shared if own is not None]


def not_shared(step: TracedStep, stage: CutStage, ranks: int) -> InputError:
    """Why data ranks that were asked for cannot share the samples of a loss.

    Args:
        step: the step that runs.
        stage: its loss.
        ranks: how many.
    """
    reason = "they are none of its own"
    try:
        rank_stages(step, [stage], [("x", ranks)])
    except NotShared as error:
        reason = str(error)
    return InputError(
        Problem(
            what=f"data_ranks = {ranks}: {reason}",
            field="data_ranks",
            fix="leave data_ranks out",
            why="each rank computes the loss of its own samples, and losses are added",
        )
    )


Sized = tuple[tuple[str, int], ...]


def _beside(sharding: MeshSharding, mesh: Mesh) -> tuple[Sized, Sized]:
    """Axes, with their sizes, of context ranks that hold what data ranks hold; and of context and tensor ranks with the
    same experts, each for its own tokens."""
    if not isinstance(sharding, GridSharding):
        return (), ()
    grid = sharding.split.grid
    own = {*grid.expert, *grid.expert_tensor}
    alike = [name for name in (*grid.tokens, *grid.tensor) if name not in own] if grid.blocks is not None else []
    tokens, experts = (tuple((name, mesh.shape[name]) for name in names) for names in (grid.tokens, alike))
    split = {ranks for held in sharding.axes.values() for ranks in held.values()}
    return tokens, experts if Ranks.EXPERT in split else ()


def _data_axes(sharding: MeshSharding) -> tuple[DataSharding, tuple[str, ...]]:
    """What ZeRO splits, and the axes of a mesh of data ranks that share nothing but reductions."""
    if isinstance(sharding, DataSharding):
        return sharding, ("data",)
    if not isinstance(sharding, GridSharding):
        raise NotShared("weights are split operator by operator")
    grid, data = sharding.split.grid, sharding.data
    if grid.tokens and grid.blocks is None:
        raise NotShared("tokens of a sample are split over context ranks")
    if {*grid.expert, *grid.expert_tensor} & set(grid.data):
        raise NotShared("experts are split over data ranks")
    if data.stage and not set(grid.data) <= {*grid.shards} & {*grid.expert_shards}:
        raise NotShared("states are split over some of the data ranks only")
    return data, grid.data
