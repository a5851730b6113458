"""Searches of the Calculon model as text: the best execution, the next ones, the front, the certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.report.parts import columns, heading
from meshwright.units import gib, of_capacity, percent, seconds, significant

LAYOUT = "tp.pp.v.dp.mbs"
FRONT_SHOWN = 12
"""Points of a front that are printed; all are in the JSON."""
TIMES = (
    ("fw_time", "forward"),
    ("bw_time", "backward"),
    ("optim_step_time", "optimizer"),
    ("recompute_time", "recompute"),
    ("bubble_time", "bubble"),
    ("tp_comm_exposed_time", "tensor traffic"),
    ("recomm_exposed_time", "redone traffic"),
    ("pp_comm_exposed_time", "pipeline traffic"),
    ("dp_comm_exposed_time", "data traffic"),
    ("fw_offload_exposed_time", "offload, forward"),
    ("bw_offload_exposed_time", "offload, backward"),
)
"""Parts of a batch's time and their names for people."""


def render_search(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.calculon-search/1`.

    Args:
        document: the answer as data.
    """
    inputs, best, search = document["inputs"], document["best"][0], document["search"]
    stats, capacity = best["stats"], document["capacity"]
    time_s = stats["total_time"]
    memory = of_capacity(stats["proc_mem_tier1_cap_req"], capacity["tier1_bytes"])
    text = (
        f"{inputs['app']} on {inputs['num_procs']:,} {inputs['system']}: "
        f"{significant(stats['sample_rate'], 4)} samples/s, "
        f"{seconds(time_s)} per batch of {best['execution']['batch_size']:,}, {memory}."
    )
    shares = [(stats[name] / time_s, words) for name, words in TIMES if stats[name] >= 0.005 * time_s]
    parts = ", ".join(f"{words} {percent(share)}" for share, words in sorted(shares, reverse=True))
    return Group(
        Text(text, style="bold"),
        "",
        Text(f"  {execution_line(best['execution'])}"),
        Text(f"  time: {parts}"),
        Text(f"  search: {certificate_line(search, inputs['space']['name'])}"),
        *(Text(f"    {count:>14,}  {rule}") for rule, count in sorted(search["pruned"].items(), key=lambda r: -r[1])),
        heading("Best"),
        execution_table(document["best"], capacity),
        heading(f"Front of time per sample and memory, {len(document['pareto'])} executions"),
        execution_table(spaced_rows(document["pareto"], FRONT_SHOWN), capacity),
    )


def certificate_line(search: Mapping[str, Any], space: str) -> str:
    """`best of 6,582,816 executions of optimal-execution, ...`."""
    others = "rules and bounds exclude the others"
    if "stopped" in search:
        others = f"stopped at its {search['stopped']} before it had looked at the others"
    return (
        f"best of {search['space']:,} executions of {space}, {search['feasible']:,} of them feasible, "
        f"{search['priced']:,} priced; {others}:"
    )


def spaced_rows(rows: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Rows evenly taken from a long list, first and last included."""
    if len(rows) <= count:
        return list(rows)
    return [rows[round(place * (len(rows) - 1) / (count - 1))] for place in range(count)]


def execution_line(execution: Mapping[str, Any]) -> str:
    """An execution in one line: `512 = tp4 x pp16 x dp8, ...`."""
    return f"{execution['num_procs']:,} = {degrees_text(execution)}; {', '.join(execution_settings(execution))}"


def degrees_text(execution: Mapping[str, Any]) -> str:
    """`tp4 x pp16.v6 x dp8, 512 = dp8 x mbs1 x 64 micro-batches`."""
    v = execution["pipeline_interleaving"]
    chunks = f".v{v}" if v > 1 else ""
    d, b, batch = execution["data_par"], execution["microbatch_size"], execution["batch_size"]
    split = f"tp{execution['tensor_par']} x pp{execution['pipeline_par']}{chunks} x dp{d}"
    return f"{split}; {batch:,} sequences = dp{d} x mbs{b} x {batch // d // b:,} micro-batches"


def execution_settings(execution: Mapping[str, Any]) -> list[str]:
    """What an execution does besides its degrees, in words."""
    words = [f"recompute {execution['activation_recompute']}", str(execution["tensor_par_comm_type"])]
    if execution["seq_par_ag_redo"]:
        words.append("redo all-gather")
    if execution["optimizer_sharding"]:
        words.append("sharded optimizer")
    if execution["tensor_par_overlap"] != "none":
        words.append(f"tp overlap {execution['tensor_par_overlap']}")
    if execution["data_par_overlap"]:
        words.append("dp overlap")
    moved = [name for name in ("weight", "activations", "optimizer") if execution[f"{name}_offload"]]
    if moved:
        words.append(f"offload {'+'.join(moved)}")
    words.append("fused" if execution["fused_activation"] else "not fused")
    if execution["attention_type"] != "multihead":
        words.append(str(execution["attention_type"]))
    nets = [(execution[f"{name}_par"], execution[f"{name}_par_net"]) for name in ("tensor", "pipeline", "data")]
    words.append("networks " + "".join(str(net) if degree > 1 else "-" for degree, net in nets))
    words.append(str(execution["datatype"]))
    return words


def execution_table(rows: Sequence[Mapping[str, Any]], capacity: Mapping[str, float]) -> Table:
    """One row an execution."""
    tiers = ("tier 1", "tier 2") if capacity["tier2_bytes"] else ("tier 1",)
    table = columns("#", "samples/s", "batch", *tiers, LAYOUT, "how", left=(LAYOUT,), fold=("how",))
    for place, row in enumerate(rows, 1):
        stats, execution = row["stats"], row["execution"]
        cells = [str(place), significant(stats["sample_rate"], 4), seconds(stats["total_time"])]
        cells.append(gib(stats["proc_mem_tier1_cap_req"]))
        if capacity["tier2_bytes"]:
            cells.append(gib(stats["proc_mem_tier2_cap_req"]))
        names = ("tensor_par", "pipeline_par", "pipeline_interleaving", "data_par", "microbatch_size")
        cells.append(".".join(str(execution[name]) for name in names))
        cells.append(", ".join(execution_settings(execution)))
        table.add_row(*cells)
    return table
