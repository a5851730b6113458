"""What MaxText's YAML says of formats is what is priced, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright
from meshwright import check
from meshwright.app.export import export
from meshwright.errors import InputError
from meshwright.formats.launch_file import LaunchFile
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.targets import fsdp, target_named
from meshwright.targets.maxtext import QUANTIZATIONS, as_read
from tests.targets.cases import job
from tests.targets.test_round_trip import written

YAML = "per_device_batch_size: 2\nmax_target_length: 4096\nici_fsdp_parallelism: 8\nquantization: '{}'\n"


def read(quantization: str) -> LaunchFile:
    target = target_named("maxtext")
    assert target.read is not None
    return target.read({"config.yml": YAML.format(quantization)}, 8)


@pytest.mark.parametrize(
    ("quantization", "compute"),
    [("", "bf16"), ("fp8", "fp8"), ("te_fp8_currentscaling", "fp8"), ("te_mxfp8", "mxfp8"), ("int8", "int8")],
)
def test_quantized_products_are_read(quantization: str, compute: str) -> None:
    found = read(quantization)
    assert not found.problems
    assert found.workload["precision"].compute == compute


def test_a_format_that_is_not_priced_is_refused() -> None:
    assert [problem.field for problem in read("int4").problems] == ["quantization"]


def test_a_file_over_another_one_than_the_usual_is_refused() -> None:
    target = target_named("maxtext")
    assert target.read is not None
    found = target.read({"config.yml": "base_config: inference/jetstream.yml\n" + YAML.format("")}, 8)
    assert [problem.field for problem in found.problems] == ["base_config"]


@pytest.mark.parametrize("dtype", QUANTIZATIONS)
def test_formats_come_back(dtype: str) -> None:
    plans = meshwright.plan("llama-3.1-8b", gpus="8xB200", target="maxtext", dtype=dtype)
    target = target_named("maxtext")
    assert target.read is not None
    found = target.read(dict(export(plans.best, "maxtext").files), 8)
    assert not found.problems
    assert found.workload["precision"].name == dtype


SCRIPT = """\
#!/bin/bash
NODES=${NODES:-2}
python3 -m MaxText.train MaxText/configs/base.yml run_name="run-$(date +%s)" model_name=llama2-7b \\
  dcn_data_parallelism=$NODES ici_fsdp_parallelism=8 per_device_batch_size=4 max_target_length=4096
