"""Recipes of NeMo Automodel as their users write them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import check, export, plan
from meshwright.app.check import CheckReport
from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.ops.counts import trained_parameters
from meshwright.planning.plan_source import plan_question
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.planning.question.tuned import with_tuning
from meshwright.planning.question.tuning_text import read_lora
from meshwright.specs.job import Job
from meshwright.specs.tuning import Tuning
from meshwright.targets import TARGETS, target_of_file

RECIPE = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler:
  global_batch_size: 64
  local_batch_size: 8
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B
  torch_dtype: bf16
distributed:
  _target_: nemo_automodel.components.distributed.fsdp2.FSDP2Manager
  dp_size: none
  offload_policy: none
  tp_size: 1
  cp_size: 1
  activation_checkpointing: true
packed_sequence:
  packed_sequence_size: 2048
optimizer:
  _target_: torch.optim.Adam
"""
PEFT = """\
peft:
  _target_: nemo_automodel.components._peft.lora.PeftConfig
  target_modules: '*_proj'
  dim: 16
  alpha: 32
"""


def asked(folder: Path, text: str, gpus: str = "8xH100") -> CheckReport:
    (folder / "recipe.yaml").write_text(text)
    return check(folder / "recipe.yaml", cluster=gpus, search=False)


def described(report: CheckReport) -> JobInputs:
    assert isinstance(report.inputs, JobInputs)
    return report.inputs


def test_a_launchers_file_around_a_recipe_is_not_read_as_its_defaults(tmp_path: Path) -> None:
    nested = "modules:\n  trainer:\n    framework: nemo_automodel\n" + "".join(
        f"    {line}\n" for line in RECIPE.splitlines()
    )
    found = asked(tmp_path, nested).violations
    assert "step_scheduler" in [one.field for one in found]


def test_a_recipe_says_model_degrees_and_formats(tmp_path: Path) -> None:
    report = asked(tmp_path, RECIPE)
    assert not report.violations
    assert report.name == "dp8.fsdp.mbs8.gbs64.rc-full"
    job = described(report)
    assert (job.model.name, job.workload.seq_len, job.workload.optimizer) == ("llama-3.2-1b", 2048, "adam")
    # Weights loaded in 16 bits are what the optimizer updates: 8 bytes a parameter, not 16.
    formats = job.workload.precision
    assert (formats.weights, formats.master, formats.moments) == ("bf16", None, "bf16")
    whole = asked(tmp_path, RECIPE.replace("torch_dtype: bf16", "torch_dtype: float32"))
    assert described(whole).workload.precision.master == "fp32"


@pytest.mark.parametrize(
    ("weights", "cast", "compute"),
    [("float32", "", "fp32"), ("float32", "  autocast_dtype: bfloat16\n", "bf16"), ("bf16", "", "bf16")],
)
def test_copies_compute_in_the_format_of_weights_that_nothing_casts(
    tmp_path: Path, weights: str, cast: str, compute: str
) -> None:
    text = RECIPE.replace("torch_dtype: bf16", f"torch_dtype: {weights}").replace(
        "  offload_policy: none\n", f"  strategy: ddp\n{cast}"
    )
    assert described(asked(tmp_path, text)).workload.precision.compute == compute


