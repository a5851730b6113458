"""YAML of a whole fine-tuning as its users have it: LLaMA-Factory and Axolotl."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright import check
from meshwright.app.check import CheckReport
from meshwright.errors import InputError
from meshwright.fields.job import JobFields
from meshwright.planning.plan_source import plan_question
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.specs.optimizers import optimizer_named
from meshwright.targets import TARGETS
from meshwright.targets.fsdp import ALL_IN_16_BITS
from tests.targets.cases import job
from tests.targets.test_round_trip import row_of, written

FACTORY = """\
model_name_or_path: meta-llama/Llama-3.1-8B-Instruct
stage: sft
finetuning_type: lora
lora_target: all
dataset: alpaca_en_demo
template: llama3
cutoff_len: 4096
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""
AXOLOTL = """\
base_model: someone/Meta-Llama-3-8B
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: paged_adamw_32bit
bf16: auto
gradient_checkpointing: true
adapter: qlora
load_in_4bit: true
lora_r: 32
lora_target_linear: true
special_tokens:
  pad_token: <|end_of_text|>
"""
FSDP = "fsdp:\n  - full_shard\nfsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: false\n"
Z3 = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "overlap_comm": True},
}


def asked(folder: Path, text: str, engine: dict[str, Any] | None = None, **more: Any) -> CheckReport:
    (folder / "train.yaml").write_text(text)
    if engine is not None:
        (folder / "z3.json").write_text(json.dumps(engine, indent=2))
    return check(folder / "train.yaml", cluster="8xH100", **{"search": False, **more})


def test_a_file_of_llamafactory_says_model_length_and_adapters(tmp_path: Path) -> None:
    report = asked(tmp_path, FACTORY)
    assert not report.violations
    assert report.name == "dp8.mbs1.gbs64.rc-full"  # its layers are recomputed unless it says otherwise
    inputs = report.inputs
    assert inputs is not None
    assert (inputs.model.name, inputs.workload.seq_len) == ("llama-3.1-8b", 4096)
    assert inputs.model.tuning is not None
    assert inputs.model.tuning.lora is not None
    assert (inputs.model.tuning.lora.rank, inputs.model.tuning.lora.targets) == (8, ("all-linear",))
    assert any(said.option == "template" for said in report.launch.unpriced)


def test_a_launchers_file_holds_that_of_the_trainer_in_a_table(tmp_path: Path) -> None:
    table = "".join(f"    {line}\n" for line in FACTORY.splitlines())
    alone, within = asked(tmp_path, FACTORY), asked(tmp_path, f"slurm:\n  nodes: 2\njob:\n  trainer:\n{table}")
    assert (within.name, within.violations) == (alone.name, alone.violations)
    assert within.inputs.workload == alone.inputs.workload
    better = asked(tmp_path, f"job:\n{table}", search=True)
    assert better.fix is None or "not edited in place" in str(better.fix.why_not)
    with pytest.raises(InputError, match="several jobs"):
        asked(tmp_path, f"job:\n  first:\n{table}  second:\n{table}")


@pytest.mark.parametrize(
    ("text", "said"), [(FACTORY, "flash_attn: disabled\n"), (AXOLOTL, "attn_implementation: eager\n")]
)
def test_attention_that_is_not_fused_is_priced_so(tmp_path: Path, text: str, said: str) -> None:
    fused, plain = (asked(tmp_path, one).inputs for one in (text, text + said))
    assert isinstance(fused, JobInputs)
    assert isinstance(plain, JobInputs)
    assert (fused.workload.attention_kernel, plain.workload.attention_kernel) == ("flash", "materialised")


def test_axolotls_older_key_of_a_batch_says_its_micro_batches(tmp_path: Path) -> None:
    older = AXOLOTL.replace("gradient_accumulation_steps: 4", "batch_size: 8")
    assert asked(tmp_path, older).name == asked(tmp_path, AXOLOTL).name


@pytest.mark.parametrize(
    ("around", "arguments", "software"),
    [
        ("dynamo_backend: 'NO'\n", {}, "pytorch-eager-no-sync"),
        ("dynamo_backend: INDUCTOR\n", {}, "pytorch-compiled-no-sync"),
        ("dynamo_config:\n  dynamo_backend: INDUCTOR\n", {}, "pytorch-compiled-no-sync"),
        ("", {"torch_compile": True}, "pytorch-compiled-no-sync"),
    ],
)
def test_compiled_layers_are_priced_so(
    tmp_path: Path, around: str, arguments: dict[str, object], software: str
) -> None:
    said = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "bf16": True} | arguments
    (tmp_path / "training_args.json").write_text(json.dumps(said))
    file = tmp_path / "around.yaml"
    file.write_text(f"compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\n{around}num_processes: 8\n")
    report = check("qwen3-0.6b", cluster="8xH100", source=file, search=False)
    assert report.inputs is not None
    assert report.inputs.workload.software == software


