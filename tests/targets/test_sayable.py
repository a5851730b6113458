"""What targets say of models whose parts they have no words for."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.errors import UnsupportedError


@pytest.mark.parametrize("target", ["accelerate", "deepspeed", "axolotl"])
def test_files_for_decoders_name_the_part_that_makes_a_model_another(target: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        mw.plan("t5-small", gpus="8xH100", target=target, seq_len=512, global_batch=64)
    (problem,) = caught.value.problems
    assert problem.what == "plan: the model has a stream of encoder, cross attention"
    assert "leave out --target" in problem.fix
