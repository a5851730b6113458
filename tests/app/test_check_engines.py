"""Which engine, and which program, a script starts, also where another program submits it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import meshwright as mw
from meshwright import check
from meshwright.app.requests.check import CheckRequest
from meshwright.errors import InputError, MeshwrightError
from meshwright.schedules import known_names
from meshwright.specs.row_text import parse_row
from meshwright.targets import target_named

ZERO = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3},
}
TRAINER = "train.py --model_name_or_path Qwen/Qwen3-0.6B --max_seq_length 2048 --per_device_train_batch_size 2"


@pytest.mark.parametrize(
    ("command", "plan"),
    [
        (
            "python submit.py --nodes 2 --gpus 8 -- accelerate launch --mixed_precision bf16 --use_deepspeed "
            f"--deepspeed_config_file conf/zero3.conf {TRAINER}",
            "dp8.z3.mbs2.gbs16",
        ),
        (f"deepspeed {TRAINER} --bf16 --deepspeed conf/zero3.conf", "dp8.z3.mbs2.gbs16"),
        (
            "accelerate launch --use_deepspeed --zero_stage 2 --offload_optimizer_device cpu --mixed_precision bf16 "
            f"{TRAINER}",
            "dp8.z2.mbs2.gbs16.off-og.nodpov",
        ),
        (f"accelerate launch --mixed_precision bf16 {TRAINER}", "dp8.mbs2.gbs16"),
    ],
)
def test_an_engine_is_read_by_whatever_names_it(tmp_path: Path, command: str, plan: str) -> None:
    """A file of any suffix, also behind the launcher that a submitting program is given."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "zero3.conf").write_text(json.dumps(ZERO))
    script = tmp_path / "run.sh"
    script.write_text(command + "\n")
    report = check(script, cluster="8xH100", search=False)
    assert not report.violations
    assert report.name == plan
    assert report.inputs is not None
    assert report.inputs.workload.precision.activations == "bf16"


def test_an_engine_whose_file_is_not_here_is_no_plan_of_copies(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"deepspeed {TRAINER} --bf16 --deepspeed zero2.conf\n")
    with pytest.raises(MeshwrightError, match=r"zero2\.conf is not here"):
        check(script, cluster="8xH100", search=False)


def test_the_processes_of_a_launcher_are_those_of_the_plan(tmp_path: Path) -> None:
    """Without a cluster the batch is that of all processes that start; with another, both numbers are said."""
    (tmp_path / "zero3.json").write_text(json.dumps(ZERO))
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nproc_per_node 8 --nnodes 2 {TRAINER} --bf16 --deepspeed zero3.json\n")
    launch = check(script, search=False).launch
    assert launch is not None
    assert launch.row is not None
    assert launch.row.format() == "dp16.z3.mbs2.gbs32"
    report = check(script, cluster="8xH100", search=False)
    assert report.name == "dp8.z3.mbs2.gbs16"
    assert any("starts 16 processes, the plan is read for 8" in note for note in report.warnings)


def test_both_names_of_a_key_of_deepspeed_and_its_comments_are_taken() -> None:
    """DeepSpeed's model of ZeRO takes its fields by name and by alias, and passes over keys that it does not know."""
    target = target_named("deepspeed")
    assert target.read is not None
    zero = {"stage": 3, "max_live_parameters": 1000, "gather_16bit_weights_on_model_save": True}
    keys = {
        "_comment": "ours",
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
    }
    assert not target.read({"ds.json": json.dumps(keys)}, 8).problems
    zero["max_live_parameter"] = 1
    (problem,) = target.read({"ds.json": json.dumps(keys)}, 8).problems
    assert "max_live_parameter" in problem.what


