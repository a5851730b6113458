"""Galvatron behind the seam: its search engine, in the interpreter that the user has installed it in.

Galvatron plans from measured profiles. Ours are made of the same estimates that price every plan here: seconds and
bytes of one layer and one sequence on one device, all-reduce speeds of the island's domains.

Source: Miao et al., "Galvatron: Efficient Transformer Training over Multiple GPUs Using Automatic Parallelism", VLDB
2023; package hetu-galvatron 2.4.0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.errors import UnsupportedError
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layers.item_costs import item_costs
from meshwright.estimate.layers.items import NONE, Item
from meshwright.planning.compose.sources.parallelizers.own_process import OwnProcess
from meshwright.search.grid import Grid
from meshwright.specs.cluster import Island, NodeGroup
from meshwright.specs.dtypes import DTYPE_BYTES
from meshwright.specs.seam import ModelSlice
from meshwright.specs.workload import Workload
from meshwright.strategies import CONTEXTS
from meshwright.units import GIGA

VARIABLE = "MESHWRIGHT_GALVATRON_PYTHON"
"""Names the interpreter that has Galvatron."""
TIME_LIMIT_S = 300.0
"""Time limit of one question: the engine's knapsack over memory in MiB takes seconds to minutes."""


def galvatron(python: str | None = None, *, time_limit_s: float = TIME_LIMIT_S) -> OwnProcess:
    """Galvatron as a parallelizer of equal devices, in a process of its own.

    Args:
        python: the interpreter that has Galvatron; the one that MESHWRIGHT_GALVATRON_PYTHON names by default.
        time_limit_s: the time limit in seconds of one question.

    Raises:
        UnsupportedError: nobody says where Galvatron is.
    """
    interpreter = python or os.environ.get(VARIABLE)
    if not interpreter:
        raise UnsupportedError(
            what="nothing says where Galvatron is installed",
            why="it runs in an interpreter of its own",
            fix=f"pip install --no-deps hetu-galvatron into one that has scipy and tqdm, and set {VARIABLE} to it",
            field="galvatron",
            code="MW405",
        )
    command = (interpreter, str(Path(__file__).with_name("galvatron_worker.py")))
    return OwnProcess(
        name="galvatron", command=command, time_limit_s=time_limit_s, question=_question, every_size=True, slow=True
    )


def _question(part: ModelSlice, island: Island, workload: Workload, micro_batch: int) -> Mapping[str, Any]:
    """What is asked: the slice as anybody is asked, and the profiles that Galvatron wants.

    Raises:
        UnsupportedError: several kinds of layer, or experts.
    """
    from meshwright.formats.partial_plans_json import request  # with pydantic

    if len(part.layers) != 1 or part.layers[0][0].mlp.routed_experts:
        why = "its search plans equal dense layers"
        raise UnsupportedError(what="Galvatron does not know this slice", why=why, field="layers", code="MW406")
    return {**request(part, island, workload, micro_batch), "profile": _profile(part, island, workload)}


def _profile(part: ModelSlice, island: Island, workload: Workload) -> dict[str, Any]:
    """One layer and the edges of one sequence on one device, and the speed of each size of group."""
    hardware = hardware_of(island.group, workload)
    one = np.ones(1, dtype=np.int64)
    zero = np.zeros(1, dtype=np.int64)
    grid = Grid(
        tp=one,
        overlap=zero,
        context=np.ones((1, len(CONTEXTS)), dtype=np.int64),
        ep=one,
        etp=one,
        pp=one,
        dp=one,
        mbs=one,
        m=one * workload.global_batch,
        way=zero,
    )
    single = replace(workload, global_batch=1)
    layer, _ = part.layers[0]
    items = (Item("layer", layer, NONE), Item("embedding"), Item("head"))
    costs = item_costs(items, grid.strategies(single), part.model, hardware, single)
    held = np.array([part.embedding, part.head], dtype=float)
    width = DTYPE_BYTES[workload.precision.activations]
    return {
        "layer": {
            "forward_s": float(costs.forward_s[0, 0]),
            "kept_bytes": float(costs.kept_bytes[0, 0]),
            "input_bytes": float(workload.seq_len * part.model.hidden * width),
            "parameters": float(costs.dense_parameters[0, 0]),
        },
        "edges": {
            "forward_s": float(costs.forward_s[0, 1:] @ held),
            "kept_bytes": float(costs.kept_bytes[0, 1:] @ held),
            "parameters": float(np.maximum(costs.dense_parameters[0, 1:], 0.0) @ held),
        },
        "allreduce_gb_s": {
            str(1 << power): _speed_gb_s(island.group, 1 << power)
            for power in range(1, island.devices.bit_length())
            if 1 << power <= island.devices
        },
        "latency_s": island.group.domains[0].latency_s,
        "overlap_slowdown": island.group.device.efficiency.overlap_slowdown,
    }


def _speed_gb_s(group: NodeGroup, size: int) -> float:
    """GB/s per device that a group of consecutive devices reaches."""
    domain = next((domain for domain in group.domains if domain.size >= size), group.domains[-1])
    return domain.bandwidth_bytes_per_s * domain.efficiency / GIGA