@pytest.mark.parametrize(
    ("said", "targets"),
    [
        ("target_modules: '*_proj'", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"),
        ("target_modules: ['*.q_proj', '*.self_attn.v_proj']", "q_proj,v_proj"),
        ("exclude_modules: ['*lm_head', '*.o_proj']", "q_proj,k_proj,v_proj,gate_proj,up_proj,down_proj"),
        ("match_all_linear: true", "all-linear"),
    ],
)
def test_adapters_stand_where_its_patterns_say(tmp_path: Path, said: str, targets: str) -> None:
    report = asked(tmp_path, RECIPE + PEFT.replace("target_modules: '*_proj'", said))
    assert not report.violations
    model = described(report).model
    other = with_tuning(replace(model, tuning=None), f"r=16,targets={targets}", ())
    assert trained_parameters(model) == trained_parameters(other)
    assert any("lm_head" in warning for warning in report.warnings) == ("match_all" in said)


def test_experts_are_one_module_which_names_of_products_do_not_match(tmp_path: Path) -> None:
    text = RECIPE.replace("meta-llama/Llama-3.2-1B", "Qwen/Qwen3-30B-A3B") + PEFT
    model = described(asked(tmp_path, text)).model
    attention = with_tuning(replace(model, tuning=None), "r=16,targets=q_proj,k_proj,v_proj,o_proj", ())
    assert trained_parameters(model) == trained_parameters(attention)
    every = described(asked(tmp_path, text.replace("'*_proj'", "['*']"))).model
    assert trained_parameters(every) > 10 * trained_parameters(model)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("recipe: Train", "recipe: KnowledgeDistillationRecipeFor # Train", "recipe"),
        ("fsdp2.FSDP2Manager", "ddp.DDPManager", "distributed._target_"),
        ("torch.optim.Adam", "flashoptim.FlashAdamW", "optimizer._target_"),
        ("dp_size: none", "dp_sizes: none", "distributed.dp_sizes"),
    ],
)
def test_what_a_plan_does_not_say_is_refused_by_its_key(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert [one.field for one in asked(tmp_path, RECIPE.replace(old, new)).violations] == [what]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("", True),
        ("  moe:\n    reshard_after_forward: true\n", False),
        ("  reshard_after_forward: true\n  moe:\n    reshard_after_forward: false\n", False),
    ],
)
def test_layers_beside_split_experts_keep_their_weights_unless_said(tmp_path: Path, said: str, kept: bool) -> None:
    text = RECIPE.replace("meta-llama/Llama-3.2-1B", "Qwen/Qwen3-30B-A3B")
    report = asked(tmp_path, text.replace("  tp_size: 1\n", f"  tp_size: 1\n  ep_size: 4\n{said}"), "8xH200")
    assert not report.violations
    assert ("fsdp-keep" in str(report.name)) == kept


def test_stages_follow_from_their_length(tmp_path: Path) -> None:
    pipeline = "  pp_size: 2\n  pipeline:\n    pp_schedule: interleaved1f1b\n    layers_per_stage: 4\n"
    text = RECIPE.replace("  tp_size: 1\n", f"  tp_size: 1\n{pipeline}").replace("size: 64", "size: 32")
    assert asked(tmp_path, text).name == "pp2.vpp2.dp4.fsdp-keep.mbs1.gbs32.rc-full"  # 16 layers
    uneven = asked(tmp_path, text.replace("per_stage: 4", "per_stage: 5\n    round_virtual_stages_to_pp_multiple: up"))
    assert uneven.launch is not None
    assert uneven.launch.layout == (4, 4, 4, 4)
    wrong = asked(tmp_path, text.replace("per_stage: 4", "per_stage: 6"))
    assert any("3 stages of 16 layers" in one.why for one in wrong.violations)


def test_options_of_the_command_stand_over_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    command = "automodel finetune llm -c recipe.yaml --step_scheduler.local_batch_size 4 --distributed.tp_size=2\n"
    (tmp_path / "run.sh").write_text(command)
    report = check(tmp_path / "run.sh", cluster="8xH100", search=False)
    assert report.name == "tp2.nosp.dp4.fsdp.mbs4.gbs64.rc-full"
    assert report.launch is not None
    assert {said.option: said.place for said in report.launch.said}["distributed.tp_size"] == "run.sh:1"


def tuned(line: str, lora: str, model: str) -> Job:
    fields = JobFields(model=model, gpus="8xH100", seq_len=2048, lora=lora, software="megatron-core")
    return plan_question(line, fields).job


@pytest.mark.parametrize(
    ("model", "lora"),
    [
        ("llama-3.1-8b", "r=16"),
        ("llama-3.1-8b", "r=8,targets=q_proj,v_proj,dora,dropout=0.05"),
        ("llama-3.1-8b", "r=64,base=nf4"),
        ("llama-3.1-8b", "r=64,base=fp4-single,targets=mlp.*"),
        ("qwen3-30b-a3b", "r=8"),
        ("qwen3-30b-a3b", "r=8,targets=attention.*"),
    ],
)
def test_adapters_come_back(model: str, lora: str) -> None:
    one = tuned("dp8.fsdp.mbs2.rc-full", lora, model)
    target = TARGETS["automodel"]
    files = dict(target.files(one, estimate_plan(one.plan, one.model, one.cluster, one.workload)).files)
    assert target.read is not None
    launch = target.read(files, 8)
    assert not launch.problems
    back = read_lora(launch.workload["lora"])
    assert one.model.tuning is not None
    assert one.model.tuning.lora is not None
    assert trained_parameters(replace(one.model, tuning=Tuning(lora=back))) == trained_parameters(one.model)
    own = one.model.tuning.lora
    assert (back.rank, back.base, back.dora, back.dropout) == (own.rank, own.base, own.dora, own.dropout)


