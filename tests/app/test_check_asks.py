"""What a launch file leaves open is asked for at once, each with the option that says it; the second call succeeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright import check
from meshwright.app.check import CheckReport

SHAPE = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024"
BRIDGE = """train:
  train_iters: 100
  micro_batch_size: 1
  global_batch_size: 64
optimizer:
  lr: 0.0003
model:
  seq_length: 4096
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  context_parallel_size: 1
"""
TRAINER = """model_name_or_path: Qwen/Qwen3-8B
bf16: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
max_length: 2048
report_to:
- tensorboard
"""
SECOND = """model: Qwen/Qwen3-4B
model_class: llm
dist_config:
  name: fsdp2
micro_batch_size: 2
cutoff_len: 2048
"""


def asked(report: CheckReport) -> list[tuple[str, str]]:
    return [(one.what, one.fix) for one in report.violations if one.code == "ASK"]


def test_all_that_is_open_is_one_question_and_the_second_call_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {SHAPE} --bf16 --tensor-model-parallel-size $TP "
        "--pipeline-model-parallel-size $PP --micro-batch-size $1 --global-batch-size ${2}\n"
    )
    report = check(path)
    assert (report.exit_code, report.inputs, report.estimate) == (2, None, None)
    first, second = (what for what, _ in asked(report)[:2])
    assert report.text == f"Not checked: {first}; {second}; no cluster is given; and 1 more. Nothing was guessed."
    assert [fix for _, fix in asked(report)] == [
        "give --env TP=VALUE --env PP=VALUE",
        "give --arg VALUE 2 times, for the arguments 1 to 2 in order",
        "say --gpus 16xH100, or how many of which there are; or --cluster FILE",
        "give --set vocab-size=N, or name the model before the file: check MODEL FILE",
    ]
    assert ("--num-layers", "12") in [(said.option, said.value) for said in report.launch.said]
    given = {"env": ["TP=2", "PP=2"], "arguments": ["1", "64"], "settings": "vocab-size=50304"}
    again = check(
        path,
        gpus="16xH100",
        environment=given["env"],
        arguments=given["arguments"],
        settings=given["settings"],
        search=False,
    )
    assert (again.exit_code, again.name) == (0, "tp2.nosp.pp2.dp4.mbs1.gbs64.nodpov")
    assert again.to_dict()["inputs"]["model"]["name"] == "model of train.sh"


def test_devices_that_the_degrees_go_with_are_proposed(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    launch = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE} --vocab-size 50304 --micro-batch-size 1"
    path.write_text(
        f"{launch} --global-batch-size 64 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4\n"
    )
    assert asked(check(path)) == [
        ("no cluster is given", "say --gpus 16xH100, or how many of which there are; or --cluster FILE")
    ]


def test_a_sourced_file_that_is_missing_is_asked_for_where_the_plan_needs_it(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    launch = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE} --vocab-size 50304 --micro-batch-size 1"
    path.write_text(f"TP=2\nsource /site/modules\n{launch} --global-batch-size 64 --tensor-model-parallel-size $TP\n")
    report = check(path, gpus="8xH100", search=False)
    assert (report.exit_code, report.name) == (0, "tp2.nosp.dp4.mbs1.gbs64.nodpov")
    assert any("/site/modules, used at train.sh:2, was not found" in note for note in report.warnings)
    path.write_text(path.read_text().replace("TP=2\n", "").replace("$TP", "${TP:-2}"))
    report = check(path, gpus="8xH100", search=False)
    assert [(v.why, v.fix) for v in report.violations] == [
        ("/site/modules may set TP, and is not here (train.sh:2)", "give --env TP=VALUE")
    ]
    assert check(path, gpus="8xH100", environment="TP=4", search=False).name == "tp4.nosp.dp2.mbs1.gbs64.nodpov"


def test_what_deepspeed_leaves_to_the_trainer_is_said_by_its_options(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    zero = {"stage": 2}
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": "auto", "zero_optimization": zero}))
    report = check("qwen3-8b", source=path)
    assert asked(report)[0] == (
        "train_micro_batch_size_per_gpu is 'auto'",
        "give --set per_device_train_batch_size=N, as the trainer has it",
    )
    again = check("qwen3-8b", source=path, gpus="8xH100", settings="per_device_train_batch_size=4", search=False)
    assert again.name == "dp8.z2.mbs4.gbs32.nodpov"


def test_options_of_a_trainer_in_a_file_are_read_once_it_is_said_what_shards(tmp_path: Path) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(TRAINER)
    assert [what for what, _ in asked(check(path))] == ["what shards the model is not known", "no cluster is given"]
    sharded = check(path, gpus="8xH100", settings="fsdp=full_shard", search=False)
    assert (sharded.name, sharded.exit_code) == ("dp8.fsdp.mbs2.gbs64.rc-full", 0)
    assert sharded.inputs.workload.seq_len == 2048
    places = {said.option: said.place for said in sharded.launch.said}
    assert places["model_name_or_path"] == "sft.yaml:1"
    whole = check(path, gpus="8xH100", settings="fsdp=no", search=False)
    assert whole.name == "dp8.mbs2.gbs64.rc-full"
    path.write_text(TRAINER + "beta: 0.1\n")
    with pytest.raises(ValueError, match="beta is given"):
        check(path, gpus="8xH100")


def test_parts_of_a_bridge_recipe_are_no_config_of_megatron(tmp_path: Path) -> None:
    path = tmp_path / "pretrain.yaml"
    path.write_text(BRIDGE)
    report = check("llama-3.2-1b", source=path, gpus="8xH100", search=False)
    assert (report.name, report.exit_code) == ("tp2.nosp.dp4.z1.mbs1.gbs64", 0)
    assert {said.option for said in report.launch.unpriced} >= {"train.train_iters", "optimizer.lr"}
    path.write_text(BRIDGE.replace("  context_parallel_size: 1\n", ""))
    report = check("llama-3.2-1b", source=path, gpus="8xH100", search=False)
    assert asked(report) == [("model.context_parallel_size is not given", "give --set model.context_parallel_size=N")]
    again = check("llama-3.2-1b", source=path, gpus="8xH100", settings="model.context_parallel_size=2", search=False)
    assert again.name == "tp2.nosp.cp2.dp2.z1.mbs1.gbs64"


def test_the_second_trainer_of_llamafactory_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(SECOND)
    report = check(path, gpus="8xH100", search=False)
    assert (report.name, report.exit_code) == ("dp8.fsdp.mbs2.gbs16.rc-full", 0)
    assert report.inputs.workload.precision.master is None
    path.write_text(SECOND + "peft_config:\n  name: freeze\nbatching_strategy: dynamic_batching\n")
    assert {v.field for v in check(path, gpus="8xH100", search=False).violations} == {
        "peft_config.name",
        "batching_strategy",
    }


def test_a_script_that_ends_without_a_variable_is_started_with_it(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    launch = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE} --vocab-size 50304 --micro-batch-size 1"
    path.write_text(
        'if [ -z "$IMAGE" ]; then\n  echo "IMAGE must be set"\n  exit 1\nfi\n'
        f"srun --container-image $IMAGE {launch} --global-batch-size 64\n"
    )
    assert check(path, gpus="8xH100", search=False).name == "dp8.mbs1.gbs64.nodpov"
    path.write_text(path.read_text().replace("$IMAGE", "$TP") + "--tensor-model-parallel-size ${TP:-1}\n")
    path.write_text(path.read_text().replace("64\n--tensor", "64 --tensor"))
    report = check(path, gpus="8xH100", search=False)
    assert asked(report) == [
        ("--tensor-model-parallel-size is not known (train.sh:1)", "give --env TP=VALUE"),
    ]
    assert check(path, gpus="8xH100", environment="TP=2", search=False).name == "tp2.nosp.dp4.mbs1.gbs64.nodpov"


def test_programs_of_several_models_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text("deepspeed main.py --actor_model_name_or_path a/b --critic_model_name_or_path c/d --seed 1\n")
    with pytest.raises(ValueError, match="trains a policy with the models that judge it"):
        check(path, gpus="8xH100")


def test_the_engine_that_a_configuration_of_accelerate_names_is_read(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\n"
        "deepspeed_config:\n  deepspeed_config_file: engines/z3.json  # ours\n"
    )
    given = ["per_device_train_batch_size=2", "bf16=true"]
    report = check("qwen3-8b", source=path, gpus="8xH100", settings=given, search=False)
    assert [what for what, _ in asked(report)] == ["engines/z3.json is not here"]
    (tmp_path / "z3.json").write_text(
        json.dumps(
            {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
        )
    )
    report = check("qwen3-8b", source=path, gpus="8xH100", settings=given, search=False)
    assert report.name == "dp8.z3.mbs2.gbs16"
    places = {said.option: said.place for said in report.launch.said}
    assert places["zero_optimization.stage"] == "z3.json:1"


GALVATRON = """runtime:
  parallel:
    pp_deg: 2
    global_tp_deg: 2
    vocab_tp: 2
    default_dp_type: zero2
    pipeline_type: pipedream_flush
    galvatron_config_path: null
  model:
    model_size: llama2-7b
  train:
    sequence_parallel: true
    use_flash_attn: true
    global_batch_size: 32
    micro_batch_size: 4
    chunks: 4
    seq_length: 4096
