"""torchtitan names models of its own, whose rope is made that of the model that was planned."""

from __future__ import annotations

import ast

import pytest

from meshwright.errors import InputError
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


def test_toml_that_parses_as_python_is_read_as_toml() -> None:
    """`[training]` is a list in Python and `seq_len = 8192` an assignment: nothing of it would be read."""
    text = "[training]\nlocal_batch_size = 2\nseq_len = 8192\n[parallelism]\ntensor_parallel_degree = 4\n"
    found = TARGETS["torchtitan"].read({"train.toml": text}, devices=16)
    assert (found.row.tp, found.row.dp, found.row.mbs) == (4, 4, 2)
    assert [problem.field for problem in found.problems] == ["activation_checkpoint"]  # selective by default there


def test_python_without_a_configuration_is_refused() -> None:
    with pytest.raises(InputError, match=r"Trainer\.Config"):
        TARGETS["torchtitan"].read({"train.py": "print(1)\n"}, devices=16)
