"""Files written for models that see, by the classes of the transformers library and the programs that load them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import yaml

from meshwright.fields.job import JobFields
from meshwright.library.models import config_of, resolve
from meshwright.ops.counts import trained_parameters
from meshwright.planning.plan_source import plan_question
from meshwright.specs.job import Job
from meshwright.targets import TARGETS
from tests.frameworks.test_fine_tuning import bare
from tests.targets.test_round_trip import written

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

CLASSES = {
    "qwen2-vl-7b": "Qwen2VLForConditionalGeneration",
    "qwen2.5-vl-7b": "Qwen2_5_VLForConditionalGeneration",
    "qwen3-vl-8b": "Qwen3VLForConditionalGeneration",
    "llava-1.5-7b": "LlavaForConditionalGeneration",
    "llama-3.2-11b-vision": "MllamaForConditionalGeneration",
    "mistral-small-3.1-24b": "Mistral3ForConditionalGeneration",
}
LORAS = ("r=8", "r=8,targets=q_proj+v_proj")
FROZEN = (("vision", "projector"), ("vision",), ("text",), ())
MOST_ELSEWHERE = 70_000
"""Weights of norms and tables that count as the tower's here and stand in the projector's module, or the other way."""


@cache
def asked(name: str, plan: str = "dp8.z2.mbs1.rc-full", **fields: Any) -> Job:
    size = {} if any(one.length for one in resolve(name).streams if not one.window_of) else {"image_size": "448x448"}
    given = {"images": 1, "seq_len": 8192, "global_batch": 8, "software": "megatron-core", **size, **fields}
    return plan_question(plan, JobFields(model=name, gpus="8xH200", **given)).job


def made(name: str) -> Any:
    """The model of its class, without values."""
    cls = getattr(transformers, CLASSES[name])
    config = {**(config_of(name) or {}), "tie_word_embeddings": resolve(name).tied_embeddings}
    with torch.device("meta"):
        return cls(cls.config_class.from_dict(config))


def trained(model: Any) -> int:
    return sum(one.numel() for one in model.parameters() if one.requires_grad)


@pytest.mark.parametrize("lora", LORAS)
@pytest.mark.parametrize("name", CLASSES)
def test_peft_puts_adapters_where_the_plan_has_them(name: str, lora: str) -> None:
    job = asked(name, lora=lora)
    said = json.loads(written("deepspeed", job)["adapter_config.json"])
    found = peft.get_peft_model(made(name), peft.LoraConfig(**{k: v for k, v in said.items() if k != "peft_type"}))
    assert trained(found) == trained_parameters(job.model)
    assert not any("lora_" in one for one, _ in found.named_parameters() if "vis" in one)


@pytest.mark.parametrize("frozen", FROZEN)
@pytest.mark.parametrize("name", CLASSES)
def test_the_script_freezes_what_the_plan_freezes(name: str, frozen: tuple[str, ...]) -> None:
    job = asked(name, **({"freeze": frozen} if frozen else {}))
    text = written("deepspeed", job)["train.py"]
    line = next(line for line in text.splitlines() if line.startswith("FROZEN = "))
    scope: dict[str, Any] = {}
    exec(line, scope)
    model = made(name)
    for one, weight in model.named_parameters():
        weight.requires_grad_(not one.startswith(scope["FROZEN"]))
    assert abs(trained(model) - trained_parameters(job.model)) <= MOST_ELSEWHERE
    assert "AutoModelForImageTextToText" in text


@pytest.mark.parametrize("name", CLASSES)
def test_axolotls_pattern_picks_the_same_modules(name: str) -> None:
    job = asked(name, lora="r=8")
    keys = yaml.safe_load(written("axolotl", job)["axolotl.yaml"])
    assert keys["processor_type"] == "AutoProcessor"
    assert not keys["sample_packing"]
    found = peft.get_peft_model(made(name), peft.LoraConfig(r=8, target_modules=keys["lora_target_modules"]))
    assert trained(found) == trained_parameters(job.model)


@pytest.fixture(scope="module")
def axolotl() -> Any:
    """What of Axolotl freezes weights."""
    bare("axolotl", "axolotl.utils")
    from axolotl.utils import freeze

    return freeze


@pytest.fixture(scope="module")
def factory() -> Any:
    """What of LLaMA-Factory knows the parts of models that see, and its arguments."""
    bare("llamafactory", "llamafactory.model", "llamafactory.hparams")
    from llamafactory.hparams.finetuning_args import FinetuningArguments
    from llamafactory.model.model_utils.visual import get_forbidden_modules

    return lambda config, said: get_forbidden_modules(config, FinetuningArguments(finetuning_type="full", **said))


@pytest.mark.parametrize("name", CLASSES)
def test_axolotl_trains_what_the_plan_trains(name: str, axolotl: Any) -> None:
    job = asked(name, freeze=("vision", "projector"))
    model = made(name)
    axolotl.freeze_layers_except(model, yaml.safe_load(written("axolotl", job)["axolotl.yaml"])["unfrozen_parameters"])
    assert abs(trained(model) - trained_parameters(job.model)) <= MOST_ELSEWHERE


@pytest.mark.parametrize("frozen", [("vision", "projector"), ("vision",)])
@pytest.mark.parametrize("name", CLASSES)
def test_llamafactory_freezes_what_the_plan_freezes(name: str, frozen: tuple[str, ...], factory: Any) -> None:
    job = asked(name, freeze=frozen)
    if name == "qwen3-vl-8b" and frozen == ("vision",):  # its mergers of levels are the tower's there
        assert {one.field for one in TARGETS["llamafactory"].refused(job)} == {"tuning"}
        return
    keys = yaml.safe_load(written("llamafactory", job)["train.yaml"])
    said = {key: keys[key] for key in keys if key.startswith("freeze_")}
    model = made(name)
    parts = factory(model.config, said)
    for one, weight in model.named_parameters():
        weight.requires_grad_(not any(part in one for part in parts))
    assert abs(trained(model) - trained_parameters(job.model)) <= MOST_ELSEWHERE


@pytest.mark.parametrize("lora", LORAS)
@pytest.mark.parametrize("name", CLASSES)
def test_automodel_matches_the_modules_of_the_plan(name: str, lora: str) -> None:
    matcher = pytest.importorskip("nemo_automodel.components._peft.module_matcher")
    job = asked(name, plan="dp8.fsdp.mbs1.rc-full", lora=lora)
    keys = yaml.safe_load(written("automodel", job)["automodel.yaml"])
    assert keys["recipe"] == "FinetuneRecipeForVLM"
    picks = matcher.ModuleMatcher(target_modules=keys["peft"]["target_modules"])
    found = [one for path, one in made(name).named_modules() if picks.match(one, path)]
    assert sum(8 * (one.in_features + one.out_features) for one in found) == trained_parameters(job.model)


@pytest.mark.parametrize("name", CLASSES)
def test_automodel_freezes_what_the_plan_freezes(name: str) -> None:
    utils = pytest.importorskip("nemo_automodel.components.utils.model_utils")
    job = asked(name, plan="dp8.fsdp.mbs1.rc-full", freeze=("vision",))
    model = made(name)
    utils.apply_parameter_freezing(model, yaml.safe_load(written("automodel", job)["automodel.yaml"])["freeze_config"])
    assert abs(trained(model) - trained_parameters(job.model)) <= MOST_ELSEWHERE
