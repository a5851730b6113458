"""The same runs by other estimators: Calculon, which comes along, and llm-analysis, whose answers are kept as data.

Calculon (Isaev et al., SC23) answers with the system files it was published with, each run as the plan that meshwright
takes it for. llm-analysis 0.2.2 (github.com/cli99/llm-analysis) wants the share of the peak that a device reaches: it
was given, per device, the one of 20, 25, ... 90% that suits these runs best, 90% of memory and 80% of link bandwidth.
SimuMax (github.com/MooreThreads/SimuMax) prices operators by efficiencies measured on one machine; of the devices here
it comes with none of 2020 to 2025 but A100 PCIe and B200, whose own runs are in throughput_2.csv, so it has no row.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill

import numpy as np

from benchmarks import ROOT, markdown_table
from benchmarks.accuracy_scale import WIDTH, Row
from meshwright.app.calibrate import measured_step
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import Application
from meshwright.calculon.model import price
from meshwright.calculon.reading import read_system
from meshwright.calibrate.fit import MeasuredStep
from meshwright.report.score_table import Compared, score, score_cells
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp

LLM_ANALYSIS = ROOT / "benchmarks" / "llm_analysis.csv"
SYSTEMS = {"A100-80": "a100_80g", "H100": "h100_80g_nvl8"}
"""Device: Calculon's file of it."""
RECOMPUTES = {"none": "none", "full": "full", "sel": "attn_only"}


def read_answers(path: Path) -> dict[str, float]:
    """Seconds by run."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row["id"]: float(row["seconds"]) for row in csv.DictReader(file)}


def calculon_s(step: MeasuredStep) -> float | None:
    """Seconds of a step by Calculon; None where its model has no such device, layer or layout.

    Args:
        step: dense, in 16 or 8 bits, without context parallelism.
    """
    run, row = step.chosen.run, step.chosen.row
    system = SYSTEMS.get(run.cluster.groups[0].device.name)
    recompute = RECOMPUTES.get(row.recompute)
    bits = run.workload.precision.bytes_of("compute")
    mixer, mlp = run.model.last_layer().attention, run.model.last_layer().mlp
    plain = isinstance(mixer, Attention) and isinstance(mlp, DenseMlp)
    if system is None or recompute is None or row.cp or bits not in (1, 2) or not plain:
        return None
    gated = mlp.gated
    app = Application(
        name="app",
        hidden=run.model.hidden,
        feedforward=mlp.ffn_hidden,
        seq_size=run.workload.seq_len,
        attn_heads=mixer.heads,
        attn_size=mixer.head_dim,
        num_blocks=run.model.num_layers,
        structure_type="llama" if gated else "gpt",
        kv_heads=mixer.kv_heads if gated else None,
    )
    read = read_system(system)
    sizes = [network.size for network in read.networks]

    def tier(span: int) -> int:
        return next((number for number, size in enumerate(sizes) if size >= span), len(sizes) - 1)

    columns = ExecutionColumns.of(
        {
            "num_procs": row.tp * row.pp * row.dp,
            "tensor_par": row.tp,
            "pipeline_par": row.pp,
            "data_par": row.dp,
            "tensor_par_net": tier(row.tp),
            "pipeline_par_net": tier(row.tp * row.dp * row.pp),
            "data_par_net": tier(row.tp * row.dp),
            "batch_size": row.gbs,
            "microbatch_size": row.mbs,
            "datatype": "float8" if bits == 1 else "float16",
            "fused_activation": True,
            "attention_type": "grouped" if gated else "multihead",
            "activation_recompute": recompute,
            "pipeline_interleaving": row.vpp,
            "optimizer_sharding": row.sharding != "z0",
            "tensor_par_comm_type": "rs_ag" if row.sp and row.tp > 1 else "ar",
            "tensor_par_overlap": "ring" if row.tp_overlap == "ring" and row.tp > 1 else "none",
            "seq_par_ag_redo": False,
            "data_par_overlap": row.dp_overlap and row.dp > 1,
            "weight_offload": False,
            "activations_offload": False,
            "optimizer_offload": False,
            "training": True,
        }
    )
    seconds = float(np.asarray(price(app, read, columns, fixed=True)["total_time"])[0])
    return seconds if np.isfinite(seconds) and seconds > 0 else None


def peers_text(rows: Sequence[Row]) -> str:
    """A line per estimator on the runs that it can price, with ours on the same runs.

    Args:
        rows: scored runs of step times.
    """
    done = [(record, run) for record, _, run in rows if run.predicted]
    steps = (measured_step({**record, "usable": "True"}) for record, _ in done)
    found = {step.id: calculon_s(step) for step in steps if isinstance(step, MeasuredStep)}
    answers = {"Calculon": found, "llm-analysis": read_answers(LLM_ANALYSIS)}
    lines = []
    for name, seconds in answers.items():
        own = [run for _, run in done if seconds.get(run.id)]
        if own:
            lines += [_line(name, own, seconds), score_cells([score("meshwright, the same runs", own)])[0]]
    if not lines:
        return ""
    said = (
        "Other estimators on the same runs, as far as their models reach. Calculon: dense models on A100 and H100 with "
        "the system files it was published with. llm-analysis 0.2.2: 16 bits on A100, H100 and V100, given for each "
        "device the one share of its peak that suits these runs best. SimuMax prices operators by efficiencies "
        "measured on the machine in question and comes with those of A100 PCIe and B200, for which there are no runs "
        "but its own."
    )
    headings = ("estimator", "runs", "predicted", "median error", "p90 error", "bias", "in interval")
    return f"## Other estimators\n\n{fill(said, WIDTH)}\n\n{markdown_table(headings, lines)}"


def _line(name: str, runs: Iterable[Compared], seconds: dict[str, float | None]) -> tuple[str, ...]:
    theirs = [replace(run, predicted=seconds[run.id], low=None, high=None) for run in runs]
    return tuple(score_cells([score(name, theirs)])[0])
