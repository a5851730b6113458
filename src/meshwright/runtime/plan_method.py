"""A plan of the planner as a method of `parallelize`; what a plan says and this runtime does not do is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.schedules import schedule_named
from meshwright.specs.row import PlanRow

if TYPE_CHECKING:
    from meshwright.compiler.methods import PipeshardParallel
    from meshwright.zoo.decoder import Recompute

ZERO = {"z0": 0, "z1": 1, "z2": 2, "z3": 3, "fsdp": 3}
"""ZeRO stage of each sharding that runs."""


def check_runs(row: PlanRow) -> None:
    """Whether this runtime runs what a plan says.

    Args:
        row: the plan.

    Raises:
        UnsupportedError: it does not, with every reason.
    """
    problems = list(_refused(row))
    if problems:
        raise UnsupportedError(problems, code="MW411")


def method_of(row: PlanRow, devices: Sequence[Any]) -> PipeshardParallel:
    """How `parallelize` runs a plan: stages on meshes of dp x tp devices, dp x mbs samples in a micro-batch.

    Args:
        row: the plan.
        devices: at least as many as it needs; it takes the first.

    Raises:
        InputError: too few devices.
        UnsupportedError: the plan says something that does not run here.
    """
    from meshwright.compiler.methods import PipeshardParallel
    from meshwright.compiler.tensor import TensorSplit
    from meshwright.zoo.tensor import tensor_axis

    check_runs(row)
    if row.devices > len(devices):
        raise InputError(
            Problem(what=f"the plan needs {row.identity()} devices, there are {len(devices)}",
                    why="every rank of a plan is a device", fix=f"--devices {row.devices}, or a smaller plan",
                    field="devices"),
            code="MW251",
        )  # fmt: skip
    return PipeshardParallel(
        devices=list(devices[: row.devices]),
        num_micro_batches=row.micro_batches,
        num_stages=row.pp,
        schedule=row.schedule,
        chunks=row.vpp if row.vpp > 1 else None,
        zero=ZERO[row.sharding],
        tensor=TensorSplit(degree=row.tp, axis_of=tensor_axis) if row.tp > 1 else None,
    )


def recompute_runs(row: PlanRow, layers: Sequence[int]) -> tuple[tuple[int, Recompute], ...]:
    """Runs of layers and what their backward computes again.

    Args:
        row: the plan.
        layers: of each virtual stage; a run is never in two of them.
    """
    if row.recompute == "none":
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
            runs += [(1, "selective" if row.recompute == "sel" else "full") for _ in range(held)]
    return tuple(runs)


def _refused(row: PlanRow) -> Iterator[Problem]:
    why = "this runtime has data, ZeRO, tensor and pipeline parallelism"
    for name, degree in (("cp", row.cp_degree), ("ep", row.ep), ("etp", row.etp)):
        if degree > 1:
            yield Problem(what=f"{name}{degree} does not run here", why=why, field="plan",
                          fix=f"leave {name} out: its devices go to dp")  # fmt: skip
    if row.sharding not in ZERO:
        yield Problem(what=f"{row.sharding} does not run here", why="states are split over all data ranks of a stage or"
                      " over none", fix="z1, z2, z3 or fsdp", field="plan")  # fmt: skip
    if not schedule_named(row.schedule).exact_semantics:
        yield Problem(what=f"{row.schedule} does not run here", why="it trains on weights of several versions, and what"
                      " runs here has one", fix="1f1b, interleaved or zb-h1", field="plan")  # fmt: skip
    if row.offload:
        yield Problem(what=f"off-{row.offload} does not run here", why="states stay on their devices",
                      fix="leave it out", field="plan")  # fmt: skip
