"""A plan of the planner as a method of `parallelize`; what a plan says and this runtime does not do is refused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from meshwright.errors import UnsupportedError
from meshwright.runtime.devices import require_devices
from meshwright.runtime.rank_steps.rank_rules import rank_refusals
from meshwright.schedules import schedule_named
from meshwright.specs.dispatchers import DISPATCHERS
from meshwright.specs.row import PlanRow
from meshwright.specs.shardings import SHARDINGS
from meshwright.specs.strategy import TENSOR_OVERLAPS
from meshwright.strategies import TENSORS
from meshwright.targets.run.rules import unrunnable_settings

if TYPE_CHECKING:
    from meshwright.compiler.grid import DeviceGrid
    from meshwright.compiler.methods.pipeshard import PipeshardParallel
    from meshwright.strategies.blocks import TensorBlocks
    from meshwright.zoo.decoder import Recompute


def check_runs(row: PlanRow) -> None:
    """Whether this runtime runs what a plan says.

    Args:
        row: the plan.

    Raises:
        UnsupportedError: it does not, with every reason.
    """
    problems = list(
        rank_refusals(row) if row.data_words or SHARDINGS[row.sharding].travels else unrunnable_settings(row)
    )
    if problems:
        raise UnsupportedError(problems, code="MW411")


def grid_of(row: PlanRow, blocks: TensorBlocks | None = None) -> DeviceGrid | None:
    """The axes of a stage's devices; None where data ranks are all there is.

    Args:
        row: the plan.
        blocks: the blocks that tensor ranks hold; None for those of the plan's strategy.

    Raises:
        InputError: dense layers and experts share the devices in ways that do not go together.
    """
    from meshwright.compiler.grid import DeviceGrid

    if (row.tp, row.cp, row.ep, row.etp, row.shard_group) == (1, (), 1, 1, 0):
        return None
    return DeviceGrid.of(
        data=row.dp,
        context=row.cp,
        tensor=row.tp,
        expert=row.ep,
        expert_tensor=row.etp,
        shard_group=row.shard_group,
        domain=_domain(row),
        blocks=blocks or TENSORS[row.tensor].blocks(row.tp),
    )


def _domain(row: PlanRow) -> int:
    """Expert ranks of a domain where exchanges go level by level: as many as there are domains, or the next more.

    The devices of one machine have no nodes; a plan's cluster is not what runs here.
    """
    kind = DISPATCHERS[row.dispatcher]
    if not (kind.by_level or kind.once):
        return 1
    return next(degree for degree in range(1, row.ep + 1) if row.ep % degree == 0 and degree * degree >= row.ep)


def method_of(row: PlanRow, devices: Sequence[Any], seq_len: int, grid: DeviceGrid | None = None) -> PipeshardParallel:
    """How `parallelize` runs a plan: stages on grids of dp x cp x tp devices, dp x mbs samples in a micro-batch.

    Args:
        row: the plan.
        devices: the devices, at least as many as it needs; it takes the first.
        seq_len: tokens of a sample.
        grid: the grid for which the step is written, where that is another than the plan's.

    Raises:
        InputError: too few devices.
        UnsupportedError: the plan says something that does not run here.
    """
    from meshwright.compiler.grid import GridSplit
    from meshwright.compiler.methods.pipeshard import PipeshardParallel
    from meshwright.zoo.splits import block_split, split_axes

    check_runs(row)
    paged = bool(row.offload) and schedule_named(row.schedule).pages
    if row.offload and not paged:
        why = "your own training step decides where its states are kept"
        what = f"off-{row.offload} does not run with your own training step"
        raise UnsupportedError(what=what, why=why, fix="leave it out, or meshwright run", field="plan", code="MW411")
    if row.tp_overlap == "halves" and (grid is None or grid.blocks is None):
        what, why = (
            f"{TENSOR_OVERLAPS['halves']} does not run with this step",
            "halves run where layers are written here",
        )
        fix = "use tpov, or a decoder whose heads, widths, words and tokens tp divides"
        raise UnsupportedError(what=what, why=why, fix=fix, field="plan", code="MW411")
    used = require_devices(row.devices, devices, row.identity())
    grid, kind = grid or grid_of(row), SHARDINGS[row.sharding]
    ranks_of = split_axes if grid is None or grid.blocks is None else partial(block_split, grid)
    return PipeshardParallel(
        devices=used,
        num_micro_batches=row.micro_batches,
        num_stages=row.pp,
        schedule=row.schedule,
        chunks=row.vpp if row.vpp > 1 else None,
        zero=kind.zero,
        keep_gathered=not kind.reshard,
        split_sums=kind.zero == 2,
        paged=paged,
        grid=None if grid is None else GridSplit(grid=grid, ranks_of=ranks_of, length=seq_len),
    )


def recompute_runs(row: PlanRow, layers: Sequence[int]) -> tuple[tuple[int, Recompute], ...]:
    """Runs of layers and what their backward computes again.

    Args:
        row: the plan.
        layers: the layers of each virtual stage; a run is never in two of them.
    """
    if row.recompute == "none" or schedule_named(row.schedule).recomputes_in_tasks:
        return ()
    runs: list[tuple[int, Recompute]] = []
    for held in layers:
        if row.recompute == "block":
            again = min(row.recompute_layers, held)
            runs += [(1, "full") for _ in range(again)]
            runs += [(1, "none") for _ in range(held - again)]
        elif row.recompute == "uni":
            whole, rest = divmod(held, row.recompute_layers)
            runs += [(size, "full") for size in (*[row.recompute_layers] * whole, rest) if size]
        else:
            runs += [(1, row.recompute_modules if row.recompute == "sel" else "full") for _ in range(held)]
    return tuple(runs)