def test_a_backend_of_the_compiler_that_is_not_priced_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "around.yaml"
    file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\ndynamo_backend: ONNXRT\nnum_processes: 8\n"
    )
    (tmp_path / "training_args.json").write_text('{"per_device_train_batch_size": 1}')
    report = check("qwen3-0.6b", cluster="8xH100", source=file, search=False)
    assert [one.field for one in report.violations] == ["dynamo_backend"]


def test_files_of_other_backends_are_not_read_as_copies(tmp_path: Path) -> None:
    found = asked(tmp_path, FACTORY + "tensor_model_parallel_size: 2\n").violations
    assert [one.field for one in found] == ["tensor_model_parallel_size"]


def test_rounding_in_training_is_refused(tmp_path: Path) -> None:
    found = asked(tmp_path, AXOLOTL + "qat:\n  weight_dtype: nvfp4\n").violations
    assert [one.field for one in found] == ["qat"]


CHAT = "deepspeed main.py --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 4 --deepspeed"


def started(folder: Path, command: str) -> CheckReport:
    (folder / "run.sh").write_text(f"{command} --output_dir out\n")
    return check(folder / "run.sh", cluster="8xH100", search=False)


def test_a_program_that_makes_its_engine_itself_is_not_read_as_copies(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"main.py takes --deepspeed"):
        started(tmp_path, CHAT)
    asked_for = started(tmp_path, f"{CHAT} --zero_stage $ZERO").violations
    assert [(one.code, one.field) for one in asked_for] == [("ASK", "--zero_stage")]


@pytest.mark.parametrize(
    ("words", "row"),
    [
        ("--zero_stage 3 --dtype bf16", "dp8.z3.mbs4.gbs32"),
        ("--zero_stage 2 --gradient_checkpointing --gradient_accumulation_steps 2", "dp8.z2.mbs4.gbs64.rc-full.nodpov"),
        ("--zero_stage 3 --offload", "dp8.z3.mbs4.gbs32.off-wog"),
    ],
)
def test_the_engine_of_deepspeed_chat_is_made_from_its_options(tmp_path: Path, words: str, row: str) -> None:
    report = started(tmp_path, f"{CHAT} {words}")
    assert report.name == row
    assert any("taken as that of DeepSpeed-Chat" in note for note in report.warnings)
    assert report.inputs is not None
    assert report.inputs.workload.precision.name == ("bf16" if "bf16" in words else "fp16")


def test_adapters_of_deepspeed_chat_freeze_the_products_of_layers_alone(tmp_path: Path) -> None:
    words = f'{CHAT} --zero_stage 2 --lora_dim 16 --lora_module_name "layers."'
    whole, alone = (started(tmp_path, one).inputs for one in (words, f"{words} --only_optimize_lora"))
    assert whole is not None
    assert alone is not None
    found = [one.model.lora for one in (whole, alone)]
    assert [(one.rank, one.targets, one.train) for one in found if one is not None] == [
        (16, ("all-linear",), ("embedding", "head", "norms")),
        (16, ("all-linear",), ()),
    ]


TRAIN = (
    "torchrun --nproc_per_node 8 sft.py --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 1"
)


@pytest.mark.parametrize(
    "words",
    [
        "--use_lora True --lora_rank 8 --lora_trainable q_proj,v_proj --modules_to_save embed_tokens,lm_head",
        "--enable_lora --lora_r 8 --lora_target_modules q_proj v_proj --lora_modules_to_save embed_tokens lm_head",
    ],
)
def test_adapters_are_read_by_whatever_name_a_program_has_for_them(tmp_path: Path, words: str) -> None:
    inputs = started(tmp_path, f"{TRAIN} {words} --lora_dropout 0.05 --use_gradient_checkpointing True").inputs
    assert inputs is not None
    lora = inputs.model.lora
    assert lora is not None
    assert (lora.rank, lora.targets, lora.train) == (8, ("q_proj", "v_proj"), ("embedding", "head"))
    assert lora.dropout == 0.05


@pytest.mark.parametrize(
    ("optimizer", "read"), [("adamw", True), ("FusedAdam", True), ("adam_mini", False), ("sgd", False)]
)
def test_an_optimizer_of_the_program_itself_is_adam_or_is_refused(tmp_path: Path, optimizer: str, read: bool) -> None:
    found = started(tmp_path, f"{TRAIN} --optimizer {optimizer}").violations
    assert [one.field for one in found if one.code == "OPTIONS"] == ([] if read else ["--optimizer"])


