"""Logits and feed-forward parts in tiles where a long sequence does not fit, with offload behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshwright.estimate.away_rules import host_problems, update_problems
from meshwright.planning.axes.offload import offload_text, spelled
from meshwright.planning.repair.job_repair import FittingPlan, fitting
from meshwright.planning.repair.leanest import Leanest, priced_row
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import offload_of
from meshwright.specs.workload import Workload

TILED = ("loss_tiles", "mlp_tiles")
TILES = 16
"""Pieces of a micro-batch's tokens: a sixteenth of the logits is little beside what else a device holds."""
STEPS = ((TILED[:1], ""), (TILED, ""), (TILED, "o"), (TILED, "aog"))
"""What is in tiles, and what is away besides, the least change first."""


def in_tiles(
    tried: Sequence[Leanest], model: ModelSpec, cluster: ClusterSpec, workload: Workload
) -> tuple[str, str, FittingPlan] | None:
    """The quickest of the lean plans that fits with the fewest of logits, feed-forward parts and offload changed.

    Args:
        tried: plans of least memory.
        model: of the job.
        cluster: of one kind of device.
        workload: of the job.

    Returns:
        What to say, what it means, and the plan; None where nothing fits.
    """
    tried = [lean for lean in tried if _weights_fit(lean)]
    for names, away in STEPS:
        tiles: dict[str, Any] = {name: TILES for name in names if getattr(workload, name) < TILES}
        if not tried or not tiles or (away and _cannot_leave(away, cluster, workload)):
            continue
        other = replace(workload, **tiles)
        rows = [
            priced_row(replace(lean.row, offload=away or lean.row.offload), model, cluster, other) for lean in tried
        ]
        fits = [lean for lean in rows if lean and lean.estimate.fits != "no"]
        if not fits:
            continue
        least = min(fits, key=lambda lean: (lean.estimate.fits != "yes", lean.estimate.step_time_s))
        space = Space(pins=(("offload", (least.row.offload,)),))
        best = fitting(least.row, least.estimate, model, cluster, other, space)
        option = " ".join(f"--{name.replace('_', '-')} {count}" for name, count in tiles.items())
        what = "logits and loss" if len(names) == 1 else "logits, loss and feed-forward parts"
        text = f"{what} in {TILES} pieces"
        if away:
            return f"{option} {spelled(away)}", f"{text}, {offload_text(away)}", best
        return option, text, best
    return None


def _weights_fit(lean: Leanest) -> bool:
    """Whether the weights alone have room, which neither tiles nor what they come with make smaller."""
    full = lean.estimate.fullest
    return dict(full.memory_bytes)["weights"] <= full.capacity_bytes


def _cannot_leave(away: str, cluster: ClusterSpec, workload: Workload) -> bool:
    """Whether the host has no room for what would be away, or cannot update it."""
    offload = offload_of(away)
    return any(host_problems(offload, cluster.groups[0])) or any(update_problems(offload, workload))
