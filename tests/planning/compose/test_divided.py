"""Islands divided between pipelines, against every division there is, on clusters small enough to try them all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from meshwright.planning.compose.composer import Composer
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.pipeline_sets import blended, with_whole_micro_batches
from meshwright.planning.compose.sources.native.pipelines import Use
from meshwright.planning.compose.sources.native.shares import offered_shares
from meshwright.planning.mixed.native import NativeSource
from meshwright.search.space import Space
from tests.planning.compose.test_composer import SMALL, asked


def divisions(parts: list[IslandPart], first: Use = ()) -> Iterator[list[Use]]:
    """Every multiset of uses of any numbers of devices of the parts."""
    for counts in itertools.product(*(range(part.devices + 1) for part in parts)):
        use = tuple(IslandPart(part.group, n) for part, n in zip(parts, counts, strict=True) if n)
        if not use or tuple(counts) < tuple(first):
            continue
        yield [use]
        left = [part._replace(devices=part.devices - n) for part, n in zip(parts, counts, strict=True)]
        for rest in divisions(left, counts):
            yield [use, *rest]


def brute_force_s(composer: Composer, parts: list[IslandPart]) -> float:
    """The best step over all divisions, pipelines of each use and whole shares of the batch."""
    batch, best_s = composer.workload.global_batch, float("inf")
    for division in divisions(parts):
        found = [composer.pipelines(use)[:4] for use in division]
        for chosen in itertools.product(*found):
            made = with_whole_micro_batches(composer._synchronised(blended(chosen, batch, 0.0)), batch)
            if made is not None:
                best_s = min(best_s, made.step_s)
    return best_s


@pytest.mark.parametrize(
    ("gpus", "batch"), [("4xH100", 24), ("3xH100,2xA100-80", 32), ("2xH100,3xA100-40", 64), ("5xA100-80", 40)]
)
def test_the_best_division_is_near_the_best_of_all(gpus: str, batch: int) -> None:
    inputs = asked(gpus, batch, 32)
    composer = Composer(inputs.model, inputs.cluster, inputs.workload, SMALL)
    parts = [IslandPart(number, group.devices) for number, group in enumerate(inputs.cluster.groups)]
    found_s = composer.made(parts, 1)[0].step_s
    every = brute_force_s(Composer(inputs.model, inputs.cluster, inputs.workload, SMALL), parts)
    assert found_s <= 1.001 * every


def test_a_divided_island_beats_whole_ones_where_nodes_do_not_divide() -> None:
    inputs = asked("88xH100,104xA100-80", 1024, 32)
    source = NativeSource(inputs, lambda part: Space())
    (best, *_) = source.composed(source.whole, 4)
    pipelines_of: dict[str, set[int]] = {group.name: set() for group in inputs.cluster.groups}
    for stage in best.estimate.stages:
        pipelines_of[stage.group].add(stage.pipeline)
    assert max(map(len, pipelines_of.values())) > 1
    workers = [worker for pipeline in best.plan.pipelines for worker in pipeline.workers]
    devices = [device for worker in workers for low, high in worker.devices for device in range(low, high + 1)]
    assert len(devices) == len(set(devices)) <= 192
    assert best.plan.global_batch == 1024
    assert best.estimate.fits == "yes"


def test_shares_are_of_whole_nodes_and_come_with_what_they_leave() -> None:
    for gpus, islands in (("1016xH100", 1), ("88xH100", 2), ("8xH100", 2), ("248xH100", 4), ("512xH100", 6)):
        (group,) = asked(gpus, 8, 8).cluster.groups
        shares = offered_shares(group, islands, group.devices)
        unit = group.devices_per_node if group.nodes > 1 else 1
        assert shares[0] == group.devices
        assert all(0 < share <= group.devices and share % unit == 0 for share in shares)
        assert len(set(shares)) == len(shares) > 1
        assert group.devices - shares[1] in shares