"""


def test_the_trainer_of_galvatron_is_a_plan(tmp_path: Path) -> None:
    """Its degrees stand beside keys that NeMo has, too: read as NeMo's, two tensor ranks were none."""
    path = tmp_path / "train_dist.yaml"
    path.write_text(GALVATRON)
    report = check(path, gpus="8xH100", search=False)
    assert not report.violations
    assert report.name == "tp2.pp2.dp2.z2.mbs4.gbs32"
    script = tmp_path / "train.sh"
    script.write_text('torchrun --nproc-per-node=8 train_dist.py train_dist.yaml parallel.pp_deg=1 "$@"\n')
    assert check(script, gpus="8xH100", search=False).name == "tp2.dp4.z2.mbs2.gbs32"
    path.write_text(GALVATRON.replace("chunks: 4", "chunks: 3").replace("vocab_tp: 2", "vocab_tp: 1"))
    fields = [one.field for one in check(path, gpus="8xH100", search=False).violations]
    assert fields == ["parallel.vocab_tp", "train.chunks"]


def test_layers_that_differ_stand_in_the_json_that_the_trainer_names(tmp_path: Path) -> None:
    path = tmp_path / "train_dist.yaml"
    path.write_text(GALVATRON.replace("galvatron_config_path: null", "galvatron_config_path: ./made/layers.json"))
    assert [what for what, _ in asked(check(path, gpus="8xH100", search=False))] == ["./made/layers.json is not here"]
    keys = {
        "pp_deg": 1,
        "tp_sizes_enc": ",".join(["2"] * 32),
        "global_bsz": 16,
        "chunks": 2,
        "default_dp_type": "zero3",
    }
    keys |= {name: ",".join(["0"] * 32) for name in ("dp_types_enc", "checkpoint", "use_sp")}
    (tmp_path / "layers.json").write_text(json.dumps(keys))
    report = check(path, gpus="8xH100", search=False)
    assert not report.violations
    assert report.name == "tp2.dp4.fsdp.mbs2.gbs16.gpipe"
    assert report.inputs.workload.seq_len == 4096


