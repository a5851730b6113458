"""Bytes of workers: the fullest is the largest sum of kinds, whatever is sharded, frozen or away."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import estimate
from meshwright import plan as search_plan
from meshwright.errors import UnsupportedError
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.memory import PerParameter, WorkerLoad, fullest_bytes, usual, worker_bytes
from meshwright.library import models
from meshwright.library.clusters import resolve_gpus
from meshwright.search.legal_rows import build_grid
from meshwright.search.shardings import ShardingTable, shardings_for
from meshwright.search.space import Space
from meshwright.specs.workload import Workload
from tests.strategies.columns import sharding

WORKER_FIELDS = (
    *("dense_parameters", "expert_parameters", "largest_dense", "largest_expert", "activations", "transient"),
    *("communicators", "offload_weights"),
)


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


@pytest.mark.parametrize(("name", "ranks", "parts"), [("z0", 8, 1), ("z2", 8, 1), ("fsdp", 8, 8), ("fsdp-keep", 8, 1)])
def test_frozen_weights_are_cut_to_the_last_byte(name: str, ranks: int, parts: int) -> None:
    """As many parts as ranks gather; an odd number of bytes is rounded nowhere."""
    workload = Workload(seq_len=4096, global_batch=64)
    hardware = hardware_of(resolve_gpus("1x8xH100").groups[0], workload)
    groups = ranks if name == "z0" else 1
    frozen = {"frozen_dense_bytes": np.array([1e9 + 3]), "frozen_expert_bytes": np.array([5e8 + 1])}

    def weights(load: dict[str, np.ndarray]) -> float:
        nothing = dict.fromkeys(WORKER_FIELDS, np.zeros(1))
        held = worker_bytes(WorkerLoad(**(nothing | load)), sharding(name, ranks, groups=groups), hardware, workload)
        return float(held.weights[0])

    assert weights(frozen) == pytest.approx((1.5e9 + 4) / parts, rel=1e-13)
    assert weights({**frozen, "offload_weights": np.array([0.25])}) == pytest.approx(0.75 * weights(frozen), rel=1e-13)
    # Of several versions of the weights those that train differ alone.
    assert weights({**frozen, "weight_versions": np.array([3.0])}) == weights(frozen)
    assert weights({"dense_weight_bytes": np.array([7.0]), "weight_versions": np.array([3.0])}) == pytest.approx(
        3 * weights({"dense_weight_bytes": np.array([7.0])})
    )


def test_gradients_of_a_layerwise_update_are_those_of_the_largest_table_or_layer() -> None:
    """Llama-3.1-8B: the head and the norm before it are the most; FSDP holds one whole gradient anyway."""
    held, early = (
        estimate("llama-3.1-8b", plan="dp1.mbs1.gbs1.rc-full", gpus="1xH200", optimizer=name).plans[0].estimate.fullest
        for name in ("adamw", "adamw:layerwise=1")
    )
    apart = {kind: size - dict(early.memory_bytes)[kind] for kind, size in held.memory_bytes if kind != "overhead"}
    assert apart.pop("gradients") == 4 * (8_030_261_248 - 128_257 * 4096)
    assert not any(apart.values())
    sharded = estimate("llama-3.1-8b", plan="dp8.fsdp.mbs1.gbs8", gpus="8xH200", optimizer="adamw:layerwise=1")
    assert dict(sharded.plans[0].estimate.fullest.memory_bytes)["gradients"] == 0


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("dp1.mbs1.gbs4", "4 micro-batches"),
        ("dp8.mbs1.gbs8.z1", "z1 with"),
        ("dp1.mbs1.gbs1.off-o", "states in host memory"),
    ],
)
def test_layerwise_updates_need_one_micro_batch_and_gradients_that_no_rank_waits_for(plan: str, words: str) -> None:
    gpus = "8xH200" if plan.startswith("dp8") else "1xH200"
    with pytest.raises(UnsupportedError, match=words):
        estimate("llama-3.1-8b", plan=plan, gpus=gpus, optimizer="adamw:layerwise=1")
    for searched in (gpus, f"{gpus},8xA100-80"):
        with pytest.raises(UnsupportedError, match="a search with"):
            search_plan("llama-3.1-8b", gpus=searched, global_batch=8, optimizer="adamw:layerwise=1")
