"""Exported scripts for a model that sees, run up to a step of the trainer on this host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwright.fields.job import JobFields
from meshwright.ops.counts import trained_parameters
from meshwright.planning.plan_source import plan_question
from meshwright.specs.job import Job
from tests.targets.test_round_trip import written

transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
for needed in ("accelerate", "peft", "PIL"):
    pytest.importorskip(needed)

VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
TEXT = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 128,
    "max_position_embeddings": 2048,
}
TEMPLATE = (
    "{% for said in messages %}{% for part in said.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
CASES: dict[str, dict[str, Any]] = {
    "adapters": {"lora": "r=8", "images": 1},
    "frozen tower": {"freeze": ("vision", "projector"), "images": 1},
    "two images": {"freeze": ("vision",), "images": 2},
    "text alone": {"images": 0},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small LLaVA with a processor of few words."""
    folder = tmp_path_factory.mktemp("llava")
    words = {word: number for number, word in enumerate(("<unk>", "What", "is", "this", "?"))}
    table = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    table.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    ends = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "</s>"}
    named = transformers.PreTrainedTokenizerFast(tokenizer_object=table, **ends, additional_special_tokens=["<image>"])
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    said = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = transformers.LlavaProcessor(images, named, chat_template=TEMPLATE, **said)
    place = named.convert_tokens_to_ids("<image>")
    config = transformers.LlavaConfig(
        vision_config=VISION, text_config=TEXT, image_token_index=place, tie_word_embeddings=False
    )
    transformers.LlavaForConditionalGeneration(config).bfloat16().save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def job(model: Path, **asked: Any) -> Job:
    given = {"seq_len": 64, "global_batch": 4, "software": "pytorch-eager-no-sync", **asked}
    return plan_question("dp1.mbs2", JobFields(model=str(model / "config.json"), gpus="1xH100", **given)).job


@pytest.mark.parametrize("case", CASES)
def test_a_step_trains_what_the_plan_trains(case: str, model: Path, tmp_path: Path) -> None:
    one = job(model, **CASES[case])
    for name, text in written("accelerate", one).items():
        (tmp_path / name).write_text(text)
    said = json.loads((tmp_path / "training_args.json").read_text())
    (tmp_path / "training_args.json").write_text(json.dumps({**said, "max_steps": 1, "use_cpu": True, "bf16": False}))
    script = (tmp_path / "train.py").read_text()
    counted = "    print('trained', sum(one.numel() for one in model.parameters() if one.requires_grad))\n"
    (tmp_path / "train.py").write_text(re.sub(r"^(    Trainer\()", counted + r"\1", script, flags=re.MULTILINE))
    words = [sys.executable, "train.py", "training_args.json"]
    around = {**os.environ, "MODEL": str(model), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, cwd=tmp_path, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"trained {trained_parameters(one.model)}\n" in done.stdout
    assert "'loss'" in done.stdout


def test_fsdp_finds_the_layers_that_the_script_leaves_named(model: Path) -> None:
    from accelerate.utils import FullyShardedDataParallelPlugin

    made = transformers.AutoModelForImageTextToText.from_pretrained(model)
    said = {"fsdp_version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    with pytest.raises(ValueError, match="Could not find the transformer layer class"):
        FullyShardedDataParallelPlugin(**said).set_auto_wrap_policy(made)
    kinds = {type(module).__name__ for module in made.modules()}
    made._no_split_modules = [name for name in made._no_split_modules if name in kinds]
    plugin = FullyShardedDataParallelPlugin(**said)
    plugin.set_auto_wrap_policy(made)
    assert plugin.auto_wrap_policy is not None