@pytest.mark.parametrize(
    ("lora", "what"),
    [
        ("r=8,layers=0-3", "adapters are on some layers"),
        ("r=8,train=embedding", "parts are trained beside adapters"),
        ("r=8,base=int8", "frozen weights are stored in int8"),
        ("r=8,dora", "adapters of experts are DoRA"),
        ("r=8,targets=up_proj", "only some products of experts"),
    ],
)
def test_adapters_that_it_has_not_are_refused(lora: str, what: str) -> None:
    refused = TARGETS["automodel"].refused(tuned("dp8.fsdp.mbs2", lora, "qwen3-30b-a3b"))
    assert any(what in problem.what for problem in refused)


def test_recipes_of_other_kinds_are_told_apart(tmp_path: Path) -> None:
    report = asked(tmp_path, "recipe: TrainEagle3Recipe\nrecipe_args:\n  micro_batch_size: 1\n")
    assert report.violations[0].what == "recipe is 'TrainEagle3Recipe'"


def test_samples_of_images_are_no_text(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"{RECIPE}dataset:\n  _target_: nemo_automodel.components.datasets.vlm.datasets.make_rdr_dataset\n"
    )
    assert "dataset._target_" in {one.field for one in check(recipe, cluster="8xH100", search=False).violations}


def test_a_model_that_nobody_knows_is_to_be_named_before_the_file(tmp_path: Path) -> None:
    report = asked(tmp_path, RECIPE.replace("meta-llama/Llama-3.2-1B", "someone/unheard-of"))
    assert "check MODEL FILE" in report.violations[-1].fix


def test_products_in_8_bits_and_compiled_layers_are_priced(tmp_path: Path) -> None:
    plain = described(asked(tmp_path, RECIPE)).workload
    low = described(asked(tmp_path, RECIPE + "fp8:\n  enabled: true\ncompile:\n  enabled: true\n")).workload
    assert (plain.precision.compute, low.precision.compute) == ("bf16", "fp8")
    assert low.precision.weight_cache_bytes > plain.precision.weight_cache_bytes
    assert low.precision.moments == plain.precision.moments == "bf16"
    assert (plain.software, low.software) == ("pytorch-eager", "pytorch-compiled")


@pytest.mark.parametrize(
    ("batch", "said", "software"),
    [
        (8, "", "pytorch-eager"),
        (2, "", "pytorch-eager-no-sync"),
        (2, "  defer_fsdp_grad_sync: false\n", "pytorch-eager"),
    ],
)
def test_gradients_stay_whole_between_micro_batches_unless_said(
    tmp_path: Path, batch: int, said: str, software: str
) -> None:
    text = RECIPE.replace("local_batch_size: 8", f"local_batch_size: {batch}")
    report = asked(tmp_path, text.replace("  tp_size: 1\n", f"  tp_size: 1\n{said}"))
    assert not report.violations
    assert described(report).workload.software == software


def test_states_of_the_optimizer_are_in_the_formats_it_says(tmp_path: Path) -> None:
    own = "optimizer:\n  master_weights: true\n  exp_avg_dtype: torch.float32\n  exp_avg_sq_dtype: torch.float32\n"
    text = RECIPE.replace("optimizer:\n", own)
    precision = described(asked(tmp_path, text)).workload.precision
    assert (precision.master, precision.moments) == ("fp32", "fp32")
    kept = asked(tmp_path, text.replace("optimizer:\n", "optimizer:\n  store_param_remainders: true\n"))
    assert "optimizer.store_param_remainders" in [one.field for one in kept.violations]


def test_a_plan_in_8_bits_is_written_and_read_back() -> None:
    fields = JobFields(model="llama-3.1-8b", gpus="8xH100", seq_len=2048, dtype="fp8")
    one = plan_question("tp2.dp4.fsdp", fields).job
    assert not TARGETS["automodel"].refused(one)
    priced = estimate_plan(one.plan, one.model, one.cluster, one.workload)
    files = dict(TARGETS["automodel"].files(one, priced).files)
    read = TARGETS["automodel"].read
    assert read is not None
    launch = read({"automodel.yaml": files["automodel.yaml"]}, 8)
    assert not launch.problems
    assert launch.workload["precision"] == one.workload.precision