def test_weights_in_four_bits_are_trained_through_adapters(tmp_path: Path) -> None:
    found = started(tmp_path, f"{TRAIN} --load_in_kbits 4").violations
    assert [one.what for one in found] == ["lora_r and lora_target_modules of the adapters are not known"]
    inputs = started(tmp_path, f"{TRAIN} --bits 4 --lora_r 64 --lora_target_modules all-linear").inputs
    assert inputs is not None
    assert inputs.model.lora is not None
    assert inputs.model.lora.base == "nf4"


@pytest.mark.parametrize(
    "option",
    ["--freeze_layers 12", "--pre_seq_len 128", "--parallel_mode ring", "--use_galore", "--medusa_num_heads 3"],
)
def test_what_a_program_itself_changes_is_refused_and_not_noted_alone(tmp_path: Path, option: str) -> None:
    on, off = (started(tmp_path, f"{TRAIN} {one}").violations for one in (option, f"{option.split()[0]} false"))
    assert [one.field for one in on if one.code == "OPTIONS"] == [option.split()[0]]
    assert not [one for one in off if one.code == "OPTIONS"]


def test_a_condition_that_nobody_knows_asks_for_the_options_that_it_adds_alone(tmp_path: Path) -> None:
    head = "ARGS=(--max_seq_length 2048)\nif nvidia-smi | grep -q A100; then ARGS+=({}); fi\n"
    added, other = (
        started(tmp_path, head.format(one) + TRAIN + ' "${ARGS[@]}"') for one in ("--bf16 True", "--tf32 1")
    )
    assert [one.field for one in added.violations if one.code == "ASK"] == ["--bf16"]
    assert not [one for one in other.violations if one.code == "ASK"]
    started(tmp_path, head.format("--bf16 True") + TRAIN + ' "${ARGS[@]}"')
    said = check(tmp_path / "run.sh", cluster="8xH100", search=False, settings="bf16=true")
    assert not [one for one in said.violations if one.code == "ASK"]


def test_a_program_named_for_adapters_trains_them(tmp_path: Path) -> None:
    words = f"{TRAIN} --lora_rank 8 --trainable q_proj,v_proj"
    assert [one.what for one in started(tmp_path, words).violations if one.code == "ASK"] == [
        "whether adapters are trained is not known"
    ]
    inputs = started(tmp_path, words.replace("sft.py", "run_sft_with_peft.py")).inputs
    assert inputs is not None
    assert inputs.model.lora is not None


@pytest.mark.parametrize(("kind", "base"), [("lora", None), ("qlora", "nf4")])
def test_one_word_says_what_is_trained(tmp_path: Path, kind: str, base: str | None) -> None:
    words = f"{TRAIN} --finetuning_type {kind} --lora_rank 8 --lora_target q_proj,v_proj"
    inputs = started(tmp_path, words).inputs
    assert inputs is not None
    assert inputs.model.lora is not None
    assert inputs.model.lora.base == base
    refused = started(tmp_path, f"{TRAIN} --finetuning_type p_tuning").violations
    assert [one.field for one in refused if one.code == "OPTIONS"] == ["--finetuning_type"]


@pytest.mark.parametrize(
    "option", ["--pooling_mode mean", "--num_labels 6", "--pool_type=eos", "--gradcache_chunk_size 8"]
)
def test_trainers_of_embeddings_and_classes_are_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(InputError, match="trains embeddings, classes or masked words"):
        started(tmp_path, f"{TRAIN} {option}")