def test_an_engine_that_nobody_knows_is_no_plan_of_copies(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    launch = "deepspeed finetune.py --model_name_or_path Qwen/Qwen3-8B --bf16 True --per_device_train_batch_size 2"
    path.write_text(f"{launch} --lora_r 8 --model_max_length 2048 --deepspeed $ENGINE\n")
    report = check(path, gpus="8xH100", search=False)
    assert [(what, fix) for what, fix in asked(report)] == [
        (
            "whether adapters are trained is not known",
            "give --set use_peft=true, or --set use_peft=false where all of the model is trained",
        ),
        ("--deepspeed is not known (train.sh:1)", "give --env ENGINE=VALUE"),
    ]
    other = tmp_path / "steps.sh"
    other.write_text(f"{launch} --gradient_accumulation_steps $2 --deepspeed z2.json\n")
    positions = [(what, fix) for what, fix in asked(check(other, gpus="8xH100", search=False)) if "steps" in what]
    assert positions == [
        (
            "--gradient_accumulation_steps is not known",
            "give --arg VALUE 2 times, for the arguments 1 to 2 in order",
        )
    ]
    (tmp_path / "z2.json").write_text('{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}')
    report = check(path, gpus="8xH100", environment="ENGINE=z2.json", settings="use_peft=true", search=False)
    assert report.name == "dp8.z2.mbs2.gbs16.nodpov"
    assert report.inputs.model.tuning is not None


def test_a_program_behind_a_list_of_commands_is_what_a_submission_starts(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        "python submit.py --gpus 8 -- source setup.sh \\&\\& python open/grpo_fast.py "
        "--model_name_or_path Qwen/Qwen2.5-3B --per_device_train_batch_size 1\n"
    )
    with pytest.raises(ValueError, match="trains on pairs or rewards"):
        check(path, cluster="8xH100", search=False)


def test_bigsciences_stages_count_the_embedding_as_a_layer(tmp_path: Path) -> None:
    path = tmp_path / "train.slurm"
    path.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 30 --hidden-size 2048 --num-attention-heads 16 "
        "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --bf16 "
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --vocab-size 50304 "
        "--pp-partition-method 'type:transformer|embedding' --zero-stage 1 --deepspeed --deepspeed_config ds.json\n"
    )
    report = check(path, cluster="8xH100", search=False)
    assert report.launch is not None
    assert report.launch.layout == (7, 8, 8, 7)
    assert not [one for one in report.violations if "partition" in one.field]


