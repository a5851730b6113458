"""Sets of interleaved pipelines keep their place beside those of 1F1B."""

from __future__ import annotations

import pytest

from meshwright import plan


@pytest.mark.parametrize(
    ("model", "gpus", "batch"),
    [
        ("llama-3.1-70b", "32xA100-40,8xH100", 12),
        ("gpt3-6.7b", "4xA100-80,8xH800", 24),
        ("llama-3.1-70b", "16xH200,8xA100-40,8xH100", 64),
    ],
)
def test_a_pinned_schedule_is_no_quicker_than_all_of_them(model: str, gpus: str, batch: int) -> None:
    every = plan(model, gpus=gpus, global_batch=batch)
    pinned = plan(model, gpus=gpus, global_batch=batch, schedule="interleaved")
    step_s, pinned_s = (min(one.estimate.step_time_s for one in found.plans) for found in (every, pinned))
    assert step_s <= pinned_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("model", "gpus", "batch", "pin"),
    [
        ("llama-3.1-70b", "8xH200,16xL40S,16xA100-40", 32, "vpp=2"),  # bounds without memory stand far apart here
        ("qwen3-8b", "4xL40S,8xA100-40", 128, "recompute=none"),  # by the neighbours of an interleaved set
    ],
)
def test_a_pin_is_no_quicker_than_none_where_memory_is_short(model: str, gpus: str, batch: int, pin: str) -> None:
    free, pinned = (
        min(one.estimate.step_time_s for one in plan(model, gpus=gpus, global_batch=batch, seq_len=4096, pin=held))
        for held in (None, pin)
    )
    assert free <= pinned * (1 + 1e-9)