"""


def test_a_command_says_the_keys_and_the_model(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(SCRIPT)
    report = meshwright.check(tmp_path / "train.sh", cluster="16xH100", search=False)
    assert report.name == "dp16.hsdp8.mbs4.gbs64.rc-full"
    assert report.to_dict()["inputs"]["model"]["name"] == "llama-2-7b"
    assert report.launch is not None
    placed = {said.option: (said.value, said.place) for said in report.launch.said}
    assert placed["dcn_data_parallelism"] == ("2", "train.sh:2")
    assert not any("not read" in note for note in report.launch.notes)


def test_words_of_a_command_stand_over_the_file_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text("model_name: llama3.1-8b\n" + YAML.format(""))
    command = "python -m maxtext.trainers.pre_train.train {} per_device_batch_size={} run_name=x\n"
    (tmp_path / "train.sh").write_text(command.format("configs/mine.yml", 3))
    report = meshwright.check(tmp_path / "train.sh", cluster="8xH100", search=False)
    assert report.name == "dp8.fsdp.mbs3.gbs24.rc-full"
    (tmp_path / "train.sh").write_text(command.format("configs/mine.yml", "$(cat size)"))
    report = meshwright.check(tmp_path / "train.sh", cluster="8xH100", search=False)
    assert report.violations[0].what == "per_device_batch_size is not known"
    more = command.format("configs/mine.yml", 3).replace("run_name", "{} run_name")
    (tmp_path / "train.sh").write_text(more.format("$(cat words)"))  # which may set any key, the batch again
    report = meshwright.check(tmp_path / "train.sh", cluster="8xH100", search=False)
    assert report.violations[0].what == "which keys are set here is not known (train.sh:1)"
    (tmp_path / "train.sh").write_text(more.format("$EXTRA"))
    assert meshwright.check(tmp_path / "train.sh", cluster="8xH100", search=False).name == "dp8.fsdp.mbs3.gbs24.rc-full"
    (tmp_path / "train.sh").write_text(command.format("configs/yours.yml", 3))
    report = meshwright.check(tmp_path / "train.sh", cluster="8xH100", search=False)
    assert report.violations[0].what == "configs/yours.yml is not here"


def test_adapters_that_it_has_not_are_the_reason_for_no_other_plan(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text(YAML.format(""))
    report = meshwright.check("llama-3.1-8b", source=tmp_path / "config.yml", gpus="8xH100", lora="r=8")
    assert any("no other plan was searched: the model is trained with adapters" in one for one in report.warnings)


def test_pipelines_of_unequal_stages_are_not_searched(tmp_path: Path) -> None:
    """32 layers on 96 devices: the quickest pipelines have 3 or 6 stages, which it does not start."""
    found = meshwright.plan("mixtral-8x7b", gpus="96xH100", global_batch=768, target="maxtext", top=1)
    assert not target_named("maxtext").problems(found.plans[0].job)


@pytest.mark.parametrize(
    ("keys", "recompute"),
    [
        ("remat_policy: full\n", ".rc-full"),
        ("remat_policy: minimal\n", ".rc-sel"),
        ("remat_policy: save_dot_with_context_except_mlp\n", ".rc-sel-mlp"),
        ("remat_policy: minimal_with_context\n", ""),
        ("remat_policy: custom\n", ".rc-full"),
        ("remat_policy: custom\ndecoder_layer_input: offload\n", ".rc-full.off-a"),
        (
            "remat_policy: custom\nquery_proj: device\nkey_proj: device\nvalue_proj: device\nout_proj: device\n",
            ".rc-sel-core_attn-mlp",
        ),
    ],
)
def test_what_a_policy_keeps_is_the_recompute_of_a_plan(keys: str, recompute: str) -> None:
    target = target_named("maxtext")
    assert target.read is not None
    found = target.read({"config.yml": YAML.format("") + keys}, 8)
    assert not found.problems
    assert found.row is not None
    assert found.row.format().partition("gbs16")[2] == recompute


@pytest.mark.parametrize(
    "keys",
    [
        "remat_policy: save_qkv_proj\n",
        "remat_policy: custom\nout_proj: offload\n",
        "remat_policy: qkv_proj_offloaded\n",
    ],
)
def test_a_policy_that_no_plan_says_is_refused(keys: str) -> None:
    target = target_named("maxtext")
    assert target.read is not None
    found = target.read({"config.yml": YAML.format("") + keys}, 8)
    assert [problem.field for problem in found.problems] == ["remat_policy"]


@pytest.mark.parametrize(
    "program", ["maxtext.utils.generate_param_only_checkpoint", "MaxText.utils.ckpt_conversion.to_maxtext"]
)
def test_a_script_that_converts_or_serves_trains_nothing(tmp_path: Path, program: str) -> None:
    (tmp_path / "base.yml").write_text(YAML.format(""))
    script = tmp_path / "convert.sh"
    script.write_text(f"python3 -m {program} base.yml model_name=llama3-8b\n")
    with pytest.raises(InputError, match="does not train a model"):
        check(script, cluster="8xH100", search=False, source_format="maxtext")


def test_a_file_of_a_model_alone_is_no_training() -> None:
    target = target_named("maxtext")
    assert target.read is not None
    shape = "base_emb_dim: 512\nbase_num_decoder_layers: 4\nmax_target_length: 1024\nbase_config: base.yml\n"
    found = target.read({"tiny.yml": f"{shape}dtype: bfloat16\n"}, 8)
    assert found.row is None
    assert [problem.why for problem in found.problems] == ["the file describes a model, and no training of it"]
    assert target.read({"tiny.yml": f"{shape}run_name: first\n"}, 8).row is not None


def test_files_of_other_programs_are_not_taken_for_its_own() -> None:
    target = target_named("maxtext")
    assert target.recognised("run.yaml", "run: x\nper_device_batch_size: 2\n")
    for text in ("code_eval_per_device_batch_size: 2\n", "args:\n  - python3 train.py ici_fsdp_parallelism=4\n"):
        assert not target.recognised("job.yaml", text)


def test_a_degree_of_what_is_left_names_what_does_not_divide() -> None:
    target = target_named("maxtext")
    assert target.read is not None
    text = "run_name: x\nici_fsdp_parallelism: 6\ndcn_data_parallelism: -1\nper_device_batch_size: 1\n"
    assert target.read({"x.yml": text}, 8).problems[0].why.endswith("what is left of 8 devices, which 6 do not divide")


@pytest.mark.parametrize(
    ("keys", "optimizer", "formats"),
    [
        ("opt_type: adam_pax\n", "adamw", "bf16"),
        ("opt_type: sgd\n", "sgd", "bf16"),
        ("grad_dtype: bfloat16\n", "adamw", "bf16 grad=bf16"),
        ("weight_dtype: bfloat16\n", "adamw", "bf16 grad=fp32 reduce=bf16 moment=bf16 main=none"),
        ("weight_dtype: bfloat16\nmu_dtype: bfloat16\ngrad_dtype: bfloat16\n", "adamw", fsdp.ALL_IN_16_BITS.name),
    ],
)
def test_states_are_priced_in_the_formats_they_are_kept_in(keys: str, optimizer: str, formats: str) -> None:
    target = target_named("maxtext")
    assert target.read is not None
    found = target.read({"config.yml": YAML.format("") + keys}, 8)
    assert not found.problems
    assert (found.workload["optimizer"], found.workload["precision"].name) == (optimizer, formats)


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ("mu_dtype: bfloat16\n", "mu_dtype"),
        ("opt_type: shampoo\n", "opt_type"),
        ("weight_dtype: float8_e4m3fn\n", "weight_dtype"),
        ("use_dpo: true\n", "use_dpo"),
        ("mtp_num_layers: 1\n", "mtp_num_layers"),
        ("optimizer_memory_host_offload: true\n", "optimizer_memory_host_offload"),
    ],
)
def test_what_trains_otherwise_than_its_plain_loop_is_refused(keys: str, field: str) -> None:
    target = target_named("maxtext")
    assert target.read is not None
    assert field in [one.field for one in target.read({"config.yml": YAML.format("") + keys}, 8).problems]


SFT = """\
base_config: base.yml
use_sft: true
packing: true
model_name: llama3.1-8b
per_device_batch_size: 2
max_target_length: 4096
remat_policy: full
lora:
  enable_lora: true
  lora_rank: 16
  lora_module_path: "{}"
  lora_weight_qtype: {}
