"""torchtitan names models of its own, whose rope is made that of the model that was planned."""

from __future__ import annotations

import ast

import pytest

from meshwright.errors import InputError
from meshwright.library.models import spec
from meshwright.targets import TARGETS
from meshwright.targets.torchtitan import flavors
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


@pytest.mark.parametrize(("option", "layers", "said"), [("op", 16, "every second product"), ("4", 8, "one layer in 4")])
def test_selective_recompute_of_a_model_it_ships_is_priced_by_layers(option: str, layers: int, said: str) -> None:
    """As stock configs have it; measured (torchtitan's benchmarks of December 2024): 6,667 tokens/s per device."""
    text = f"""[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192
[parallelism]\ndata_parallel_shard_degree = -1\n[activation_checkpoint]\nselective_ac_option = "{option}"\n"""
    found = TARGETS["torchtitan"].read({"train.toml": text}, devices=8)
    assert not found.problems
    assert (found.row.recompute, found.row.recompute_layers) == ("block", layers)
    assert said in found.notes[0]
    assert found.model["name"] == "llama-3.1-8b"
    assert {"model.name", "model.flavor"} <= {one.option for one in found.said}


def test_every_model_it_ships_is_one_of_the_librarys() -> None:
    for (family, layers, hidden, vocab), shipped in flavors._SHAPES.items():
        known = spec(str(flavors.library_name(*shipped)))
        assert (known.family, known.num_layers, known.hidden, known.vocab) == (family, layers, hidden, vocab)


def test_python_without_a_configuration_is_refused() -> None:
    with pytest.raises(InputError, match=r"Trainer\.Config"):
        TARGETS["torchtitan"].read({"train.py": "print(1)\n"}, devices=16)