def test_a_policy_that_pools_is_refused_as_a_policy_alone(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        started(tmp_path, f"{TRAIN} --ref_model_path x --pooling_type last")
    whys = [one.why.partition(" (")[0] for one in caught.value.problems]
    assert whys == ["it trains a policy with the models that judge it"]


def test_keys_of_another_program_are_no_defaults_of_llamafactory(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(
        "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: lora\ncutoff_len: 2048\n"
        "train_micro_batch_size_per_gpu: 4\ngradient_accumulation_steps: 4\nlora_rank: 8\n"
    )
    found = check(tmp_path / "sft.yaml", cluster="8xH100", search=False).violations
    assert [one.field for one in found if one.code == "OPTIONS"] == ["train_micro_batch_size_per_gpu"]


def test_a_bare_no_is_no_engine_of_accelerate(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: NO\nnum_processes: 1\n")
    found = check(tmp_path / "a.yaml", cluster="1xH100", search=False).violations
    assert [(one.code, one.field) for one in found if one.field != "model"] == [("ASK", "per_device_train_batch_size")]


def test_a_batch_of_the_program_itself_is_no_step_of_the_trainer(tmp_path: Path) -> None:
    found = started(tmp_path, f"{TRAIN} --train_bsz_per_gpu 4 --eval_batch_size 8 --preprocessing_batch_size 100")
    assert [one.field for one in found.violations if one.code == "OPTIONS"] == ["--train_bsz_per_gpu"]


def test_a_batch_that_trainer_and_engine_say_differently_is_refused(tmp_path: Path) -> None:
    engine = {**Z3, "train_micro_batch_size_per_gpu": 2}
    (tmp_path / "z3.json").write_text(json.dumps(engine))
    found = started(tmp_path, f"{TRAIN} --bf16 True --deepspeed z3.json".replace("size 1", "size 16")).violations
    assert [(one.field, "the trainer has 16" in one.why) for one in found] == [("train_micro_batch_size_per_gpu", True)]


@pytest.mark.parametrize(
    ("text", "optimizer"),
    [
        (FACTORY + "use_galore: true\ngalore_rank: 64\n", "galore:rank=64,every=200"),
        (FACTORY + "use_adam_mini: true\n", "adam-mini"),
        (FACTORY + "optim: galore_adamw\noptim_args: rank=32, update_proj_gap=100\n", "galore:rank=32,every=100"),
    ],
)
def test_optimizers_with_smaller_states_are_priced(tmp_path: Path, text: str, optimizer: str) -> None:
    whole = text.replace("finetuning_type: lora", "finetuning_type: full")
    small, usual = asked(tmp_path, whole).inputs, asked(tmp_path, FACTORY).inputs
    assert small is not None
    assert usual is not None
    assert small.workload.optimizer == optimizer
    held = [optimizer_named(one.workload.optimizer).each_bytes(4.0) for one in (small, usual)]
    assert held[0] <= held[1]


def test_a_file_that_leaves_accumulation_out_has_that_of_the_trainer(tmp_path: Path) -> None:
    engine = {name: value for name, value in Z3.items() if name != "gradient_accumulation_steps"}
    (tmp_path / "z3.json").write_text(json.dumps(engine | {"train_batch_size": None}))
    found = started(tmp_path, f"{TRAIN} --bf16 True --gradient_accumulation_steps 8 --deepspeed z3.json")
    assert found.name == "dp8.z3.mbs1.gbs64"


@pytest.mark.parametrize(
    "program", ["run_glue.py", "train_text_image_embedding.py", "train_scorers.py", "spin/run_spin.py"]
)
def test_programs_that_train_something_else_are_told_by_their_names(tmp_path: Path, program: str) -> None:
    with pytest.raises(InputError, match=r"embeddings, classes|pairs or rewards"):
        started(tmp_path, TRAIN.replace("sft.py", program))


def test_a_stage_of_rewards_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pairs or rewards"):
        started(tmp_path, f"{TRAIN.replace('sft.py', 'train_bash.py')} --stage rm --finetuning_type full")


def test_options_of_llamafactory_have_its_own_defaults(tmp_path: Path) -> None:
    words = f"{TRAIN.replace('sft.py', 'src/train_bash.py')} --stage sft --template llama2"
    adapted = started(tmp_path, f"{words} --lora_target q_proj,v_proj")
    assert adapted.inputs is not None
    assert adapted.inputs.model.lora is not None
    assert (adapted.name, adapted.inputs.model.lora.rank) == ("dp8.mbs1.gbs8.rc-full", 8)
    every = started(tmp_path, f"{words} --lora_target all")
    assert every.inputs.model.lora.targets == ("all-linear",)
    whole = started(tmp_path, f"{words} --finetuning_type full --disable_gradient_checkpointing True")
    assert whole.inputs is not None
    assert (whole.name, whole.inputs.model.lora) == ("dp8.mbs1.gbs8", None)


def test_the_trainers_own_engine_stands_over_that_of_accelerate(tmp_path: Path) -> None:
    (tmp_path / "z3.json").write_text(json.dumps(Z3))
    (tmp_path / "two.yaml").write_text("distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {}\n")
    command = TRAIN.replace("torchrun --nproc_per_node 8", "accelerate launch --config_file two.yaml")
    assert started(tmp_path, f"{command} --bf16 True --deepspeed z3.json").name == "dp8.z3.mbs1.gbs8"


def test_runs_that_differ_in_length_are_different_jobs(tmp_path: Path) -> None:
    runs = " && ".join(f"{TRAIN} --max_seq_length {length}" for length in (4096, 32768))
    assert [one.what for one in started(tmp_path, runs).violations] == ["the script starts 2 different jobs"]


def test_the_engine_is_in_the_file_that_the_yaml_names(tmp_path: Path) -> None:
    text = FACTORY.replace("finetuning_type: lora", "finetuning_type: full") + "deepspeed: engines/z3.json\n"
    assert [v.what for v in asked(tmp_path, text).violations] == ["engines/z3.json is not here"]
    assert asked(tmp_path, text, Z3).name == "dp8.z3.mbs1.gbs64.rc-full"
    two = asked(tmp_path, text, {**Z3, "train_micro_batch_size_per_gpu": 4})
    assert "the trainer has 1" in two.violations[0].why


def test_the_diff_changes_both_files_and_names_the_new_one(tmp_path: Path) -> None:
    text = FACTORY.replace("finetuning_type: lora", "finetuning_type: full") + "deepspeed: z3.json\n"
    fix = asked(tmp_path, text, Z3, search=True).fix
    assert fix is not None
    assert fix.diff
    assert "+disable_gradient_checkpointing: true" in fix.diff
    assert "model_name_or_path" not in {change.option for change in fix.changes}
    fix = asked(tmp_path, AXOLOTL + FSDP, search=True).fix
    assert fix is not None
    assert "-fsdp_config:" in fix.diff
    assert "+deepspeed: ds_config.json" in fix.diff
    assert [name for name, _ in fix.beside] == ["ds_config.json"]


def test_axolotls_feed_forward_parts_are_in_as_many_pieces_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "sft.yml"
    path.write_text(f"{AXOLOTL}tiled_mlp: true\ntiled_mlp_num_shards: 4\n")
    report = check(path, gpus="8xH100", search=False)
    assert isinstance(report.inputs, JobInputs)
    assert report.inputs.workload.mlp_tiles == 4
    path.write_text(f"{AXOLOTL}tiled_mlp: true\n")
    refused = [one.fix for one in check(path, gpus="8xH100", search=False).violations]
    assert "give tiled_mlp_num_shards" in refused


def test_a_file_of_axolotl_says_fsdp_and_stored_weights(tmp_path: Path) -> None:
    report = asked(tmp_path, AXOLOTL + FSDP)
    assert not report.violations
    assert report.name == "dp8.fsdp.mbs2.gbs64.rc-full"
    assert report.inputs is not None
    assert report.inputs.model.tuning is not None
    assert report.inputs.model.tuning.lora is not None
    assert report.inputs.model.tuning.lora.base == "nf4"
    assert any("taken as llama-3-8b" in note for note in report.warnings)
    both = asked(tmp_path, AXOLOTL + FSDP + "deepspeed: z3.json\n", Z3)
    assert any("one engine runs" in violation.why for violation in both.violations)


def test_the_command_line_stands_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(FACTORY)
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/bash\nFORCE_TORCHRUN=1 llamafactory-cli train sft.yaml per_device_train_batch_size=2 "
        "cutoff_len=8192 learning_rate=1e-5\n"
    )
    report = check(script, cluster="8xH100", search=False)
    assert report.name == "dp8.mbs2.gbs128.rc-full"
    assert report.inputs is not None
    assert report.inputs.workload.seq_len == 8192
    assert report.launch is not None
    assert "learning_rate" in {one.option for one in report.launch.unpriced}
    places = {one.option: one.place for one in report.launch.said}
    assert places["cutoff_len"] == places["per_device_train_batch_size"] == "run.sh:2"


def test_options_of_axolotl_stand_over_its_file(tmp_path: Path) -> None:
    """They have names of Megatron-LM's, which does not make a script one of its."""
    (tmp_path / "sft.yml").write_text(AXOLOTL)
    script = tmp_path / "run.sh"
    for command in (
        "axolotl train sft.yml --micro-batch-size 4",
        "python -m axolotl.cli.train sft.yml --micro_batch_size=4",
    ):
        script.write_text(f"#!/bin/bash\n{command} --sequence_len 1024 -- --nproc_per_node=8\n")
        report = check(script, cluster="8xH100", search=False)
        assert report.inputs is not None
        assert report.inputs.workload.seq_len == 1024
        assert report.launch is not None
        assert report.launch.row is not None
        assert report.launch.row.mbs == 4


@pytest.mark.parametrize(
    ("engine", "sharding"),
    [
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n", "fsdp"),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n", "fsdp-keep"),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n", "fsdp"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n", "z2"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: z3.json\n", "z3"),
        ("distributed_type: MULTI_GPU\n", "z0"),
    ],
)
@pytest.mark.parametrize(
    ("name", "text", "program"),
    [
        ("sft.yaml", "factory", "src/train.py"),
        ("sft.yml", "axolotl", "-m axolotl.cli.train"),
    ],
)
def test_what_shards_is_said_around_the_trainer(
    tmp_path: Path, engine: str, sharding: str, name: str, text: str, program: str
) -> None:
    """`accelerate launch --config_file` names the engine of a trainer that has a file of its own."""
    (tmp_path / name).write_text({"factory": FACTORY, "axolotl": AXOLOTL}[text])
    (tmp_path / "z3.json").write_text(json.dumps(Z3))
    (tmp_path / "around.yaml").write_text(f"compute_environment: LOCAL_MACHINE\nnum_processes: 8\n{engine}")
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/bash\naccelerate launch --config_file around.yaml {program} {name}\n")
    report = check(script, search=False)
    assert report.launch is not None
    assert report.launch.row is not None
    assert (report.launch.row.sharding, report.launch.row.dp, report.launch.started) == (sharding, 8, 8)


def test_shards_that_the_trainer_has_no_key_for_are_refused(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(FACTORY)
    around = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n"
    (tmp_path / "around.yaml").write_text(f"compute_environment: LOCAL_MACHINE\n{around}")
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\naccelerate launch --config_file around.yaml src/train.py sft.yaml\n")
    with pytest.raises(InputError, match="HYBRID_SHARD"):
        check(script, cluster="8xH100", search=False)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (FACTORY.replace("stage: sft", "stage: dpo"), "stage is 'dpo'"),
        (FACTORY.replace("type: lora", "type: freeze"), "finetuning_type is 'freeze'"),
        (FACTORY + "use_badam: true\n", "use_badam is True"),
        (FACTORY + "do_train: false\ndo_predict: true\n", "do_predict is True"),
        (AXOLOTL + "rl: dpo\n", "rl is 'dpo'"),
        (AXOLOTL.replace("optimizer: paged_adamw_32bit", "optimizer: came_pytorch"), "optimizer is 'came_pytorch'"),
    ],
)
def test_what_cannot_be_priced_is_named(tmp_path: Path, text: str, what: str) -> None:
    assert what in {violation.what for violation in asked(tmp_path, text).violations}


