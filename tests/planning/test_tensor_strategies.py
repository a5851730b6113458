"""Which tensor strategy a search takes: the one that sends least for the tokens and the width at hand."""

from __future__ import annotations

import pytest

import meshwright as mw


@pytest.mark.parametrize(
    ("seq_len", "strategy"),
    [
        (8192, "tp2d4"),  # 32,768 tokens of a micro-batch of four and a width of 4,096
        (128, "tp16"),
    ],
)
def test_a_wide_group_is_a_grid_where_tokens_far_exceed_the_width(seq_len: int, strategy: str) -> None:
    found = mw.plan("llama-3.1-8b", gpus="16xGB200", seq_len=seq_len, global_batch=32, pin=["tp=16", "tensor=1d,2d"])
    assert found.best.row.format().split(".", maxsplit=1)[0] == strategy
