"""Stages by dynamic programming against every partition there is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.islands import Islands, Row
from meshwright.compiler.stages.partition import PartitionTimes, StageChoice, stage_partitions, stage_times
from meshwright.compiler.stages.ranges import LayerRanges, RangeVariant
from meshwright.specs.cluster import LinkSpec

HOSTS = Hosts(
    hosts=2,
    devices_per_host=2,
    flop_per_s=1.0,
    memory_bytes=10.0,
    inside_bytes_per_s=10.0,
    between_bytes_per_s=1.0,
    inside_latency_s=0.01,
    between_latency_s=0.1,
)
SLOW = Hosts(
    name="slow",
    hosts=1,
    devices_per_host=2,
    flop_per_s=0.5,
    memory_bytes=5.0,
    inside_bytes_per_s=5.0,
    between_bytes_per_s=0.5,
    inside_latency_s=0.02,
    between_latency_s=0.2,
)
FAR = LinkSpec(between=("slow", "hosts"), bandwidth_bytes_per_s=0.3, latency_s=0.4)
ONE = Row.of(HOSTS)
TWO, TURNED = Islands(groups=(SLOW, HOSTS), links=(FAR,)).rows()
UNLINKED = Islands(groups=(HOSTS, SLOW)).rows()[0]


def every(row: Row, layers: int, device: int = 0, first: int = 0) -> Iterator[list[tuple[int, int, int, int]]]:
    """All ways to lay stages (first, last, device, submesh) on all devices in order."""
    if first == layers:
        if device == row.devices:
            yield []
        return
    for last in range(first, layers):
        for k, own in enumerate(row.islands.submeshes()):
            if row.fits(device, own):
                for rest in every(row, layers, device + own.devices, last + 1):
                    yield [(first, last, device, k), *rest]


@pytest.mark.parametrize("row", [ONE, TWO, TURNED, UNLINKED], ids=["one kind", "two kinds", "turned", "unlinked"])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_partition_is_the_best_of_all(row: Row, seed: int) -> None:
    rng, layers, micro_batches = np.random.default_rng(seed), 4, 5
    submeshes = row.islands.submeshes()
    total = rng.random((4, len(submeshes), layers, layers)) + 0.5
    total[rng.random(total.shape) < 0.2] = np.inf
    total[:, :, *np.tril_indices(layers, -1)] = np.inf
    costs = PartitionTimes(total_s=total, variant=np.zeros(total.shape, int))
    crossing = rng.random(layers - 1)

    def step_s(stages: list[tuple[int, int, int, int]]) -> float:
        times = [total[len(stages) - 1 - n, k, a, b] for n, (a, b, _, k) in enumerate(stages)]
        hops = []
        for _, b, device, k in stages[:-1]:
            behind = device + submeshes[k].devices
            hops.append(2 * row.hop_s(crossing[b], behind, submeshes[k], row.behind(behind, submeshes[k])))
        paces = [time + hop / 2 for time, hop in zip(times, [*hops, 0.0], strict=True)]
        return sum(times) + sum(hops) + (micro_batches - 1) * max(paces)

    best = min(every(row, layers), key=step_s)
    found = stage_partitions(costs, crossing, row, submeshes, micro_batches)
    if not np.isfinite(step_s(best)):
        assert found == []
        return
    step, choices = found[0]
    assert step == pytest.approx(step_s(best))
    assert [(c.first, c.last, c.device, c.submesh) for c in choices] == best


def test_early_stages_hold_more_micro_batches() -> None:
    variants = (RangeVariant(0, (1,), 0.0), RangeVariant(0, (1,), 1.0))
    columns = np.zeros((5, 2, 1, 1))
    columns[:, 0, 0, 0] = 1.0, 0.3, 4.0, 3.0, 0.0  # quick, and 3 bytes for each micro-batch
    columns[:, 1, 0, 0] = 2.0, 0.3, 4.0, 1.0, 0.5
    costs = stage_times(LayerRanges(variants=variants, columns=columns), [10.0], micro_batches=3, stages=5)
    assert costs.total_s[:, 0, 0, 0].tolist() == [1.0, 1.0, 2.0, 2.0, 2.0]  # 4 + 3 x 3 > 10; 4 + 3 x 1 + 0.5 < 10
    assert costs.variant[:, 0, 0, 0].tolist() == [0, 0, 1, 1, 1]


def test_every_submesh_has_its_own_memory() -> None:
    variants = (RangeVariant(0, (1,), 0.0), RangeVariant(1, (1,), 0.0))
    columns = np.zeros((5, 2, 1, 1))
    columns[0], columns[2] = 1.0, 7.0
    costs = stage_times(LayerRanges(variants=variants, columns=columns), [5.0, 10.0], micro_batches=1, stages=1)
    assert costs.total_s[0, :, 0, 0].tolist() == [np.inf, 1.0]


def test_no_partition_where_nothing_fits() -> None:
    costs = PartitionTimes(total_s=np.full((2, 3, 3, 3), np.inf), variant=np.zeros((2, 3, 3, 3), int))
    assert stage_partitions(costs, np.zeros(2), ONE, ONE.islands.submeshes(), 4) == []


def test_a_choice_says_where_its_stage_lies() -> None:
    total = np.full((2, 3, 2, 2), np.inf)
    total[1, 1, 0, 0] = total[0, 1, 1, 1] = 1.0
    costs = PartitionTimes(total_s=total, variant=np.zeros(total.shape, int))
    ((_, choices),) = stage_partitions(costs, np.zeros(1), ONE, ONE.islands.submeshes(), 2)
    assert choices == (StageChoice(0, 0, 0, 1, 0), StageChoice(1, 1, 2, 1, 0))
