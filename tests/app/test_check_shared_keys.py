"""Keys that several trainers share: read with one meaning wherever they stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import meshwright
from meshwright.app.check import CheckReport

ACCELERATE = """distributed_type: FSDP
mixed_precision: bf16
num_machines: {machines}
num_processes: 16
fsdp_config:
  fsdp_sharding_strategy: {strategy}
  fsdp_limit_all_gathers: true
  fsdp_transformer_cls_names_to_wrap: LlamaDecoderLayer
"""
SUMMED = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
FACTORY = "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\ndo_train: true\nfinetuning_type: full\ncutoff_len: 2048\n"
FACTORY += "dataset: alpaca_en\ntemplate: qwen\nbf16: true\nfsdp: full_shard auto_wrap\n"
FACTORY += "per_device_train_batch_size: 1\ngradient_accumulation_steps: 4\n"
AXOLOTL = "base_model: Qwen/Qwen2.5-7B\nsequence_len: 2048\nmicro_batch_size: 1\ngradient_accumulation_steps: 4\n"
AXOLOTL += "datasets:\n  - path: alpaca\n    type: alpaca\noptimizer: adamw_torch\nbf16: true\nfsdp_version: 2\n"
AXOLOTL += "fsdp_config:\n  reshard_after_forward: true\n"
SWIFT = (
    "#!/bin/bash\nNPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B --train_type full --fsdp fsdp2 --max_length 2048"
)
SWIFT += " --per_device_train_batch_size 1 --gradient_accumulation_steps 4"
GPT = "#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048"
GPT += " --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --bf16"
GPT += " --vocab-size 49152"


def checked(path: Path, text: str, model: str | None = None, gpus: str = "16xH100") -> CheckReport:
    """The answer about a file with this text, where a batch has one sequence if the file says none."""
    path.write_text(text)
    batch = {"settings": "per_device_train_batch_size=1"} if text.startswith("distributed_type") else {}
    return meshwright.check(model, source=path, gpus=gpus, **batch)


def test_a_hybrid_shard_has_one_copy_on_each_node(tmp_path: Path) -> None:
    text = ACCELERATE.format(machines=2, strategy="HYBRID_SHARD")
    assert checked(tmp_path / "two.yaml", text, "llama-3.1-8b").name == "dp16.hsdp8.mbs1.gbs16"
    text = ACCELERATE.format(machines=1, strategy="HYBRID_SHARD")
    assert checked(tmp_path / "one.yaml", text, "llama-3.1-8b").name == "dp16.fsdp.mbs1.gbs16"


@pytest.mark.parametrize(
    ("machines", "strategy", "why"),
    [
        (2, "HYBRID_SHARD_ZERO2", "weights stay whole between passes"),
        (3, "HYBRID_SHARD", "must divide 16 data ranks"),
        (2, "HALF_SHARD", "must be one of FULL_SHARD"),
    ],
)
def test_what_no_plan_says_of_a_hybrid_shard_is_refused(tmp_path: Path, machines: int, strategy: str, why: str) -> None:
    report = checked(tmp_path / "a.yaml", ACCELERATE.format(machines=machines, strategy=strategy), "llama-3.1-8b")
    assert any(why in one.why for one in report.violations)


def test_nodes_of_a_hybrid_shard_are_those_that_the_launcher_starts_on(tmp_path: Path) -> None:
    words = "train.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 True --per_device_train_batch_size 1"
    text = f"#!/bin/bash\ntorchrun --nnodes 2 --nproc_per_node 8 {words} --fsdp 'hybrid_shard auto_wrap'\n"
    assert checked(tmp_path / "a.sh", text).name == "dp16.hsdp8.mbs1.gbs16"


@pytest.mark.parametrize(
    ("words", "settings", "name"),
    [
        ("hybrid_shard auto_wrap", {"nnodes": "2"}, "dp16.hsdp8.mbs1.gbs64.rc-full"),
        ("full_shard offload auto_wrap", {}, "dp16.fsdp.mbs1.gbs64.rc-full.off-wog"),
        ("shard_grad_op auto_wrap", {}, "dp16.fsdp-keep.mbs1.gbs64.rc-full"),
        ("no_shard", {}, "dp16.mbs1.gbs64.rc-full"),
    ],
)
def test_the_words_of_the_trainer_say_what_fsdp_shards(
    tmp_path: Path, words: str, settings: dict[str, str], name: str
) -> None:
    path = tmp_path / "factory.yaml"
    path.write_text(FACTORY.replace("full_shard auto_wrap", words))
    assert meshwright.check(source=path, gpus="16xH100", search=False, settings=settings).name == name


def test_nodes_of_a_hybrid_shard_are_asked_for_and_words_checked(tmp_path: Path) -> None:
    report = checked(tmp_path / "hybrid.yaml", FACTORY.replace("full_shard", "hybrid_shard"))
    assert any("--set nnodes=N" in one.fix for one in report.violations)
    report = checked(tmp_path / "wrong.yaml", FACTORY.replace("full_shard", "fully_shard"))
    assert any("fully_shard is no word of it" in one.why for one in report.violations)


def test_swift_takes_the_words_of_the_trainer(tmp_path: Path) -> None:
    text = SWIFT.replace("fsdp2", "'full_shard auto_wrap offload'") + " --gradient_checkpointing false"
    assert checked(tmp_path / "a.sh", text, gpus="8xH100").name == "dp8.fsdp.mbs1.gbs32.off-wog"


def test_towers_that_are_frozen_leave_the_text_as_it_is(tmp_path: Path) -> None:
    frozen = SWIFT + " --freeze_parameters model.vision_tower model.embed_audio"
    assert not checked(tmp_path / "a.sh", frozen, gpus="8xH100").violations
    more = checked(tmp_path / "b.sh", frozen + " model.layers.0", gpus="8xH100")
    assert [one.field for one in more.violations] == ["freeze_parameters"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("factory.yaml", FACTORY, f"accelerator_config: {json.dumps(SUMMED)}\n"),
        ("axolotl.yaml", AXOLOTL, f"accelerator_config: {json.dumps(SUMMED)}\n"),
        ("swift.sh", SWIFT, f" --accelerator_config '{json.dumps(SUMMED)}'"),
    ],
)
def test_gradients_summed_in_every_micro_batch_need_less_memory(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    once, each = (checked(tmp_path / name, text + more, gpus="8xH100") for more in ("", said))
    assert once.name == each.name
    assert once.estimate is not None
    assert each.estimate is not None
    kept = max(stage.peak_memory_bytes for stage in once.estimate.stages)
    assert max(stage.peak_memory_bytes for stage in each.estimate.stages) < kept


@pytest.mark.parametrize(("kind", "heads"), [("multiquery", 1), ("multihead", 16)])
def test_heads_of_bigcode_share_keys_and_values_or_have_their_own(tmp_path: Path, kind: str, heads: int) -> None:
    report = checked(tmp_path / "gpt.sh", f"{GPT} --attention-head-type {kind}\n", gpus="8xH100")
    assert report.launch is not None
    assert report.launch.model["kv_heads"] == heads
    wrong = checked(tmp_path / "gpt.sh", f"{GPT} --attention-head-type several\n", gpus="8xH100")
    assert any("must be multihead or multiquery" in one.why for one in wrong.violations)


def test_a_key_in_the_wrong_table_is_told_where_it_is_read(tmp_path: Path) -> None:
    config = {
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
        "train_micro_batch_size_per_gpu": 1,
        "reduce_bucket_size": 5e8,
    }
    report = checked(tmp_path / "ds.json", json.dumps(config), "llama-3.1-8b")
    (wrong,) = [one for one in report.violations if "reduce_bucket_size" in one.what]
    assert wrong.fix == "it is read as zero_optimization.reduce_bucket_size: move it there"


def test_an_option_with_a_number_behind_it_is_the_programs_own(tmp_path: Path) -> None:
    text = GPT.replace("pretrain_gpt.py", "tune_gpt.py")
    report = checked(tmp_path / "gpt.sh", f"{text} --data-path a --data-path2 b\n", gpus="8xH100")
    assert not [one for one in report.violations if "data-path2" in one.what]


def test_a_program_whose_name_is_not_known_is_asked_for(tmp_path: Path) -> None:
    text = "#!/bin/bash\nwhile [[ $# -gt 0 ]]; do case $1 in --task) TASK=$2; shift 2;; esac; done\n"
    report = checked(tmp_path / "run.sh", f"{text}accelerate launch src/$TASK.py --config $CONFIG\n")
    assert report.violations[0].what == "the program that is started is not known (run.sh:3)"
