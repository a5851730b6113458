"""Devices of one kind that a plan leaves idle: more of them are never slower."""

from __future__ import annotations

import pytest

from meshwright import plan
from meshwright.planning.fewer_nodes import dividing_part


def test_a_node_that_lost_a_device_is_no_slower_than_one_of_six() -> None:
    seven, six = (plan("llama-3.2-1b", gpus=f"1x{each}xH100", global_batch=12, top=1) for each in (7, 6))
    assert seven[0].estimate.step_time_s <= six[0].estimate.step_time_s
    assert any("6 of 7 devices used" in line for line in seven.warnings)


def test_nodes_that_do_not_divide_the_batch_are_no_slower_than_those_that_do() -> None:
    nine, eight = (plan("llama-3.2-1b", gpus=f"{nodes}x8xH100", global_batch=64, top=1) for nodes in (9, 8))
    assert nine[0].estimate.step_time_s <= eight[0].estimate.step_time_s
    assert any("64 of 72 devices used" in line for line in nine.warnings)


@pytest.mark.parametrize(
    ("nodes", "each", "batch", "part"),
    [
        (18, 8, 512, (16, 8)),
        (18, 8, 576, None),
        (19, 8, 768, (16, 8)),
        (24, 8, 512, None),
        (5, 7, 64, None),
        (1, 6, 8, (1, 4)),
    ],
)
def test_parts_divide_the_batch_without_odd_factors_of_their_own(
    nodes: int, each: int, batch: int, part: tuple[int, int] | None
) -> None:
    assert dividing_part(nodes, each, batch) == part
