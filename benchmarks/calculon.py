"""Speed on Calculon's model: pricing, one estimate, exact searches, beside what the original takes.

Source of the original's times: version 0.1.0 measured on 2 cores; an execution takes 7.6 ms as shipped and 0.7 ms with
its logging removed, a search looks at 230 executions per second with one process and 322 with two.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import Line, Run, median_run, meshwright_command, run

SHIPPED_S, BARE_S = 7.6e-3, 0.7e-3
"""Seconds of an execution: as shipped, and with logging removed."""
SEARCHED_PER_S = (230.0, 322.0)
"""Executions a search looks at per second, with one process and with two."""
ROWS = 1 << 20
"""Executions of a space looked at together, to find the legal ones."""
GIB, MIB = 2**30, 2**20

SEARCHES = (
    ("gpt3-175B", "a100_80g", 512, 512, "optimal-execution", 1.0),
    ("gpt3-175B", "a100_80g", 4096, 4096, "optimal-execution", 1.0),
    ("megatron-1T", "a100_80g", 16384, 16384, "optimal-execution", 1.0),
    ("gpt3-175B", "a100_80g", 512, 512, "full", 30.0),
)
"""Application, system, processors, largest batch, space, and the seconds an exact search of it should take at most."""

EXECUTION = {
    "num_procs": 512, "tensor_par": 4, "pipeline_par": 16, "data_par": 8, "tensor_par_net": 0, "pipeline_par_net": 1,
    "data_par_net": 1, "batch_size": 512, "microbatch_size": 1, "datatype": "float16", "fused_activation": True,
    "attention_type": "multihead", "activation_recompute": "attn_only", "pipeline_interleaving": 6,
    "optimizer_sharding": False, "tensor_par_comm_type": "rs_ag", "tensor_par_overlap": "none",
    "seq_par_ag_redo": False, "data_par_overlap": False, "weight_offload": False, "activations_offload": False,
    "optimizer_offload": False, "training": True,
}  # fmt: skip


def calculon_lines(runs: int) -> list[Line]:
    """All lines of this model."""
    return [*pricing_lines(), estimate_line(runs), *search_lines(runs)]


def pricing_lines() -> list[Line]:
    """Executions per second, every legal one of a space: what the search needs, and all 96 statistics of a sample."""
    from meshwright.calculon.axes import optimal_execution
    from meshwright.calculon.executions import ExecutionColumns
    from meshwright.calculon.legality import reject
    from meshwright.calculon.model import price, price_for_search
    from meshwright.calculon.reading import read_application, read_system
    from meshwright.calculon.space import ExecutionSpace

    app, system = read_application("gpt3-175B"), read_system("a100_80g")
    space = ExecutionSpace(app, system, 512, 512, optimal_execution(system))
    sound = []
    for start in range(0, space.size, ROWS):
        columns = space.take(np.arange(start, min(start + ROWS, space.size)))
        sound.append(columns.take(np.flatnonzero(reject(app, system, columns) == 0)))
    legal = ExecutionColumns.joined(sound)
    some = legal.take(np.random.default_rng(1).integers(0, legal.rows, ROWS // 8))
    lines = []
    for what, target, one, rows in (
        ("executions priced, all the search needs", 5e6, lambda: price_for_search(app, system, legal), legal.rows),
        ("executions priced, all 96 statistics", 5e5, lambda: price(app, system, some), some.rows),
    ):
        wall_s, processor_s = best_of(one, 7)
        note = (
            f"gpt3-175B on 512 a100_80g, {rows:,} of the space's {space.size:,} executions at a time; "
            f"{rows / processor_s:,.3g} per second of processor time; "
            f"{against(wall_s / rows)}"
        )
        lines.append(Line(what, rows / wall_s, target, "per second", at_least=True, note=note))
    return lines


def best_of(one: Callable[[], Any], times: int) -> tuple[float, float]:
    """Seconds of wall and of processor time of the quickest run, each."""
    walls, processors = [], []
    for _ in range(times):
        wall, processor = time.perf_counter(), time.process_time()
        one()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return min(walls), min(processors)


def against(execution_s: float) -> str:
    """How often the original's time of an execution this fits into."""
    return (
        f"{SHIPPED_S / execution_s:,.3g} times Calculon as shipped, {BARE_S / execution_s:,.3g} times with its "
        "logging removed"
    )


def estimate_line(runs: int) -> Line:
    """One estimate from the shell."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "execution.json"
        path.write_text(json.dumps(EXECUTION))
        found = median_run([*meshwright_command(), "calculon", "estimate", "gpt3-175B", str(path), "a100_80g"], runs)
    note = f"{found.processor_s:.2g} s of processor time; the original: 0.34 to 0.38 s of it" if found else ""
    return Line("`calculon estimate`, one execution", found.wall_s if found else None, 0.4, "s", note=note)


def search_lines(runs: int) -> list[Line]:
    """Exact searches as whole processes, and the most memory any of them took."""
    lines, peaks = [], []
    for app, system, procs, batch, space, target in SEARCHES:
        command = [*meshwright_command(), "calculon", "search", app, system, "--procs", str(procs)]
        command += ["--batch", str(batch), "--space", space, "--json"]
        what = f"`calculon search {app} {system} --procs {procs} --batch {batch} --space {space}`"
        found = median_run(command, runs) if target <= 1.0 else succeeded(command)
        if found is None:
            lines.append(Line(what, None, target, "s"))
            continue
        peaks.append(found.peak_bytes)
        lines.append(Line(what, found.wall_s, target, "s", note=search_note(found)))
    lines.append(Line("peak memory of these", max(peaks) / MIB if peaks else None, GIB / MIB, "MiB"))
    return lines


def succeeded(command: list[str]) -> Run | None:
    """A command run once; None if it failed."""
    found = run(command)
    if found.code:
        print(f"  {' '.join(command)}: exit {found.code}: {found.error.strip()[:200]}", file=sys.stderr)
        return None
    return found


def search_note(found: Run) -> str:
    """Size, what was priced, and what the original's rates would make of it."""
    search = json.loads(found.output)["search"]
    rate = search["space"] / found.wall_s
    ratios = " and ".join(f"{rate / one:,.3g}" for one in SEARCHED_PER_S)
    return (
        f"{found.processor_s:.3g} s of processor time on {os.cpu_count()} cores; {search['space']:,} executions, "
        f"{search['priced']:,} priced, best one proven; {ratios} times the executions per second of Calculon's search "
        "with one process and with two"
    )