def test_an_engine_is_found_from_the_root_of_its_repository(tmp_path: Path) -> None:
    folder = tmp_path / "examples" / "full"
    folder.mkdir(parents=True)
    (tmp_path / "examples" / "engines").mkdir()
    (tmp_path / "examples" / "engines" / "z3.json").write_text(json.dumps(Z3))
    text = FACTORY.replace("finetuning_type: lora", "finetuning_type: full\ndeepspeed: examples/engines/z3.json")
    assert "z3" in str(asked(folder, text).name)


def test_weights_that_are_loaded_in_16_bits_have_no_others(tmp_path: Path) -> None:
    """Without an engine that makes copies in fp32, all of a model trained in bf16 is in bf16: FSDP1 makes some."""
    whole = AXOLOTL.replace("adapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_target_linear: true\n", "")
    first = whole + FSDP.replace("fsdp_version: 2", "fsdp_version: 1")
    found = [asked(tmp_path, text).inputs for text in (whole, whole + FSDP, first)]
    assert [one.workload.precision.master for one in found if isinstance(one, JobInputs)] == [None, None, "fp32"]


@pytest.mark.parametrize("line", ["fsdp.mbs2", "fsdp-keep.rc-full", "hsdp4.off-wog", "cp2.fsdp", "cp2.hsdp4.mbs2"])
def test_what_fsdp2_trains_as_loaded_reads_back(line: str) -> None:
    one = job(line, "llama-3.1-8b")
    one = replace(one, workload=replace(one.workload, precision=ALL_IN_16_BITS))
    launch = TARGETS["axolotl"].read(written("axolotl", one), None)
    assert not launch.problems
    assert launch.row is not None
    assert launch.row.format() == row_of(one).format()
    assert launch.workload["precision"] == ALL_IN_16_BITS


