"""Where a batch is shared coarsely, and which strategies stages may have, against the rules in words."""

from __future__ import annotations

import pytest

from meshwright.planning.compose.composer import Composer
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.native.islands import COARSE, FEW_DEVICES, FEWEST_DEVICES, MOST_WAVES
from meshwright.search.space import Space
from tests.planning.compose.test_composer import SMALL, asked


def composer_of(gpus: str, batch: int, space: Space = SMALL) -> Composer:
    inputs = asked(gpus, batch, 4)
    return Composer(inputs.model, inputs.cluster, inputs.workload, space)


@pytest.mark.parametrize("gpus", ["7xH100", "7xH100,2xL40S", "4xH100,4xL40S", "16xH100,12xL40S", "32xH100,8xL40S"])
@pytest.mark.parametrize("batch", [8, MOST_WAVES, 16, 64, 128, 1024])
def test_few_devices_with_few_sequences_each_and_those_that_divide_no_batch_share_it_coarsely(
    gpus: str, batch: int
) -> None:
    islands = composer_of(gpus, batch).islands
    every = [IslandPart(number, group.devices) for number, group in enumerate(islands.cluster.groups)]
    for parts in ([every[0]], every):
        devices = sum(part.devices for part in parts)
        coarse = (devices <= FEWEST_DEVICES and batch / devices <= COARSE) or any(batch % p.devices for p in parts)
        # Of a small batch every number is tried anyway where kinds differ; of many devices it gains little.
        apart = (len(every) == 1 or batch > MOST_WAVES) and devices <= FEW_DEVICES
        assert islands.shared_coarsely(parts) == (apart and coarse)


def test_only_what_several_ranks_have_in_common_is_sharded() -> None:
    options = composer_of("4xH100,4xA100-80", 16).islands.options(IslandPart(0, 4))
    assert options is not None
    ranks = (options.grid.dp * options.grid.cp).tolist()
    sharded = [bool(options.shardings[choice].kind.zero) for choice in options.choice.tolist()]
    assert {own for count, own in zip(ranks, sharded, strict=True) if count > 1} == {True, False}
    assert {own for count, own in zip(ranks, sharded, strict=True) if count == 1} == {False}
