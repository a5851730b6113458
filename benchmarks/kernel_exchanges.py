"""Dispatch and combine of DeepEP's kernels for long batches against the exchange that plans are priced with.

Nothing is fitted here: of each shape the quickest number of processors given to the kernel counts, and the links are
those of the device's usual node.
"""

from __future__ import annotations

import numpy as np

from benchmarks.kernel_tables import GENERATIONS, NAMES, Folder
from meshwright.estimate.hardware import level_rates
from meshwright.kernels.exchange import Routing, token_exchange_s
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.dtypes import stored_bytes

PHASES = {"dispatch": stored_bytes("fp8-block"), "combine": 2.0}
"""Bytes per element: engines dispatch in 8 bits with scales and combine in 16."""
SHAPE = ("gpu", "nodes", "hidden_size", "top_k", "experts", "tokens_per_gpu")
LONG = 512
"""Tokens of a rank from which on bytes count more than the start."""
NODE = 8


def exchange_errors(folder: Folder) -> dict[tuple[str, int, str], tuple[np.ndarray, np.ndarray]]:
    """Relative errors, of all shapes and of those of LONG tokens or more, by generation, nodes and phase."""
    quickest: dict[tuple[str, ...], dict[str, float]] = {}
    for row in folder.rows("deepep"):
        if row["mode"] == "normal":
            best = quickest.setdefault(tuple(row[name] for name in SHAPE), {})
            for phase in PHASES:
                best[phase] = min(best.get(phase, np.inf), float(row[f"{phase}_us"]) * 1e-6)
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
    for shape, best in quickest.items():
        name, nodes = NAMES[shape[0]], int(shape[1])
        generation = next(one for one, names in GENERATIONS.items() if name in names)
        hidden, copies, _, tokens = (float(value) for value in shape[2:])
        domains = resolve_gpus(f"{NODE * nodes}x{name}").groups[0].domains
        inside = (float(NODE),) if nodes == 1 else (float(NODE), float(NODE * nodes))
        rates = tuple(level_rates(domain) for domain in domains)[: len(inside)]
        for phase, size in PHASES.items():
            seconds = token_exchange_s(
                tokens * copies * hidden * size, inside=inside, rates=rates, routing=Routing(copies=copies)
            )
            error = float(seconds) / best[phase] - 1
            found.setdefault((generation, nodes, phase), []).append((tokens, error))
    columns = {key: np.array(rows) for key, rows in found.items()}
    return {key: (rows[:, 1], rows[rows[:, 0] >= LONG, 1]) for key, rows in sorted(columns.items())}


def exchange_cells(folder: Folder) -> list[list[str]]:
    """Rows of a table: shapes, median error of all and of long ones, bias of long ones."""
    cells = []
    for (generation, nodes, phase), (errors, long) in exchange_errors(folder).items():
        where = "1 node" if nodes == 1 else f"{nodes} nodes"
        medians = [f"{np.median(np.abs(some)):.0%}" for some in (errors, long)]
        cells.append([f"{phase}, {generation}, {where}", str(len(errors)), *medians, f"{np.median(long):+.0%}"])
    return cells