@pytest.mark.parametrize("target", ["axolotl", "llamafactory"])
def test_copies_that_are_trained_as_loaded_need_no_engine_and_read_back(target: str) -> None:
    one = job("mbs2.rc-full", "llama-3.1-8b", "1xA100-80")
    one = replace(one, workload=replace(one.workload, precision=ALL_IN_16_BITS))
    files = written(target, one)
    assert len(files) == 1
    launch = TARGETS[target].read(files, None)
    assert not launch.problems
    assert launch.row is not None
    assert launch.row.format() == row_of(one).format()
    assert launch.workload["precision"] == ALL_IN_16_BITS
    away = job("mbs2.rc-full.off-og", "llama-3.1-8b", "1xA100-80")
    away = replace(away, workload=replace(away.workload, precision=ALL_IN_16_BITS))
    assert "precision" in {problem.field for problem in TARGETS[target].refused(away)}


@pytest.mark.parametrize(
    ("line", "field"), [("fsdp.mbs2", "precision"), ("tp2.nosp.z1", "tp"), ("cp2.z3", "cp"), ("tp2.nosp.fsdp", "tp")]
)
def test_what_axolotl_would_run_otherwise_is_refused(line: str, field: str) -> None:
    assert field in {problem.field for problem in TARGETS["axolotl"].refused(job(line, "llama-3.1-8b"))}


