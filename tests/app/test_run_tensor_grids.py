"""Models whose sizes a tensor grid does not divide are refused before anything runs."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.errors import InputError


@pytest.mark.parametrize(
    ("model", "sizes", "said"),
    [
        ("llama-tiny", {"vocab": 255}, "vocabulary 255 on tp2d2"),
        ("mlp-tiny", {}, "tensor strategy 2d for a perceptron"),
    ],
)
def test_sizes_that_blocks_do_not_divide(model: str, sizes: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        mw.verify(model, plan="tp2d2.dp1.mbs2", devices=4, steps=1, layers=4, **sizes)
