"""A Calculon estimate as text: where the seconds of a batch and the bytes of a processor go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.units import gib, seconds, significant

TIMES = (
    ("forward", "fw_time"),
    ("backward", "bw_time"),
    ("recompute", "recompute_time"),
    ("optimizer", "optim_step_time"),
    ("bubble", "bubble_time"),
    ("tensor traffic shown", "tp_comm_exposed_time"),
    ("tensor traffic redone, shown", "recomm_exposed_time"),
    ("pipeline traffic shown", "pp_comm_exposed_time"),
    ("data traffic shown", "dp_comm_exposed_time"),
    ("offload shown, forward", "fw_offload_exposed_time"),
    ("offload shown, backward", "bw_offload_exposed_time"),
)
SPACES = (
    ("weights", "weight_space"),
    ("weight gradients", "weight_grad_space"),
    ("optimizer", "optimizer_space"),
    ("activations", "act_space"),
    ("checkpoints", "act_checkpoint_size"),
    ("activation gradients", "act_grad_space"),
)


def render_estimate(document: Mapping[str, Any]) -> RenderableType:
    """Headline, times and memory.

    Args:
        document: `meshwright.calculon-estimate/1`.
    """
    stats, execution = document["stats"], document["execution"]
    head = Text()
    head.append(f"{significant(stats['sample_rate'], 6)} samples/s", style="bold")
    head.append(f"   {seconds(stats['total_time'])} per batch of {execution['batch_size']:,}")
    head.append(f"   {stats['total_efficiency']:.1%} of peak")
    names = " on ".join(name for name in (document["app"], document["system"]) if name)
    degrees = (
        f"{execution['num_procs']:,} = tensor {execution['tensor_par']} x pipeline {execution['pipeline_par']} "
        f"x data {execution['data_par']}"
    )
    lines: list[RenderableType] = [head, Text(f"{names}: {degrees}" if names else degrees)]
    if document["fixed"]:
        lines.append(Text("with the errors of the original corrected (--fixed)"))
    lines.append(_times(stats))
    lines.append(_spaces(stats))
    return Group(*lines)


def _times(stats: Mapping[str, Any]) -> Table:
    table = Table("time of a batch", box=None, header_style="bold", pad_edge=False)
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    for title, name in TIMES:
        if stats[name]:
            table.add_row(title, seconds(stats[name]), f"{stats[name] / stats['total_time']:.1%}")
    table.add_row("total", seconds(stats["total_time"]), "100%", style="bold")
    return table


def _spaces(stats: Mapping[str, Any]) -> Table:
    table = Table("memory of a processor", box=None, header_style="bold", pad_edge=False)
    table.add_column("total", justify="right")
    table.add_column("resident if offloaded", justify="right")
    for title, name in SPACES:
        resident = stats[f"{name}_with_offload"]
        if stats[name]:
            table.add_row(title, gib(stats[name]), "-" if resident is None else gib(resident))
    table.add_row("tier 1 total", gib(stats["proc_mem_tier1_cap_req"]), "", style="bold")
    if stats["proc_mem_tier2_cap_req"]:
        table.add_row("tier 2 total", gib(stats["proc_mem_tier2_cap_req"]), "", style="bold")
    return table
