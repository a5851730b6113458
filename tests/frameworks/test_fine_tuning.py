"""Files written for LLaMA-Factory and Axolotl, read by their own classes of arguments; adapters by PEFT's."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.fields.job import JobFields
from meshwright.planning.for_target import priced_as
from meshwright.planning.plan_source import plan_question
from meshwright.specs.job import Job
from tests.frameworks.stand_ins import without_init
from tests.targets.test_adapters import files_of, tuned
from tests.targets.test_round_trip import some, written

transformers = pytest.importorskip("transformers")


def bare(*packages: str) -> None:
    """Make packages importable without what their __init__ needs of GPUs and trainers."""
    if packages[0] not in sys.modules and importlib.util.find_spec(packages[0]) is None:
        pytest.skip(f"{packages[0]} is not installed")
    without_init(*packages)


@pytest.fixture(scope="module")
def factory() -> Any:
    """LLaMA-Factory's classes of arguments together, as its own reader has them."""
    bare("llamafactory", "llamafactory.hparams")
    from llamafactory.hparams.data_args import DataArguments
    from llamafactory.hparams.finetuning_args import FinetuningArguments
    from llamafactory.hparams.model_args import ModelArguments

    kinds = [ModelArguments, DataArguments, transformers.TrainingArguments, FinetuningArguments]
    return transformers.HfArgumentParser(kinds)


@pytest.fixture(scope="module")
def axolotl() -> Any:
    """Axolotl's schema."""
    bare("axolotl", "axolotl.utils")
    sys.modules.setdefault("ring_flash_attn", types.ModuleType("ring_flash_attn"))  # only whether it is there is asked
    from axolotl.utils.schemas.config import AxolotlInputConfig

    return AxolotlInputConfig


def numbers(one: Job) -> tuple[int, int]:
    pipeline = one.plan.pipelines[0]
    return pipeline.micro_batch, pipeline.num_micro_batches


@pytest.mark.parametrize("one", list(some("llamafactory")), ids=lambda one: f"{one.model.name}-{one.name}")
def test_llamafactory_reads_what_the_plan_means(one: Job, factory: Any) -> None:
    keys = yaml.safe_load(written("llamafactory", one)["train.yaml"])
    # The engine starts as the trainer's arguments are read, which needs the job's processes; bf16 needs their devices.
    assert keys.pop("deepspeed") == "ds_config.json"
    said = {**keys, "model_name_or_path": "any", "bf16": False, "fp16": False, "use_cpu": True}
    model, data, trainer, tuning = factory.parse_dict(said)
    assert (trainer.per_device_train_batch_size, trainer.gradient_accumulation_steps) == numbers(one)
    assert data.cutoff_len in (one.workload.seq_len, one.workload.seq_len - 1)  # packed, it leaves one token out
    assert model.disable_gradient_checkpointing == (one.plan.strategies[0].recompute.kind == "none")
    assert tuning.finetuning_type == "full"


@pytest.mark.parametrize("one", list(some("axolotl")), ids=lambda one: f"{one.model.name}-{one.name}")
def test_axolotl_reads_what_the_plan_means(one: Job, axolotl: Any) -> None:
    keys = yaml.safe_load(written("axolotl", one)["axolotl.yaml"])
    made = axolotl(**keys, base_model="any")
    strategy = one.plan.strategies[0]
    assert (made.micro_batch_size, made.gradient_accumulation_steps) == numbers(one)
    assert made.sequence_len == one.workload.seq_len
    assert bool(made.gradient_checkpointing) == (strategy.recompute.kind == "full")
    if strategy.data.family == "fsdp":
        assert (made.tensor_parallel_size, made.context_parallel_size) == (strategy.tp, strategy.cp)
        assert made.dp_shard_size * made.dp_replicate_size == strategy.dp
        assert made.fsdp_config.reshard_after_forward == strategy.data.reshard
    else:
        assert made.deepspeed == "ds_config.json"


def test_axolotl_stores_experts_in_4_bits_by_names_of_modules(axolotl: Any) -> None:
    asked = JobFields(model="qwen3-30b-a3b", gpus="1xH100", seq_len=2048, lora="r=8,base=nf4")
    one = plan_question("dp1.mbs1.rc-full", priced_as(asked, "axolotl")).job
    keys = yaml.safe_load(files_of("axolotl", one)["axolotl.yaml"])
    made = axolotl(**keys, base_model="any")
    assert made.quantize_moe_experts
    assert made.load_in_4bit
    assert set(made.lora_target_modules) == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_peft_reads_adapters(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    files = files_of("accelerate", tuned("accelerate", "r=8,targets=q_proj,v_proj,dora,layers=0-3,train=embedding"))
    (tmp_path / "adapter_config.json").write_text(files["adapter_config.json"])
    made = peft.PeftConfig.from_pretrained(str(tmp_path))
    assert (made.r, made.target_modules, made.use_dora) == (8, {"q_proj", "v_proj"}, True)
    assert (made.layers_to_transform, made.modules_to_save) == ([0, 1, 2, 3], ["embed_tokens"])