def test_inputs_of_layers_go_to_the_host(tmp_path: Path) -> None:
    report = asked(tmp_path, AXOLOTL + "activation_offloading: true\n")
    assert report.name == "dp8.mbs2.gbs64.rc-full.off-a"


def test_a_pattern_over_all_layers_names_its_modules(tmp_path: Path) -> None:
    pattern = r"lora_target_modules: 'model.layers.[\d]+.(mlp|self_attn).(up|down|q|v)_proj'"
    report = asked(tmp_path, AXOLOTL.replace("lora_target_linear: true", pattern))
    assert report.inputs is not None
    tuning = report.inputs.model.tuning
    assert tuning is not None
    assert tuning.lora is not None
    assert tuning.lora.targets == ("up_proj", "down_proj", "q_proj", "v_proj")
    some = pattern.replace("[\\d]+", "(3|7)")
    report = asked(tmp_path, AXOLOTL.replace("lora_target_linear: true", some))
    assert [one.field for one in report.violations] == ["lora_target_modules"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (AXOLOTL + "quantize_moe_experts: true\n", "quantize_moe_experts"),
        (AXOLOTL + "processor_type: AutoProcessor\n", "processor_type"),
        (FACTORY + "use_asft_loss: true\n", "use_asft_loss"),
        (FACTORY + "mixture_of_depths: convert\n", "mixture_of_depths"),
        (FACTORY.replace("Llama-3.1-8B-Instruct", "Llama-3.2-11B-Vision"), "model_name_or_path"),
    ],
)
def test_what_no_plan_holds_is_refused_by_its_key(tmp_path: Path, text: str, key: str) -> None:
    assert key in [one.field for one in asked(tmp_path, text).violations]


def test_fsdp_of_the_trainer_shards(tmp_path: Path) -> None:
    report = asked(tmp_path, FACTORY.replace("lora", "full") + "fsdp: full_shard auto_wrap\n")
    assert report.name == "dp8.fsdp.mbs1.gbs64.rc-full"


def test_a_program_that_loads_weights_in_16_bits_keeps_no_others_without_an_engine(tmp_path: Path) -> None:
    script = tmp_path / "sft.sh"
    text = "torchrun --nproc_per_node 8 sft.py --model_name_or_path meta-llama/Llama-3.2-1B --bf16 true {} "
    formats = []
    for more in ("", "--torch_dtype bfloat16", "--torch_dtype bfloat16 --use_peft"):
        script.write_text(text.format(more) + "--per_device_train_batch_size 1 --max_seq_length 2048\n")
        inputs = check(script, cluster="8xH100", search=False).inputs
        assert isinstance(inputs, JobInputs)
        formats.append(inputs.workload.precision.master)
    assert formats == ["fp32", None, "fp32"]


def test_targets_that_a_model_lacks_are_left_out_where_others_match(tmp_path: Path) -> None:
    text = AXOLOTL.replace("lora_target_linear: true", "lora_target_modules: [q_proj, w_extra]")
    report = asked(tmp_path, text)
    assert report.inputs is not None
    tuning = report.inputs.model.tuning
    assert tuning is not None
    assert tuning.lora is not None
    assert tuning.lora.targets == ("q_proj",)
    assert any("has no w_extra" in note for note in report.warnings)


def test_states_in_8_bits_go_with_weights_in_16(tmp_path: Path) -> None:
    whole = AXOLOTL.replace("adapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_target_linear: true\n", "")
    inputs = asked(tmp_path, whole.replace("paged_adamw_32bit", "adamw_bnb_8bit")).inputs
    assert isinstance(inputs, JobInputs)
    assert (inputs.workload.optimizer, inputs.workload.precision.master) == ("adamw-8bit", None)