def test_a_configuration_that_only_the_command_names_is_missed(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    for command, name in (
        ("axolotl train sft.yml", "sft.yml"),
        ("torchrun --nproc_per_node 8 ./train.py --job.config_file ./8b.toml", "8b.toml"),
    ):
        script.write_text(f"#!/bin/bash\n{command}\n")
        with pytest.raises(MeshwrightError, match=name):
            check(script, cluster="8xH100", search=False).raise_violations()


def test_an_option_that_begins_like_a_program_of_megatron_is_no_sign_of_it(tmp_path: Path) -> None:
    (tmp_path / "zero3.json").write_text(json.dumps(ZERO))
    script = tmp_path / "run.sh"
    script.write_text(f"deepspeed {TRAINER} --pretrain_adapter a.bin --bf16 --deepspeed zero3.json\n")
    assert check(script, cluster="8xH100", search=False).name == "dp8.z3.mbs2.gbs16"


def test_a_file_of_keys_that_nobody_knows_is_asked_for(tmp_path: Path) -> None:
    """A job of an array takes its trainer's file from a list: the engine's configuration alone is no plan."""
    around = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config: {}\nnum_processes: 8\n"
    (tmp_path / "around.yaml").write_text(around)
    script = tmp_path / "run.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH --array=0-1\nfiles=(a.yaml b.yaml)\nfile=${files[$SLURM_ARRAY_TASK_ID]}\n"
        'accelerate launch --config_file around.yaml src/train.py "$file" per_device_train_batch_size=2\n'
    )
    report = check("qwen3-0.6b", cluster="8xH100", source=script, search=False)
    assert any("SLURM_ARRAY_TASK_ID" in one.fix for one in report.violations)
    script.write_text(script.read_text().replace('"$file"', "c.yaml"))
    with pytest.raises(MeshwrightError, match=r"c\.yaml is not here"):
        check("qwen3-0.6b", cluster="8xH100", source=script, search=False)


def test_a_model_that_sees_is_told_by_the_options_of_its_program(tmp_path: Path) -> None:
    (tmp_path / "zero3.json").write_text(json.dumps(ZERO))
    script = tmp_path / "run.sh"
    for option in ("--vision_tower clip", "--tune_vision_tower True", "--video_target_size 512"):
        script.write_text(f"deepspeed {TRAINER} {option} --bf16 --deepspeed zero3.json\n")
        with pytest.raises(MeshwrightError, match=f"is started with {option.partition(' ')[0]}"):
            check(script, cluster="8xH100", search=False)


def test_a_file_is_looked_for_up_to_the_root_of_its_project(tmp_path: Path) -> None:
    """A job starts where its project is, though its script lies deeper; no file above the project is taken."""
    deep = tmp_path / "project" / "shell" / "sft"
    deep.mkdir(parents=True)
    script = deep / "run.sh"
    script.write_text(f"deepspeed {TRAINER} --bf16 --deepspeed zero3.json\n")
    (tmp_path / "zero3.json").write_text(json.dumps(ZERO))
    (tmp_path / "project" / "pyproject.toml").touch()
    with pytest.raises(MeshwrightError, match=r"zero3\.json is not here"):
        check(script, cluster="8xH100", search=False)
    (tmp_path / "project" / "zero3.json").write_text(json.dumps(ZERO))
    assert check(script, cluster="8xH100", search=False).name == "dp8.z3.mbs2.gbs16"


def test_a_command_of_which_nothing_is_known_is_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\nRUN=$(cat command.txt)\n$RUN --seed 1\n")
    report = check("qwen3-0.6b", cluster="8xH100", source=script, search=False)
    assert [one.what for one in report.violations] == ["the program that is started is not known (run.sh:3)"]


def test_degrees_that_a_program_makes_itself_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun {TRAINER} --bf16 --sequence_parallel_size ${{SP:-4}} --seed 3\n")
    report = check(script, cluster="8xH100", search=False)
    assert [one.what for one in report.violations] == ["--sequence_parallel_size is not read"]
    assert not check(script, cluster="8xH100", search=False, environment="SP=1").violations


def test_a_script_of_another_suffix_is_told_by_its_first_line(tmp_path: Path) -> None:
    script = tmp_path / "train.sh.tmpl"
    script.write_text(
        "#!/bin/bash\npython3 MaxText/train.py MaxText/configs/base.yml per_device_batch_size=2 "
        "model_name=llama2-7b remat_policy=full max_target_length=4096 ici_fsdp_parallelism=8\n"
    )
    report = check(script, cluster="8xH100", search=False)
    assert not report.violations
    assert report.name == "dp8.fsdp.mbs2.gbs16.rc-full"


def test_a_job_that_xpk_submits_is_read_as_its_command_says(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "FSDP=8\nxpk workload create --cluster=mine --num-slices=1 --command=\"export A='1' && "
        "python3 -m MaxText.train "
        'base.yml model_name=llama2-7b ici_fsdp_parallelism=${FSDP} per_device_batch_size=2 max_target_length=4096"\n'
    )
    report = check(script, cluster="8xH100", search=False)
    assert not report.violations
    assert report.name == "dp8.fsdp.mbs2.gbs16.rc-full"


