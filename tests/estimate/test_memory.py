"""Bytes of workers: the fullest is the largest sum of kinds, whatever is sharded, frozen or away."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.memory import PerParameter, WorkerLoad, fullest_bytes, usual, worker_bytes
from meshwright.library import models
from meshwright.library.clusters import resolve_gpus
from meshwright.search.legal_rows import build_grid
from meshwright.search.shardings import ShardingTable, shardings_for
from meshwright.search.space import Space
from meshwright.specs.workload import Workload
from tests.strategies.columns import sharding


@pytest.mark.parametrize("frozen", [False, True])
def test_the_fullest_worker_is_the_one_whose_kinds_sum_highest(frozen: bool) -> None:
    workload = Workload(seq_len=4096, global_batch=64)
    hardware = hardware_of(resolve_gpus("1x8xH100").groups[0], workload)
    grid = build_grid(models.resolve("llama-3.1-8b"), workload, 8, Space())
    rows = np.flatnonzero(grid.dp == 8)[:3]
    drawn = np.random.default_rng(7).uniform(1e8, 1e9, (8, len(rows), 4))
    load = WorkerLoad(
        dense_parameters=drawn[0],
        expert_parameters=drawn[1],
        largest_dense=drawn[2] / 10,
        largest_expert=drawn[3] / 10,
        activations=drawn[4],
        transient=drawn[5],
        communicators=np.full((len(rows), 1), 3.0),
        offload_weights=np.zeros((len(rows), 1)),
        weight_versions=np.full((len(rows), 4), 2.0),
        **({"frozen_dense_bytes": drawn[6], "largest_frozen_bytes": drawn[7]} if frozen else {}),
    )
    choices = shardings_for(8, 1, Space())
    table = ShardingTable.of(grid, choices)
    each = PerParameter.of(table.columns, hardware, workload)
    together = fullest_bytes(load, each.every(slice(None), rows), hardware)
    least = fullest_bytes(load, each.least(table.legal).every(slice(None), rows), hardware)[0]
    assert usual(load) is not frozen
    for number in range(len(choices)):
        choice = table.take(np.full(len(rows), number), rows)
        whole = worker_bytes(load, choice, hardware, workload).peak.max(axis=1)
        if usual(load):
            np.testing.assert_allclose(together[number], whole, rtol=1e-12)
        assert (least <= whole * (1 + 1e-12)).all()


@pytest.mark.parametrize(
    ("software", "each"), [("pytorch-eager", 4.0), ("nanotron", 2.0), ("xla", 0.0), ("megatron-core", 0.0)]
)
def test_buckets_of_whole_copies_lie_beside_their_gradients(software: str, each: float) -> None:
    """DistributedDataParallel copies gradients into buckets; one copy alone, and shards, have none."""
    workload = Workload(seq_len=4096, global_batch=64, software=software)
    hardware = hardware_of(resolve_gpus("1x8xH100").groups[0], workload)

    def gradients(name: str, ranks: int, groups: int = 1) -> float:
        found = PerParameter.of(sharding(name, ranks, groups=groups), hardware, workload)
        return float(found.dense_others[0])

    assert gradients("z0", 8, 8) - gradients("z0", 1) == each
    assert gradients("fsdp", 8) == pytest.approx(12.0 / 8)
