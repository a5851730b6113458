"""Adapters counted here and by PEFT on the classes of the transformers library, built without weights."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest

from meshwright.library.models import resolve
from meshwright.ops.counts import adapter_parameters
from meshwright.planning.question.tuning_text import read_lora
from meshwright.specs.tuning import Tuning
from meshwright.targets.adapters import BY_PEFT

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

NAMES = {
    "all-linear": "all-linear",
    "queries and values": ["q_proj", "v_proj"],
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "seven": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "experts of Mixtral": ["w1", "w2", "w3"],
    "mlp": ["gate_proj", "up_proj", "down_proj"],
}
MODELS = (
    *("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2-lite", "ernie-4.5-21b-a3b", "gemma-4-26b-a4b"),
    *("glm-4.7-flash", "glm-4.5-air", "hunyuan-a13b", "jamba-52b", "olmoe-1b-7b", "phi-3.5-moe", "qwen1.5-moe-a2.7b"),
    *("qwen3-next-80b-a3b", "qwen3.5-35b-a3b", "llama-4-scout", "minimax-m2.5"),
    *("deepseek-v3.2", "mellum2-12b-a2.5b", "solar-open-100b", "llama-3.1-8b", "qwen3.5-27b"),
)
OF_OTHER_NAMES = (
    *("phi-3-medium", "glm-4-9b", "glm-4-32b-0414", "bloom-560m", "falcon-7b", "gpt-neox-20b", "cerebras-gpt-1.3b"),
    *("starcoder-15b", "gpt-j-6b", "phi-2", "minicpm3-4b", "gemma-4-31b"),
)


def whole(name: str) -> Any:
    """The model's class without weights."""
    text = (files("meshwright.library") / "data" / "models" / f"{name}.json").read_text(encoding="utf-8")
    config = json.loads(text)["config"]
    made = transformers.CONFIG_MAPPING[config.pop("model_type")](**config)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(made)


def put_on(model: Any, named: str | list[str]) -> int | None:
    """Parameters of adapters that PEFT puts on a model, which is as before afterwards; None where it stops."""
    config = peft.LoraConfig(r=8, target_modules=named)
    try:
        with torch.device("meta"):
            tuned = peft.get_peft_model(model, config)
    except ValueError:
        return None
    count = sum(one.numel() for one in tuned.parameters() if one.requires_grad)
    tuned.unload()
    return count


@pytest.mark.parametrize("name", [*MODELS, *OF_OTHER_NAMES])
def test_peft_has_as_many_parameters(name: str) -> None:
    spec, model = resolve(name), whole(name)
    compared = 0
    for named in ("all-linear",) if name in OF_OTHER_NAMES else NAMES.values():
        theirs = put_on(model, named)
        lora = BY_PEFT(spec, read_lora({"r": 8, "targets": [named] if isinstance(named, str) else named}))
        if theirs is not None:
            compared += 1
            assert adapter_parameters(replace(spec, tuning=Tuning(lora=lora))) == theirs, named
    assert compared
