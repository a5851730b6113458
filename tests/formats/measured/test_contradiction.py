"""Rows whose measures cannot be of one step teach nothing."""

from __future__ import annotations

import pytest

from meshwright.formats.measured import contradiction

ROW = {"n_gpus": "8", "seq_len": "4096", "global_batch_seqs": "64"}


@pytest.mark.parametrize(
    ("measures", "agree"),
    [
        ({"iter_time_s": "4", "tokens_per_s_per_gpu": "8192"}, True),
        ({"iter_time_s": "4", "tokens_per_s_per_gpu": "7000"}, True),
        ({"iter_time_s": "4", "tokens_per_s_per_gpu": "4096"}, False),
        ({"iter_time_s": "4000", "tokens_per_s_per_gpu": "8192"}, False),
        ({"target_iter_time_s": "4", "iter_time_s": "6"}, False),
        ({"iter_time_s": "4"}, True),
        ({"tokens_per_s_per_gpu": "8192"}, True),
        ({}, True),
    ],
)
def test_times_and_rates_of_a_row_are_of_one_step(measures: dict[str, str], agree: bool) -> None:
    said = contradiction({**ROW, **measures})
    assert (said == "") == agree
    assert agree or "contradict each other" in said