"""


@pytest.mark.parametrize(
    ("pattern", "stored", "targets", "base"),
    [
        ("", "null", ("q_proj", "k_proj", "v_proj", "o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"), "fp32"),
        (
            "decoder/layers/.*(self_attention/(query|out)|mlp/(wi_0|wo))",
            "nf4",
            ("q_proj", "o_proj", "mlp.gate_proj", "mlp.down_proj"),
            "nf4-single",
        ),
    ],
)
def test_adapters_of_a_fine_tuning_are_read(
    tmp_path: Path, pattern: str, stored: str, targets: tuple[str, ...], base: str
) -> None:
    (tmp_path / "sft.yml").write_text(SFT.format(pattern, stored))
    report = check(tmp_path / "sft.yml", gpus="8xH100", search=False)
    assert not report.violations
    assert isinstance(report.inputs, JobInputs)
    assert report.inputs.model.tuning is not None
    lora = report.inputs.model.tuning.lora
    assert lora is not None
    assert (lora.rank, lora.targets, lora.base) == (16, targets, base)


def test_a_script_starts_a_fine_tuning_with_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "sft.yml").write_text(SFT.format("", "null").replace("enable_lora: true", "enable_lora: false"))
    (tmp_path / "run.sh").write_text(
        "python3 -m maxtext.trainers.post_train.sft.train_sft sft.yml run_name=x per_device_batch_size=4\n"
    )
    report = check(tmp_path / "run.sh", gpus="8xH100", search=False)
    assert not report.violations
    assert report.name == "dp8.fsdp.mbs4.gbs32.rc-full"


def test_adapters_of_experts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "sft.yml").write_text(SFT.format("decoder/.*(MoeBlock_0|shared_experts)/(wi_0|wo)", "null"))
    report = check(tmp_path / "sft.yml", gpus="8xH100", search=False)
    assert [one.field for one in report.violations] == ["lora.lora_module_path"]


def test_the_pipeline_repeats_until_all_layers_are_placed(tmp_path: Path) -> None:
    """num_pipeline_repeats is -1 by default: 32 layers / (4 stages x 2 layers) = 4."""
    (tmp_path / "run.yml").write_text(
        "model_name: llama3.1-8b\nper_device_batch_size: 4\nmax_target_length: 4096\nremat_policy: full\n"
        "ici_pipeline_parallelism: 4\nnum_layers_per_pipeline_stage: 2\nnum_pipeline_microbatches: 4\n"
    )
    report = check(tmp_path / "run.yml", gpus="8xH100", search=False)
    assert report.name is not None
    assert "pp4.vpp4" in report.name
    (tmp_path / "run.yml").write_text((tmp_path / "run.yml").read_text() + "num_pipeline_repeats: 2\n")
    violations = check(tmp_path / "run.yml", gpus="8xH100", search=False).violations
    assert any("make 16 of 32" in one.why for one in violations)


def keys_of(line: str, model: str = "llama-3.1-8b", gpus: str = "16xH100") -> dict[str, object]:
    text = written("maxtext", job(line, model, gpus))["maxtext.yml"]
    rows = (row.partition(": ") for row in text.splitlines() if not row.startswith("#"))
    return {name: value for name, _, value in rows}


def test_kernels_are_those_of_the_devices() -> None:
    """On GPUs it would choose attention without windows or context ranks, and interpret the TPUs' kernel of experts."""
    gpus, tpus = keys_of("ep8.fsdp", "mixtral-8x7b"), keys_of("ep8.fsdp", "mixtral-8x7b", "16xTPU-v5p")
    assert (gpus["hardware"], gpus["attention"], gpus["megablox"]) == ("gpu", "cudnn_flash_te", "false")
    assert tpus["hardware"] == "tpu"
    assert not {"attention", "megablox"} & tpus.keys()