def test_experts_that_differ_by_layer_and_padded_vocabularies_are_deepspeeds(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    text = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 "
        "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --bf16 "
        "--pad-vocab-size-to 50432 --zero-stage 0 --deepspeed --deepspeed_config ds.json{}\n"
    )
    path.write_text(text.format(""))
    report = check(path, cluster="8xH100", search=False)
    assert not report.violations
    assert report.inputs is not None
    assert report.inputs.model.vocab == 50432
    path.write_text(text.format(" --num-experts 8 16 --mlp-type residual"))
    report = check(path, cluster="8xH100", search=False)
    assert not report.violations
    assert report.inputs is not None
    assert [layer.mlp.routed_experts for layer in report.inputs.model.layers()] == [0, 8, 0, 16]
    for wrong in ("8 16 32", "8 8 16", "16 8 4 2", "8 0", "8 x"):
        path.write_text(text.format(f" --num-experts {wrong}"))
        fields = [one.field for one in check(path, cluster="8xH100", search=False).violations if one.code == "OPTIONS"]
        assert "--num-experts" in fields


def test_options_of_a_launcher_are_not_those_of_a_training(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text('srun --kill-on-bad-exit=1 --micro-batch-size=2 bash -lc "$RUN"\n')
    with pytest.raises(ValueError, match="there are no options"):
        check(path, cluster="8xH100", search=False, source_format="megatron")


def test_what_a_training_is_started_with_is_its_own_unknown(tmp_path: Path) -> None:
    """The words of an export behind it once were the reason that a training could not be read."""
    path = tmp_path / "run.sh"
    later = 'for one in $(ls -d out/step-* | sort -n); do python3 export.py --from "$one"; done\n'
    path.write_text(f'accelerate launch train.py "$@"\n{later}')
    with pytest.raises(ValueError, match=r"it starts train\.py, .*whose own options or files say the plan"):
        check(path, cluster="8xH100", search=False, source_format="megatron")
    path.write_text(f"torchrun train.py --data x\n--swiglu\n{later}")
    with pytest.raises(ValueError, match=r"--swiglu and what follows it at run\.sh:2 belong to no program"):
        check(path, cluster="8xH100", search=False, source_format="megatron")
    path.write_text(f"torchrun train.py $(cat words.txt)\n{later}")
    with pytest.raises(ValueError, match=r"what train\.py is started with is not known: \$\(cat words\.txt\)"):
        check(path, cluster="8xH100", search=False, source_format="megatron")


def test_batches_of_rollouts_are_no_pretraining(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "python train.py --rollout-batch-size 32 --tensor-model-parallel-size 2 --micro-batch-size 1 --bf16\n"
    )
    said = [one.what for one in check(path, cluster="8xH100", search=False).violations]
    assert "train.py trains a policy with rollouts" in said


def test_a_program_whose_files_say_the_plan_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("torchrun --nproc_per_node 8 train_images.py configs/large.yaml\n")
    with pytest.raises(ValueError, match=r"it starts train_images\.py, whose own options or files say the plan"):
        check(path, cluster="8xH100", search=False)


def test_defaults_of_a_program_of_its_own_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    text = "torchrun --nproc_per_node 8 tune.py --bf16 True --per_device_train_batch_size 1 --use_lora"
    path.write_text(f"{text}\n")
    asked = [one.what for one in check(path, cluster="8xH100", search=False, source_format="accelerate").violations]
    assert "lora_r and lora_target_modules of the adapters are not known" in asked
    path.write_text(f"{text} --lora_r 8\n")
    asked = [one.what for one in check(path, cluster="8xH100", search=False, source_format="accelerate").violations]
    assert "lora_target_modules of the adapters is not known" in asked


def test_a_fork_that_writes_options_with_underscores_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("torchrun --nproc_per_node 8 pretrain_gpt.py --num_layers 24 --micro_batch_size 4\n")
    with pytest.raises(ValueError, match="a fork that writes options with _"):
        check(path, cluster="8xH100", search=False)


def test_a_variable_that_the_script_sets_from_its_arguments_is_not_set_without_them(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    options = (
        "--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --vocab-size 50304 --bf16 "
        "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64"
    )
    script.write_text(f"""#!/bin/bash
for each in $*; do
  if [[ $each == --traced* ]]; then traced=${{each#*=}}; fi
done
RUN="torchrun --nproc_per_node 8 pretrain_gpt.py {options}"
if [[ $traced == "all" ]]; then RUN="tracer -o out ${{RUN}}"; fi
${{RUN}} --world-size 8
""")
    report = check(source=script, gpus="8xH100")
    assert report.name.startswith("dp8.mbs1.gbs64")
    assert "without arguments traced is not set, which the script itself sets from them" in report.warnings


def test_a_size_that_arguments_say_is_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("""#!/bin/bash
for each in $*; do
  if [[ $each == --size* ]]; then size=${each#*=}; fi
done
if [[ $size == 7B ]]; then SHAPE="--num-layers 32 --hidden-size 4096 --num-attention-heads 32"; fi
torchrun --nproc_per_node 8 pretrain_gpt.py $SHAPE --micro-batch-size 1 --global-batch-size 64 --seq-length 2048
""")
    report = check(source=script, gpus="8xH100")
    assert any("--env size=VALUE" in one.fix for one in report.violations)


def test_printed_arguments_are_known_by_their_text(tmp_path: Path) -> None:
    said = {"num_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "micro_batch_size": 1, "world_size": 8}
    (tmp_path / "run.log").write_text("".join(f"  {name} {'.' * 12} {value}\n" for name, value in said.items()))
    report = check(tmp_path / "run.log", search=False)
    assert report.launch is not None
    assert report.launch.started == 8
    assert report.violations[0].fix.startswith("say --gpus 8xH100")
