"""Logits and feed-forward parts in tiles where a long sequence does not fit, with offload behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshwright.estimate.rules.away import host_problems, update_problems
from meshwright.planning.axes.offload import offload_text, spelled
from meshwright.planning.for_target import software_of
from meshwright.planning.repair.job_repair import FittingPlan, fitting
from meshwright.planning.repair.leanest import Leanest, priced_row
from meshwright.planning.repair.of_tuning import USUAL_TRAINER
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow, offload_of
from meshwright.specs.workload import Workload
from meshwright.targets import TARGETS
from meshwright.targets.liger import FAMILIES, pieces

TILED = ("loss_tiles", "mlp_tiles")
_TILED_PARTS = {"loss_tiles": "logits and loss", "mlp_tiles": "feed-forward parts"}
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
        model: the model of the job.
        cluster: the cluster of one kind of device.
        workload: the workload of the job.

    Returns:
        What to say, what it means, and the plan; None where nothing fits.
    """
    tried = [lean for lean in tried if _weights_fit(lean)]
    for names, away in STEPS:
        if away and _cannot_leave(away, cluster, workload):
            continue
        fits = []
        for lean in tried:
            row = replace(lean.row, offload=away or lean.row.offload)
            tiles = _more_tiles(names, row, model, workload)
            other = replace(workload, **tiles)
            priced = priced_row(row, model, cluster, other) if tiles else None
            if priced is not None and priced.estimate.fits != "no":
                fits.append((priced, tiles, other))
        if not fits:
            continue
        least, tiles, other = min(fits, key=lambda one: (one[0].estimate.fits != "yes", one[0].estimate.step_time_s))
        space = Space(pins=(("offload", (least.row.offload,)),))
        best = fitting(least.row, least.estimate, model, cluster, other, space)
        option = " ".join(f"--{name.replace('_', '-')} {count}" for name, count in tiles.items())
        text = ", ".join(f"{_TILED_PARTS[name]} in {count} pieces" for name, count in tiles.items())
        if away:
            return f"{option} {spelled(away)}", f"{text}, {offload_text(away)}", best
        return option, text, best
    return None


def in_pieces_beside_adapters(model: ModelSpec, workload: Workload) -> Workload | None:
    """The step of adapters under the trainer of the transformers library, whose switch has Liger make the loss.

    Args:
        model: trained as it is asked for.
        workload: the step, under any framework.

    Returns:
        None where all weights are trained, or Liger has not the model's class or makes no more pieces than there are.
    """
    lora = model.lora
    count = pieces(workload.seq_len, model.hidden, model.vocab)
    if lora is None or model.family not in FAMILIES or count <= workload.loss_tiles:
        return None
    return replace(workload, software=software_of(TARGETS[USUAL_TRAINER], lora.base), loss_tiles=count)


def pieces_option(workload: Workload) -> tuple[str, str]:
    """What to say for a step whose logits are made in pieces, and what it means."""
    return f"--loss-tiles {workload.loss_tiles}", f"{_TILED_PARTS['loss_tiles']} in {workload.loss_tiles} pieces"


def _more_tiles(names: tuple[str, ...], row: PlanRow, model: ModelSpec, workload: Workload) -> dict[str, Any]:
    """Pieces of the parts that are in fewer: of the loss as many as Liger makes, where it has the model's class."""
    tokens = max(1, row.mbs * workload.seq_len // row.cp_degree)
    loss = pieces(tokens, model.hidden, model.vocab) if model.family in FAMILIES and row.tp == 1 else TILES
    most = {"loss_tiles": loss, "mlp_tiles": TILES}
    return {name: most[name] for name in names if getattr(workload, name) < most[name]}


def _weights_fit(lean: Leanest) -> bool:
    """Whether the weights alone have room, which neither tiles nor what they come with make smaller."""
    full = lean.estimate.fullest
    return dict(full.memory_bytes)["weights"] <= full.capacity_bytes


def _cannot_leave(away: str, cluster: ClusterSpec, workload: Workload) -> bool:
    """Whether the host has no room for what would be away, or cannot update it."""
    offload = offload_of(away)
    return any(host_problems(offload, cluster.groups[0])) or any(update_problems(offload, workload))