def test_a_configuration_of_accelerate_may_be_json(tmp_path: Path) -> None:
    keys = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "mixed_precision": "bf16"}
    fsdp = {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_activation_checkpointing": True}
    file = tmp_path / "fsdp2.json"
    file.write_text(json.dumps({**keys, "num_processes": 4, "fsdp_config": fsdp}))
    report = check("qwen3-0.6b", cluster="4xH100", source=file, settings=["per_device_train_batch_size=2"])
    assert report.name == "dp4.fsdp.mbs2.gbs8.rc-full"
    assert report.fix is not None
    assert any(change.option == "fsdp_config.fsdp_activation_checkpointing" for change in report.fix.changes)


@pytest.mark.parametrize("start", ["NNODES=2 NPROC_PER_NODE=8 llamafactory-cli", "torchrun --nnodes 2 src/launcher.py"])
def test_copies_of_hybrid_shard_are_the_nodes_of_the_command(tmp_path: Path, start: str) -> None:
    text = FACTORY.replace("finetuning_type: lora", "finetuning_type: full") + "fsdp: hybrid_shard auto_wrap\n"
    (tmp_path / "sft.yaml").write_text(text)
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{start} train sft.yaml\n".replace("py train", "py"))
    report = check(source=tmp_path / "run.sh", gpus="2x8xH100", search=False)
    assert ".hsdp8." in str(report.name)


@pytest.mark.parametrize("target", ["axolotl", "llamafactory"])
@pytest.mark.parametrize("packing", ["pack", "pad", "bins"])
def test_sequences_of_unlike_lengths_share_rows_as_the_trainers_pack_them(target: str, packing: str) -> None:
    fields = JobFields(model="llama-3.1-8b", gpus="8xH100", lora="r=16", lengths="lognormal:mean=512,sigma=1,max=4096")
    one = plan_question("dp8.z2.mbs2.rc-full", replace(fields, packing=packing)).job
    problems = TARGETS[target].problems(one)
    assert [problem.fix for problem in problems] == ([] if packing == "pack" else ["use --packing pack"])
    if packing == "pack":
        key = {"axolotl": "sample_packing: true", "llamafactory": "packing: true"}[target]
        assert any(key in text for text in written(target, one).values())


@pytest.mark.parametrize(
    ("engine", "compute"),
    [
        ({}, "bf16"),
        ({"fp16": {"enabled": "auto"}}, "bf16"),
        ({"bf16": {"enabled": "auto"}}, "bf16"),
        ({"bf16": {"enabled": False}}, "fp32"),
    ],
)
def test_a_format_that_the_engine_leaves_out_is_the_trainers(
    tmp_path: Path, engine: dict[str, object], compute: str
) -> None:
    """It was read as fp32; and programs of the Trainer are called `pretrain_`, as Megatron's are."""
    (tmp_path / "z2.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, **engine}))
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/bash\ndeepspeed --num_gpus 8 pretrain_text.py --deepspeed z2.json --bf16 "
        "--model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 2 --max_seq_length 1024\n"
    )
    report = check(script, cluster="8xH100", search=False)
    assert report.launch is not None
    assert report.launch.workload["precision"].compute == compute


def test_a_program_that_is_no_python_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        started(tmp_path, "petro-train --per_device_train_batch_size 4")
    assert "it starts petro-train" in caught.value.problems[0].why


@pytest.mark.parametrize("option", ["--video_path clips", "--image_root images"])
def test_trainers_that_are_given_images_see(tmp_path: Path, option: str) -> None:
    with pytest.raises(InputError, match="images or sound go through a tower"):
        started(tmp_path, f"{TRAIN} {option}")


@pytest.mark.parametrize(("on", "sharding"), [(True, "z1"), (False, "z0")])
def test_an_engine_whose_table_of_shards_is_a_switch(tmp_path: Path, on: bool, sharding: str) -> None:
    (tmp_path / "z.json").write_text(json.dumps({**Z3, "zero_optimization": on}))
    row = started(tmp_path, f"{TRAIN} --deepspeed z.json").launch.row
    assert row is not None
    assert row.sharding == sharding


def test_nothing_is_asked_of_a_trainer_whose_model_sees(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        started(tmp_path, f'{TRAIN} --image_folder images --adapter_dir "$(ls -d out)"')
    assert [one.field for one in caught.value.problems] == ["--image_folder"]


def test_a_policy_is_told_before_the_file_that_it_is_started_with(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"grpo.py is started"):
        started(tmp_path, "accelerate launch --num_processes 8 grpo.py --config recipes/policy.yaml")
    with pytest.raises(InputError, match=r"recipes/sft.yaml is not here"):
        started(tmp_path, "accelerate launch --num_processes 8 sft.py --config recipes/sft.yaml")