def test_options_of_a_fork_that_name_files_are_listed_and_others_refused(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 "
        "--seq-length 1024 --max-position-embeddings 1024 --vocab-size 50304 --micro-batch-size 1 "
        "--global-batch-size 8 --bf16 --trigger-path $HOME/stop --attention-pipeline --tensor-model-parallel-sizes 2\n"
    )
    report = check(script, cluster="8xH100", search=False)
    assert [one.field for one in report.violations] == ["--tensor-model-parallel-sizes", "--attention-pipeline"]
    assert any("--trigger-path" in note for note in report.warnings)


def test_the_json_of_galvatron_needs_no_option(tmp_path: Path) -> None:
    file = tmp_path / "galvatron_config.json"
    keys = {
        "pp_deg": 1,
        "tp_sizes_enc": "2,2",
        "tp_consecutive_flags": "1,1",
        "dp_types_enc": "0,0",
        "global_bsz": 16,
        "chunks": 2,
        "checkpoint": "0,0",
        "default_dp_type": "zero2",
    }
    file.write_text(json.dumps(keys))
    report = check(file, cluster="8xH100", search=False)
    assert [one.what for one in report.violations if one.code == "ASK"] == ["no model is given"]


def test_a_program_whose_options_are_not_read_is_named(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        'python monitor.py &\ndocker exec box bash -lc "oumi train --model a --per_device_train_batch_size 1"\n'
    )
    with pytest.raises(MeshwrightError, match="it starts oumi of Oumi"):
        check(script, cluster="8xH100", search=False, source_format="megatron")


def test_a_model_that_only_its_options_describe_contradicts_nothing(tmp_path: Path) -> None:
    """All layers have experts: the width of dense ones, which is given too, is that of none."""
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 "
        "--ffn-hidden-size 4096 --num-experts 8 --moe-ffn-hidden-size 512 --seq-length 1024 --vocab-size 32000 "
        "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --bf16 --swiglu\n"
    )
    assert not check(script, cluster="8xH100", search=False).violations


