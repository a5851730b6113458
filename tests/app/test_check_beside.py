"""What files and options beside a trainer's own say of a plan, and what of them no plan holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright import check
from meshwright.app.check import CheckReport
from meshwright.app.requests.xray import XrayRequest
from meshwright.app.xray import xray
from meshwright.errors import InputError
from meshwright.report.plan_tables import layer_text

TRAINER = (
    "train.py --model_name_or_path Qwen/Qwen3-0.6B --max_seq_length 2048 --per_device_train_batch_size 2 --bf16 True"
)


def read(tmp_path: Path, text: str, name: str = "run.sh", **more: object) -> CheckReport:
    """Checks a file on eight devices."""
    (tmp_path / name).write_text(text)
    return check(tmp_path / name, cluster="8xH100", search=False, **more)


@pytest.mark.parametrize("inside", [False, True])
def test_the_trainers_json_of_fsdp_says_what_is_recomputed(tmp_path: Path, inside: bool) -> None:
    """In a file beside the script, or in the option itself."""
    shards = json.dumps({"transformer_layer_cls_to_wrap": "Qwen3DecoderLayer", "activation_checkpointing": True})
    (tmp_path / "fsdp.json").write_text(shards)
    named = f"'{shards}'" if inside else "fsdp.json"
    command = f"torchrun --nproc_per_node 8 {TRAINER} --fsdp 'full_shard auto_wrap' --fsdp_config {named}\n"
    report = read(tmp_path, command)
    assert not report.violations
    assert report.name == "dp8.fsdp.mbs2.gbs16.rc-full"


def test_a_json_of_fsdp_that_is_not_here_is_missed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"fsdp\.json is not here"):
        read(tmp_path, f"torchrun --nproc_per_node 8 {TRAINER} --fsdp full_shard --fsdp_config conf/fsdp.json\n")


def test_the_launcher_may_recompute(tmp_path: Path) -> None:
    command = "accelerate launch --use_fsdp --fsdp_activation_checkpointing true --mixed_precision bf16"
    assert read(tmp_path, f"{command} {TRAINER}\n").name == "dp8.fsdp.mbs2.gbs16.rc-full"


def test_a_file_that_a_script_writes_is_known_by_its_name_where_its_folder_is_not(tmp_path: Path) -> None:
    script = (
        "RUN=runs/$(date +%s)\n"
        "cat > $RUN/zero.json <<'END'\n"
        '{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "bf16": {"enabled": true},\n'
        ' "zero_optimization": {"stage": 3}}\n'
        "END\n"
        f"deepspeed {TRAINER} --deepspeed=${{RUN}}/zero.json\n"
    )
    report = read(tmp_path, script)
    assert not report.violations
    assert report.name == "dp8.z3.mbs2.gbs16"


def test_swift_takes_the_json_of_fsdp_that_its_script_writes(tmp_path: Path) -> None:
    shards = {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2, "activation_checkpointing": True}}
    report = read(
        tmp_path,
        f"echo '{json.dumps(shards)}' > /tmp/$(date +%s)/fsdp.json\n"
        "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-0.6B --train_type full --max_length 2048 "
        "--gradient_checkpointing false --per_device_train_batch_size 2 --gradient_accumulation_steps 1 "
        "--fsdp /tmp/$(date +%s)/fsdp.json\n",
    )
    assert not report.violations
    assert report.name == "dp8.fsdp.mbs2.gbs16.rc-full"


def test_a_part_of_a_file_of_rollouts_is_no_plan(tmp_path: Path) -> None:
    """A micro-batch and tensor ranks stand in it, of unlike models."""
    rollout = "rollout:\n  tensor_model_parallel_size: 2\ntrain:\n  micro_batch_size: 4\n"
    with pytest.raises(InputError, match="of one of several models"):
        read(tmp_path, rollout, "run.yaml")
    with pytest.raises(InputError, match="verl's configuration"):
        read(tmp_path, f"actor_rollout_ref:\n  a: 1\n{rollout}", "run.yaml")


def test_degrees_that_no_reader_takes_are_told(tmp_path: Path) -> None:
    text = (
        "base_model: Qwen/Qwen3-0.6B\nsequence_len: 2048\nmicro_batch_size: 2\nbf16: true\n"
        "context_parallel_degree: 2\npipeline_parallel_size: 1\n"
    )
    report = read(tmp_path, text, "run.yaml")
    assert [one.what for one in report.violations] == ["context_parallel_degree is 2"]


def test_a_file_of_options_without_a_format_asks_for_it(tmp_path: Path) -> None:
    text = "model_name_or_path: Qwen/Qwen3-0.6B\nmax_length: 2048\nper_device_train_batch_size: 2\n"
    report = read(tmp_path, text, "sft.yaml", settings=("fsdp=full_shard",))
    assert [one.what for one in report.violations] == ["the format of products is not known"]
    stated = read(tmp_path, text, "sft.yaml", settings=("fsdp=full_shard", "bf16=true"))
    assert not stated.violations
    assert stated.inputs is not None
    assert stated.inputs.workload.precision.activations == "bf16"


def test_what_deepspeed_shards_is_told_where_the_batch_is_left_open(tmp_path: Path) -> None:
    keys = {
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
    }
    report = read(tmp_path, json.dumps(keys), "zero.json")
    assert report.launch is not None
    told = {one.option: one.value for one in report.launch.said}
    assert told["zero_optimization.stage"] == "3"
    assert told["zero_optimization.offload_param.device"] == "cpu"


def test_formats_of_states_have_the_names_of_torch_in_files_of_bridge(tmp_path: Path) -> None:
    text = (
        "model:\n  tensor_model_parallel_size: 2\n  pipeline_model_parallel_size: 1\n  context_parallel_size: 1\n"
        "  seq_length: 4096\n  first_last_layers_bf16: false\n"
        "train:\n  micro_batch_size: 1\n  global_batch_size: 16\n"
        "optimizer:\n  bf16: true\n  use_distributed_optimizer: true\n  use_precision_aware_optimizer: true\n"
        "  exp_avg_dtype: torch.bfloat16\n  exp_avg_sq_dtype: torch.bfloat16\n"
        "mixed_precision: bf16_mixed\n"
    )
    (tmp_path / "run.yaml").write_text(text)
    report = check("llama-3.1-8b", source=tmp_path / "run.yaml", cluster="8xH100", search=False)
    assert not report.violations
    assert report.inputs is not None
    assert report.inputs.workload.precision.moments == "bf16"


def test_a_stage_of_classes_is_no_decoder_in_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--stage is given"):
        read(tmp_path, f"accelerate launch --mixed_precision bf16 src/{TRAINER} --stage cls\n")


def test_as_many_devices_are_proposed_as_a_file_says_processes(tmp_path: Path) -> None:
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 6\n"
    (tmp_path / "run.yaml").write_text(text)
    (asked,) = [one for one in check(tmp_path / "run.yaml").violations if one.what == "no cluster is given"]
    assert "6xH100" in asked.fix
    assert "the file starts 6 processes" in asked.why


def test_what_is_asked_for_may_say_the_length(tmp_path: Path) -> None:
    keys = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    (tmp_path / "zero.json").write_text(json.dumps(keys))
    asked = check("llama-3.1-8b", source=tmp_path / "zero.json", cluster="8xH100", search=False)
    assert not any("sequence length" in note for note in asked.warnings)
    batch = ("per_device_train_batch_size=1",)
    told = check("llama-3.1-8b", source=tmp_path / "zero.json", cluster="8xH100", search=False, settings=batch)
    assert any("states no sequence length" in note for note in told.warnings)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--hidden_width=2048 --num_layers=16 --max_steps=10", "whose own options or files say the plan"),
        ("--num_layers=16 --hidden_size=2048 --tensor_model_parallel_size=2", "of a fork that writes options with _"),
    ],
)
def test_a_program_of_its_own_is_no_fork_for_one_name(tmp_path: Path, options: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read(
            tmp_path, f"export HF_TOKEN=<your-token-here> # to stream\ntorchrun --nproc_per_node=8 train.py {options}\n"
        )


def test_a_script_alone_may_be_looked_through(tmp_path: Path) -> None:
    """`xray train.sh`, as `check train.sh`: what the script leaves open is asked for."""
    script = tmp_path / "train.sh"
    script.write_text("torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 4 --micro-batch-size 1 --bf16\n")
    request = XrayRequest.read({"model": str(script)}, typed=True)
    assert (request.source, request.job.model) == (str(script), None)
    named = XrayRequest.read({"model": "llama-3.1-8b", "source": str(script)}, typed=True)
    assert (named.source, named.job.model) == (str(script), "llama-3.1-8b")
    with pytest.raises(InputError, match="no cluster is given"):
        xray(request)


OF_BLOOM = """#!/bin/bash
deepspeed --num_gpus 8 pretrain_gpt.py --num-layers 6 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 \\
  --max-position-embeddings 1024 --pipeline-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 32 --bf16 \\
  --pp-partition-method 'type:transformer|embedding' --pad-vocab-size-to 50304 --checkpoint-activations \\
  --train-weighted-split-paths-path splits.json --deepspeed --zero-stage 0 --deepspeed_config engine.json
"""


def test_stages_may_hold_the_embedding_or_the_head_alone(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(OF_BLOOM)
    (tmp_path / "splits.json").write_text('[["train", 1.0]]')
    (tmp_path / "engine.json").write_text('{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 1}')
    report = check(source=tmp_path / "train.sh", cluster="8xA100-80")
    assert report.ok, report.violations
    assert report.launch is not None
    assert report.launch.layout == (0, 1, 1, 1, 1, 1, 1, 0)
    assert layer_text(report.to_dict()["estimate"]["stages"][0]["layers"]) == "no layer"
    assert "--account-for" not in "".join(change.option for change in (report.fix.changes if report.fix else ()))
