"""torchtitan names models of its own, whose rope is made that of the model that was planned."""

from __future__ import annotations

import ast

import pytest

from meshwright.targets import TARGETS
from tests.targets.cases import job
from tests.targets.test_round_trip import written


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("llama-3.1-8b", ()),
        ("llama-3-8b", ('rope.scaling = "none"',)),
        ("llama-3.2-1b", ("rope.scaling_factor = 32.0",)),
    ],
)
def test_the_rope_is_the_models(model: str, said: tuple[str, ...]) -> None:
    text = written("torchtitan", job("dp16.fsdp", model=model))["meshwright_plan.py"]
    ast.parse(text)
    assert text.count("layer.attention.rope") == len(said)
    assert all(part in text for part in said)


def test_a_model_it_does_not_ship_is_refused_with_those_it_does() -> None:
    (problem,) = TARGETS["torchtitan"].refused(job("dp16.fsdp", model="mixtral-8x7b"))
    assert "405B" in problem.why
    assert "accelerate" in problem.fix
