"""Devices of one kind that a plan leaves idle: more of them are never slower."""

from __future__ import annotations

from meshwright import plan


def test_a_node_that_lost_a_device_is_no_slower_than_one_of_six() -> None:
    seven, six = (plan("llama-3.2-1b", gpus=f"1x{each}xH100", global_batch=12, top=1) for each in (7, 6))
    assert seven[0].estimate.step_time_s <= six[0].estimate.step_time_s
    assert any("6 of 7 devices used" in line for line in seven.warnings)