def test_a_slice_of_tpus_has_one_mesh() -> None:
    keys = keys_of("tp2.fsdp", gpus="32xTPU-v5p")
    assert (keys["ici_fsdp_parallelism"], keys["ici_tensor_parallelism"]) == ("16", "2")
    assert all(value == "1" for name, value in keys.items() if name.startswith("dcn_"))


@pytest.mark.parametrize(
    ("line", "model", "gpus", "field"),
    [
        ("cp2-a2a.fsdp", "llama-3.1-8b", "16xH100", "context.kinds"),
        ("cp2.fsdp", "llama-3.1-8b", "16xTPU-v5p", "context.kinds"),
        ("cp2-ag.fsdp", "gpt-oss-20b", "16xH100", "cp"),
        ("fsdp", "gemma-2-9b", "16xH100", "attention_kernel"),
        ("tp2.fsdp", "gemma-2b", "16xH100", "tp"),
        ("fsdp", "mistral-7b-v0.3", "16xH100", "model"),
    ],
)
def test_what_it_refuses_or_leaves_out_at_the_start_is_refused(line: str, model: str, gpus: str, field: str) -> None:
    assert {problem.field for problem in target_named("maxtext").refused(job(line, model, gpus))} == {field}


def test_scores_are_capped_where_they_are_materialised() -> None:
    one = job("fsdp", "gemma-2-9b")
    plain = replace(one, workload=replace(one.workload, attention_kernel="materialised"))
    files = written("maxtext", plain)
    assert "attention: dot_product\n" in files["maxtext.yml"]
    read_back = target_named("maxtext").read
    assert read_back is not None
    assert read_back(files, 16).workload["attention_kernel"] == "materialised"


@given(st.integers(1, 4096), st.integers(1, 512))
def test_no_sequence_is_cut_off_a_batch(devices: int, sequences: int) -> None:
    assert int(devices * as_read(sequences / devices, devices)) == sequences


def test_a_number_with_an_exponent_alone_is_a_number() -> None:
    """YAML 1.1 has `2e-4` as text; MaxText takes what a key holds as the type of its own."""
    told = [
        [problem.field for problem in target_named("maxtext").read({"config.yml": YAML.format("") + line}, 8).problems]
        for line in ("", "learning_rate: 2e-4\n", "learning_rate: fast\n")
    ]
    assert told == [[], [], ["learning_rate"]]
