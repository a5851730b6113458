"""Modules of torchtitan's configurations: what names stand for where a configuration is made of them."""

from __future__ import annotations

import pytest

from meshwright.targets import TARGETS
from meshwright.targets.torchtitan.functions import PART, module_keys

MODULE = """\
from torchtitan.models.llama3 import model_registry as llama_registry
from torchtitan.models import qwen3


def small() -> Trainer.Config:
    parallelism = ParallelismConfig(data_parallel_shard_degree=-1, tensor_parallel_degree=2)
    BETWEEN
    return Trainer.Config(
        model_spec=MODEL, training=TrainingConfig(local_batch_size=1), parallelism=GIVEN, activation_checkpoint=None
    )
"""


def keys_of(
    between: str = "pass", given: str = "parallelism", model: str = 'llama_registry("8B")'
) -> tuple[dict, dict]:
    text = MODULE.replace("BETWEEN", between).replace("GIVEN", given).replace("MODEL", model)
    return module_keys(text, "small")


@pytest.mark.parametrize(
    ("between", "degree"),
    [
        ("pass", 2),
        ("parallelism.tensor_parallel_degree = 8", 8),
        ("degree: int = 4; parallelism.tensor_parallel_degree = degree", 4),
    ],
)
def test_a_field_of_a_local_is_what_was_set_last(between: str, degree: int) -> None:
    keys, unresolved = keys_of(between)
    assert keys["parallelism"]["tensor_parallel_degree"] == degree
    assert not unresolved


@pytest.mark.parametrize(
    "between",
    [
        "if FAST: parallelism.tensor_parallel_degree = 8",
        "parallelism = of_the_cluster()",
        "parallelism.inner.degree = 3",
        "for parallelism in SEVERAL: pass",
    ],
)
def test_a_local_that_may_be_set_elsewhere_is_asked_for(between: str) -> None:
    _, unresolved = keys_of(between)
    assert PART in unresolved


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("ParallelismConfig(2, 4)", False),
        ("ParallelismConfig(**OPTIONS)", False),
        ('ParallelismConfig(**{"tensor_parallel_degree": 2})', True),
        ("ParallelismConfig(**dict(tensor_parallel_degree=2))", True),
        ("of_the_cluster()", False),
    ],
)
def test_fields_without_names_are_asked_for(given: str, known: bool) -> None:
    keys, unresolved = keys_of(given=given)
    assert (PART not in unresolved) == known
    assert keys["parallelism"] == ({"tensor_parallel_degree": 2} if known else {})


@pytest.mark.parametrize(
    ("model", "folder"), [('llama_registry("8B")', "llama3"), ('qwen3.model_registry("8B")', "qwen3")]
)
def test_each_configuration_has_the_folder_of_its_own_registry(model: str, folder: str) -> None:
    keys, _ = keys_of(model=model)
    assert (keys["module"], keys["flavor"]) == (folder, "8B")


def test_a_degree_that_is_set_on_a_condition_is_no_plan() -> None:
    text = MODULE.replace("BETWEEN", "if FAST: parallelism = None").replace("GIVEN", "parallelism")
    found = TARGETS["torchtitan"].read({"config_registry.py": text.replace("MODEL", 'llama_registry("8B")')}, 8)
    assert found.row is None
    assert [problem.field for problem in found.questions] == [PART]


def test_a_flavor_that_is_a_model_of_the_hub_is_that_model() -> None:
    text = '[model]\nname = "deepseek_v2"\nflavor = "deepseek-ai/DeepSeek-V2-Lite"\n[training]\nlocal_batch_size = 2\n'
    found = TARGETS["torchtitan"].read({"train.toml": text + "seq_len = 1024\n[parallelism]\n"}, 8)
    assert found.model == {"name": "deepseek-ai/DeepSeek-V2-Lite"}