def test_layers_gathered_ahead_are_written_and_read_back() -> None:
    one = plan_question("dp8.fsdp.prefetch2", JobFields(model="llama-3.1-8b", gpus="8xH100", seq_len=2048)).job
    assert not TARGETS["automodel"].refused(one)
    priced = estimate_plan(one.plan, one.model, one.cluster, one.workload)
    text = dict(TARGETS["automodel"].files(one, priced).files)["automodel.yaml"]
    assert text.count("prefetch_depth: 2") == 2
    read = TARGETS["automodel"].read
    assert read is not None
    assert read({"automodel.yaml": text}, 8).row.data_words == ("prefetch2",)
    # The larger of two depths is what memory holds.
    backward = text.replace("forward_prefetch_depth: 2", "forward_prefetch_depth: 1")
    assert read({"automodel.yaml": backward}, 8).row.data_words == ("prefetch2",)


def test_a_depth_of_prefetching_that_it_does_not_take_is_refused() -> None:
    for row in ("dp8.fsdp.prefetch0", "pp2.dp4.fsdp.prefetch2"):
        one = plan_question(row, JobFields(model="llama-3.1-8b", gpus="8xH100", seq_len=2048)).job
        assert [problem.field for problem in TARGETS["automodel"].refused(one)] == ["data.prefetch"]


def test_experts_run_in_16_bits() -> None:
    fields = JobFields(model="qwen3-30b-a3b", gpus="8xH100", seq_len=2048, dtype="fp8")
    refused = TARGETS["automodel"].refused(plan_question("dp8.fsdp", fields).job)
    assert any("experts" in problem.why for problem in refused)


def test_experts_of_classes_of_transformers_are_not_split() -> None:
    for model, splits in (("mixtral-8x7b", False), ("qwen3-30b-a3b", True)):
        fields = JobFields(model=model, gpus="8xH100", seq_len=2048)
        assert bool(TARGETS["automodel"].refused(plan_question("ep8.dp8.fsdp", fields).job)) != splits


@pytest.mark.parametrize("software", ["pytorch-eager", "pytorch-eager-no-sync"])
def test_a_recipe_defers_gradients_as_the_plan_was_priced(tmp_path: Path, software: str) -> None:
    pins = ("pp=1", "mbs=1")
    found = plan("llama-3.1-8b", gpus="16xH100", global_batch=64, software=software, target="automodel", pin=pins)
    export(found[0], "automodel", tmp_path)
    text = (tmp_path / "automodel.yaml").read_text()
    assert f"defer_fsdp_grad_sync: {str(software != 'pytorch-eager').lower()}" in text
    report = check("llama-3.1-8b", cluster="16xH100", source=tmp_path / "automodel.yaml", search=False)
    assert described(report).workload.software == software


def test_experts_over_more_ranks_than_usual_are_read_for_as_many_devices(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "recipe: TrainFinetuneRecipeForNextTokenPrediction\nstep_scheduler:\n  global_batch_size: 512\n"
        "  local_batch_size: 1\ndistributed:\n  strategy: fsdp2\n  tp_size: 1\n  ep_size: 64\n"
        "model:\n  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained\n"
        "  pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B\n"
    )
    report = check(source=recipe)
    assert "--gpus 64xH100" in report.violations[0].fix


def test_a_key_that_ends_in_one_of_its_names_is_not_its_own() -> None:
    assert target_of_file("recipe.yaml", RECIPE) == "automodel"
    assert target_of_file("train.yaml", "train:\n  max_step_scheduler: 1000\n  n_layer: 18\n") is None


def test_weights_packed_in_4_bits_are_not_cut_over_tensor_ranks() -> None:
    refused = TARGETS["automodel"].refused(tuned("tp2.dp4.fsdp.mbs2", "r=8,base=nf4", "llama-3.1-8b"))
    assert [problem.field for problem in refused] == ["tp"]


def test_what_tests_of_its_project_run_with_is_no_part_of_a_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE + "ci:\n  checkpoint_robustness:\n    distributed:\n      tp_size: 2\n")
    with_tests = check(recipe, cluster="8xH100", search=False)
    recipe.write_text(RECIPE)
    assert not with_tests.violations
    assert with_tests.name == check(recipe, cluster="8xH100", search=False).name


@pytest.mark.parametrize("line", ["  backend:\n    attn: eager\n", "  attn_implementation: eager\n"])
def test_attention_that_writes_out_its_scores_is_priced_so(tmp_path: Path, line: str) -> None:
    plain, eager = (
        described(asked(tmp_path, RECIPE.replace("distributed:", f"{more}distributed:"))) for more in ("", line)
    )
    assert (plain.workload.attention_kernel, eager.workload.attention_kernel) == ("flash", "materialised")