def test_what_no_option_shards_is_said(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun {TRAINER} --bf16\n")
    report = check(script, cluster="8xH100", search=False)
    assert any("unless the program shards by itself" in note for note in report.warnings)


def test_what_a_template_leaves_to_fill_in_is_no_syntax_error(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "DATA_PATH=<Specify path and file prefix>_text_document\nSAVE=<Specify path>\n"
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 "
        "--seq-length 1024 --max-position-embeddings 1024 --vocab-size 50304 --micro-batch-size 1 "
        "--global-batch-size 8 --bf16 --data-path $DATA_PATH --save $SAVE\n"
    )
    assert not check(script, cluster="8xH100", search=False).violations


def test_earlier_names_of_offload_are_honoured() -> None:
    target = target_named("deepspeed")
    assert target.read is not None
    text = '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": true}, '
    for keys, letters in (
        ('"cpu_offload": true', "og"),
        ('"cpu_offload": false', ""),
        ('"cpu_offload_param": true', "w"),
        ('"offload_param": {"device": "cpu"}', "w"),
    ):
        row = target.read({"ds.json": f'{text}"zero_optimization": {{"stage": 3, {keys}}}}}'}, 8).row
        assert row is not None
        assert row.offload == letters
        below = target.read({"ds.json": f'{text}"zero_optimization": {{"stage": 2, {keys}}}}}'}, 8).row
        assert below is not None
        assert below.offload == letters.replace("w", ""), "weights stay on the device below ZeRO-3"


def test_a_folder_with_files_of_several_targets_asks_which(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(
        "stage: sft\nfinetuning_type: full\ncutoff_len: 2048\nbf16: true\ndeepspeed: ds.json\n"
    )
    batches = '"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2'
    (tmp_path / "ds.json").write_text(
        f'{{{batches}, "bf16": {{"enabled": true}}, "zero_optimization": {{"stage": 2}}}}'
    )
    given = {"model": "llama-3.1-8b", "cluster": "8xH100", "seq_len": 2048}
    request = CheckRequest.read({**given, "source": str(tmp_path)})
    assert str(request.source).endswith("train.yaml")  # the file that it names is a part of it
    (tmp_path / "accelerate.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\n"
    )
    with pytest.raises(InputError, match=r"accelerate.yaml \(accelerate\), train.yaml \(llamafactory\)"):
        CheckRequest.read({**given, "source": str(tmp_path)})
    request = CheckRequest.read({**given, "source": str(tmp_path), "source_format": "llamafactory"})
    assert str(request.source).endswith("train.yaml")


def test_a_folder_of_an_export_is_checked_on_its_own_cluster(tmp_path: Path) -> None:
    planned = mw.estimate("llama-3.1-8b", gpus="16xH100", plan="tp2.mbs1.gbs64.z1")
    mw.export(planned.plans[0], target="megatron", directory=tmp_path / "run")
    report = mw.check(tmp_path / "run", search=False)
    assert report.ok
    assert report.estimate is not None
    assert report.estimate.step_time_s == pytest.approx(planned.plans[0].estimate.step_time_s)
    assert f"the cluster is that of {tmp_path / 'run' / 'plan.json'}: 16xH100" in report.warnings
    fewer = mw.check(tmp_path / "run", gpus="8xH100", search=False)
    assert not any("plan.json" in warning for warning in fewer.warnings)


def test_a_plan_file_is_a_cluster(tmp_path: Path) -> None:
    planned = mw.estimate("llama-3.1-8b", gpus="8xA100-40", plan="tp2.mbs1.gbs64.z1")
    path = planned.plans[0].save(tmp_path / "plan.json")
    assert mw.estimate("gpt2", cluster=path, plan="mbs1.gbs64").best.job.cluster == planned.best.job.cluster


@pytest.mark.parametrize(
    ("model", "batch", "stage", "cluster"), [("llama-3.1-8b", 64, 1, "8xA100-80"), ("llama-3.1-70b", 16, 3, "8xH100")]
)
def test_repairs_are_those_that_the_files_framework_runs(
    tmp_path: Path, model: str, batch: int, stage: int, cluster: str
) -> None:
    path = tmp_path / "ds.json"
    each = {"train_batch_size": batch, "train_micro_batch_size_per_gpu": batch // 8}
    path.write_text(json.dumps({**each, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}))
    report = check(model, cluster=cluster, source=path, search=False)
    assert [violation.code for violation in report.violations] == ["MEM_STAGE"]
    assert report.repairs
    for repair in report.repairs:
        row = parse_row(repair.name, devices=8, global_batch=batch, schedules=known_names())
        assert (row.pp, row.sp and row.tp > 1) == (1, False)  # it has no sequence parallelism beside tensor ranks


@pytest.mark.parametrize(
    ("target", "model", "asked"),
    [
        ("axolotl", "qwen3-30b-a3b", {"lora": "r=8,base=nf4", "gpus": "16xA100-40", "global_batch": 64}),
        ("deepspeed", "qwen3-8b", {"lora": "r=8,base=nf4", "gpus": "8xV100-32", "global_batch": 256}),
        ("megatron-deepspeed", "phi-4", {"gpus": "48xH200", "global_batch": 256}),
    ],
)
def test_what_an_export_says_without_its_plan_file_is_priced_as_it_was_planned(
    target: str, model: str, asked: dict[str, object], tmp_path: Path
) -> None:
    best = mw.plan(model, target=target, seq_len=2048, top=1, **asked).best
    best.export(target, tmp_path / "launch")
    (tmp_path / "launch" / "plan.json").unlink()
    of_script = None if target == "megatron-deepspeed" else model
    kind = str(asked["gpus"]).partition("x")[2]
    read = check(of_script, source=tmp_path / "launch", gpus=f"{best.plan.devices}x{kind}", search=False)

    assert read.estimate is not None, read.text
    assert read.name == best.title
    assert read.estimate.step_time_s == pytest.approx(best.estimate.step_time_s, rel=1e-9)
    assert read.estimate.peak_memory_bytes == pytest.approx(best.estimate.peak_memory_bytes, rel=1e-9)


def test_micro_batches_are_those_of_the_engine_where_the_program_says_others(tmp_path: Path) -> None:
    around = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\n"
    (tmp_path / "around.yaml").write_text(
        f"{around}num_processes: 8\ndeepspeed_config: {{zero_stage: 2, gradient_accumulation_steps: 1}}\n"
    )
    script = tmp_path / "run.sh"
    script.write_text(f"accelerate launch --config_file around.yaml {TRAINER} --bf16 --gradient_accumulation_steps 4\n")
    report = check(script, cluster="8xH100", search=False)
    assert report.name == "dp8.z2.mbs2.gbs16.nodpov"
    said = "DeepSpeed sums 1 micro-batches as Accelerate's file says; the program says 4"
    assert said in report.warnings


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("launch.py loss=kto", "loss=kto"),
        ("train.py --algorithm=dpo", "algorithm=dpo"),
        ("run.py ++trainer._target_=ppo", "ppo"),
        ("-m training.train_preference_model", "training.train_preference_model"),
    ],
)
def test_a_word_that_names_pairs_or_rewards_is_no_plan_of_one_pass(tmp_path: Path, words: str, what: str) -> None:
    script = tmp_path / "run.sh"
    _, _, rest = TRAINER.partition(" ")
    script.write_text(f"torchrun --nproc_per_node 8 {words} {rest} --bf16\n")
    with pytest.raises(MeshwrightError, match=what) as raised:
        check(script, cluster="8xH100", search=False).raise_violations()
    assert "pairs or rewards" in str(raised.value)


def test_a_file_of_an_engine_under_a_name_of_the_programs_own_is_missed(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nproc_per_node 8 {TRAINER} --bf16 --ds_stage 2 --ds_config_path ds/config_2.json\n")
    with pytest.raises(MeshwrightError, match=r"ds/config_2\.json is not here"):
        check(script, cluster="8xH100", search=False).raise_violations()
    (tmp_path / "config_2.json").write_text(json.dumps(ZERO))
    assert check(script, cluster="8xH100", search=False).name == "dp8.z3.mbs2.gbs16"


@pytest.mark.parametrize("named", ["$CONF", '<(echo "[model]")'])
def test_a_configuration_that_nobody_can_know_is_asked_for(tmp_path: Path, named: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/bash\ntorchrun --nproc_per_node 8 -m torchtitan.train --job.config_file {named}\n")
    report = check("llama-3-8b", cluster="8xH100", source=script, search=False)
    assert [one.what for one in report.violations] == ["--job.config_file is not known (run.sh:2)"]


def test_checkers_of_logits_are_no_jobs_beside_a_training(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    words = "base.yml model_name=llama3-8b per_device_batch_size=1 max_target_length=2048 ici_fsdp_parallelism=8"
    script.write_text(
        f"#!/bin/bash\npython3 -m MaxText.train {words} remat_policy=full\n"
        "python3 -m MaxText.tests.forward_pass_logit_checker base.yml model_name=llama3-8b per_device_batch_size=2\n"
    )
    assert check(script, cluster="8xH100", search=False).name == "dp8.fsdp.mbs1.gbs8.rc-full"


def test_adapters_of_a_file_that_the_program_is_given_are_read(tmp_path: Path) -> None:
    (tmp_path / "zero3.json").write_text(json.dumps(ZERO))
    script = tmp_path / "run.sh"
    words = f"deepspeed {TRAINER} --bf16 --deepspeed zero3.json --use_peft True --peft_config_path lora"
    script.write_text(f"{words}\n")
    asked = check(script, cluster="8xH100", search=False)
    assert [one.what for one in asked.violations] == ["lora is not here"]
    (tmp_path / "lora").mkdir()
    settings = {"peft_type": "LORA", "r": 4, "target_modules": ["o_proj"], "task_type": "CAUSAL_LM"}
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(settings))
    report = check(script, cluster="8xH100", search=False)
    assert report.ok
    assert report.inputs is not None
    assert report.inputs.model.tuning.lora.rank == 4
    assert report.inputs.model.tuning.lora.targets == ("o_proj",)


def test_what_is_asked_of_adapters_names_the_option_that_is_given(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"deepspeed {TRAINER} --zero_stage 2 --deepspeed --lora_dim 8 --lora_module_name attention.\n")
    report = check(script, cluster="8xH100", search=False)
    assert report.violations[0].why.startswith("--lora_module_name is an option of the program itself")


def test_a_launcher_whose_program_is_not_known_says_which(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\ntorchrun --nproc_per_node 2 $(which modalities) run --config_file_path a.yaml\n")
    with pytest.raises(MeshwrightError, match=r"what torchrun starts is not known: \$\(which modalities\)"):
        check(script, cluster="8xH100", search=False).raise_violations()


@pytest.mark.parametrize("named", ["--config_file $1", "--config_file=$1"])
def test_a_launchers_file_that_is_an_argument_is_what_is_not_known(tmp_path: Path, named: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/bash\naccelerate launch {named} finetuning.py --model gpt2\n")
    with pytest.raises(MeshwrightError, match="what its launcher is started with is not known: argument 1"):
        check(script, cluster="8xH100", search=False).raise_violations()


def test_python_alone_on_one_visible_device_is_one_process(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"CUDA_VISIBLE_DEVICES=0 python {TRAINER} --bf16\n")
    asked = check(script, search=False)
    assert [one.fix for one in asked.violations] == [
        "say --gpus 1xH100, or how many of which there are; or --cluster FILE"
    ]
    script.write_text(f"CUDA_VISIBLE_DEVICES=0,1 python {TRAINER} --bf16\n")
    assert "the file does not say how many devices" in check(script, search=False).violations[0].why
