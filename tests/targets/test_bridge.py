"""Commands of Megatron-Bridge as its users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check
from meshwright.app.check import CheckReport
from meshwright.errors import InputError
from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.launch_files.format import format_of
from meshwright.planning.for_target import priced_as
from meshwright.planning.plan_source import plan_question
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.planning.question.tuning_text import read_lora
from meshwright.specs.job import Job
from meshwright.targets import TARGETS
from meshwright.targets.bridge.recipe import recipe_named
from tests.targets.cases import job
from tests.targets.test_round_trip import written

OPTIONS = """\
#!/bin/bash
TP=${TP:-2}
torchrun --nproc_per_node=8 scripts/performance/run_script.py -m llama -mr llama31_8b -ng 16 -g h100 -c bf16 \\
  --tensor_model_parallel_size $TP --pipeline_model_parallel_size=1 -cp 1 -gb 64 -mb 1 -sl 8192
"""
PEFT = "torchrun run_recipe.py --recipe llama3_8b_peft_config -tp 1 -pp 2 -cp 1 -gb 64 -mb 1 -sl 4096 peft.dim=16 $@\n"


def asked(folder: Path, text: str) -> CheckReport:
    (folder / "run.sh").write_text(text)
    return check(folder / "run.sh", cluster="16xH100", search=False)


def test_options_of_its_launchers_are_overrides(tmp_path: Path) -> None:
    report = asked(tmp_path, OPTIONS)
    # Distributed optimizer and overlap are what its recipes start from.
    assert report.name == "tp2.dp8.z1.mbs1.gbs64"
    assert report.inputs is not None
    assert isinstance(report.inputs, JobInputs)
    assert (report.inputs.model.name, report.inputs.workload.seq_len) == ("llama-3.1-8b", 8192)
    assert report.launch is not None
    assert {said.option: said.place for said in report.launch.said}["model.tensor_model_parallel_size"] == "run.sh:2"
    assert any(note.startswith("taken as recipes have it: ddp.use") for note in report.warnings)


@pytest.mark.parametrize(("said", "sharded"), [(" False", False), ("=no", False), (" True", True)])
def test_switches_of_its_launchers_are_given_a_value(tmp_path: Path, said: str, sharded: bool) -> None:
    report = asked(tmp_path, OPTIONS.replace(" -cp 1", f" -cp 1 --use_megatron_fsdp{said}"))
    assert ("fsdp" in str(report.name)) == sharded


def test_overrides_that_nobody_knows_are_asked_for(tmp_path: Path) -> None:
    text = (
        "#!/bin/bash\ntorchrun --nproc_per_node=8 run_recipe.py --recipe llama3_8b_peft_config $(overrides --of 8b)\n"
    )
    report = asked(tmp_path, text)
    assert [one.what for one in report.violations][:1] == ["which overrides are here is not known (run.sh:2)"]
    given = text.replace("$(overrides --of 8b)", "$(echo \"model.context_parallel_size=1  x=2\" | sed 's/  \\+/ /g')")
    assert "model.context_parallel_size" not in " ".join(one.what for one in asked(tmp_path, given).violations)


def test_what_the_recipe_alone_says_is_asked_for(tmp_path: Path) -> None:
    report = asked(tmp_path, OPTIONS.replace(" -cp 1", ""))
    assert report.violations[0].what == "model.context_parallel_size is not given"
    assert report.violations[0].fix == "give --set model.context_parallel_size=N"


@pytest.mark.parametrize(
    ("said", "exchange"),
    [("", ".ep8"), (" --moe_flex_dispatcher_backend hybridep", ".ep8.epdedup"), (" -et 2", ".ep8.etp2")],
)
def test_experts_are_read_where_the_recipe_holds_the_model(tmp_path: Path, said: str, exchange: str) -> None:
    text = f"torchrun run_script.py -mr qwen3_30b_a3b -tp 2 -pp 1 -cp 1 -ep 8{said} -c bf16 -gb 64 -mb 1 -sl 4096\n"
    # Recipes of models with experts do not cut them, and exchange tokens all-to-all, unless options say otherwise.
    assert asked(tmp_path, text).name == f"tp2{exchange}.dp8.z1.mbs1.gbs64"


def test_recipes_of_adapters_are_no_full_training(tmp_path: Path) -> None:
    report = asked(tmp_path, PEFT.replace("$@", "'peft.target_modules=[linear_qkv,linear_proj]'"))
    assert isinstance(report.inputs, JobInputs)
    assert report.inputs.model.tuning is not None
    lora = report.inputs.model.tuning.lora
    assert lora is not None
    assert (lora.rank, lora.targets) == (16, ("linear_qkv", "linear_proj"))
    assert "peft.dim is not given" in [v.what for v in asked(tmp_path, PEFT.replace("peft.dim=16 $@", "")).violations]


@pytest.mark.parametrize(
    ("model", "lora"),
    [
        ("llama-3.1-8b", "r=16,targets=linear_qkv,linear_proj,linear_fc1,linear_fc2,dropout=0.05"),
        ("qwen3-30b-a3b", "r=8,targets=linear_qkv,linear_proj"),
    ],
)
def test_adapters_come_back(model: str, lora: str) -> None:
    one = adapted(model, lora)
    files = dict(TARGETS["bridge"].files(one, estimate_plan(one.plan, one.model, one.cluster, one.workload)).files)
    compile(files["pretrain.py"], "pretrain.py", "exec")
    assert "    cfg.peft = LoRA()\n" in files["pretrain.py"]
    read = TARGETS["bridge"].read
    assert read is not None
    launch = read(files, 8)
    assert not launch.problems
    assert one.model.tuning is not None
    assert read_lora(launch.workload["lora"]) == one.model.tuning.lora


@pytest.mark.parametrize(
    ("model", "lora", "what"),
    [
        ("llama-3.1-8b", "r=16", "adapters are on q_proj, k_proj, v_proj, gate_proj, up_proj"),
        ("qwen3-30b-a3b", "r=8,targets=linear_fc2", "adapters are on experts.down_proj"),
        ("llama-3.1-8b", "r=8,targets=linear_qkv,base=nf4,dora,layers=0-3", "adapters are DoRA"),
    ],
)
def test_adapters_that_it_has_not_are_refused(model: str, lora: str, what: str) -> None:
    assert what in " ".join(problem.what for problem in TARGETS["bridge"].problems(adapted(model, lora)))


def test_what_is_trained_whole_has_no_adapters() -> None:
    one = plan_question("tp2.dp4.z1.mbs2", JobFields(model="llama-3.1-8b", gpus="8xH100", seq_len=2048)).job
    files = dict(TARGETS["bridge"].files(one, estimate_plan(one.plan, one.model, one.cluster, one.workload)).files)
    assert not any("peft" in text.lower() for name, text in files.items() if name != "plan.json")


def adapted(model: str, lora: str) -> Job:
    return plan_question(
        "tp2.dp4.z1.mbs2", JobFields(model=model, gpus="8xH100", seq_len=2048, lora=lora, software="megatron-core")
    ).job


def test_scaling_by_the_current_tensor_is_fp8(tmp_path: Path) -> None:
    report = asked(tmp_path, OPTIONS.replace("-c bf16", "-c fp8_cs"))
    assert report.inputs is not None
    assert isinstance(report.inputs, JobInputs)
    assert report.inputs.workload.precision.compute == "fp8"


@pytest.mark.parametrize(
    ("said", "kept", "key"),
    [
        ({}, "fp8", None),
        ({"weight_dtype": "bf16"}, "bf16", "mixed_precision.fp8_param_gather=false"),
        ({"grad_dtype": "bf16"}, "fp8", "mixed_precision.grad_reduce_in_fp32=false"),
    ],
)
def test_weights_are_kept_as_its_recipes_of_8_bits_keep_them(said: dict[str, str], kept: str, key: str | None) -> None:
    asked_for = JobFields(model="llama-3.1-8b", gpus="8xH100", seq_len=2048, dtype="fp8", **said)
    one = plan_question("tp2.dp4.z1.mbs2", priced_as(asked_for, "bridge")).job
    assert one.workload.precision.weights == kept
    text = written("bridge", one)["overrides.txt"]
    assert [line for line in text.splitlines() if line.startswith("mixed_precision.")] == ([key] if key else [])
    read = TARGETS["bridge"].read
    assert read is not None
    back = read({"overrides.txt": text}, 8).workload["precision"]
    assert (back.weights, back.gradients) == (one.workload.precision.weights, one.workload.precision.gradients)


@pytest.mark.parametrize("target", ["bridge", "torchtitan"])
@pytest.mark.parametrize(("model", "fed"), [("llama-3.1-8b", True), ("qwen3-30b-a3b", False)])
def test_adapters_stand_on_its_own_products_where_nobody_names_them(target: str, model: str, fed: bool) -> None:
    asked_for = priced_as(JobFields(model=model, gpus="8xH100", seq_len=2048, lora="r=8"), target)
    one = plan_question("tp1.dp8.fsdp.mbs1.rc-full", asked_for).job
    assert one.model.lora is not None
    assert one.model.lora.rank == 8
    assert any("proj" in name or "fc" in name for name in one.model.lora.targets[2:]) == fed
    assert not TARGETS[target].problems(one)


def test_chunks_of_a_stage_are_said_beside_its_layout() -> None:
    text = written("bridge", job("pp4.vpp2.z1", "llama-3.1-8b"))["overrides.txt"]
    assert "model.virtual_pipeline_model_parallel_size=2\n" in text
    assert "comm_overlap.overlap_grad_reduce=true\n" in text


RECIPES = """\
import torch
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _peft_common, _pretrain_common

LONG: int = 16384


def _parallel(cfg, *, tp):
    cfg.model.tensor_model_parallel_size = tp
    cfg.model.sequence_parallel = True


def llama3_8b_pretrain_config() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider(load_weights=False)
    _parallel(cfg, tp=2)
    cfg.model.context_parallel_size = 2
    cfg.model.seq_length = LONG
    cfg.model.transformer_impl = "transformer_engine"
    cfg.train.global_batch_size = 64
    cfg.train.micro_batch_size = 1
    cfg.mixed_precision = bf16_with_fp8_current_scaling_mixed()
    cfg.optimizer.exp_avg_dtype = torch.float32
    cfg.ddp.grad_reduce_in_fp32 = False
    return cfg


def llama3_8b_peft_config(peft_scheme="lora") -> ConfigContainer:
    cfg = _peft_common()
    hf_path = "meta-llama/Meta-Llama-3-8B"
    cfg.model = AutoBridge.from_hf_pretrained(hf_path).get_model_config()
    peft_cfg = default_peft_config(peft_scheme)
    cfg.peft = peft_cfg
    if isinstance(peft_scheme, str) and peft_scheme.lower() in ["lora", "dora"]:
        peft_cfg.dim = 8
    cfg.model.seq_length = 4096
    cfg.model.tensor_model_parallel_size = 1
    benchmark_defaults(cfg)
    return cfg
"""


def of_recipe(folder: Path, name: str) -> CheckReport:
    (folder / "llama3.py").write_text(RECIPES)
    over = f"recipe={name}" if name else ()
    return check(folder / "llama3.py", cluster="8xH100", settings=over, search=False)


def test_a_recipe_is_read_by_what_its_function_sets(tmp_path: Path) -> None:
    report = of_recipe(tmp_path, "llama3_8b_pretrain_config")
    assert report.name == "tp2.cp2.dp2.z1.mbs1.gbs64"
    assert isinstance(report.inputs, JobInputs)
    workload = report.inputs.workload
    assert (report.inputs.model.name, workload.seq_len) == ("llama-3-8b", 16384)
    # Number formats set fields of their own, which stand over those of ddp.
    assert (workload.precision.weights, workload.precision.reduce) == ("fp8", "fp32")
    assert report.launch is not None
    assert (report.launch.workload["bf16_first"], report.launch.workload["bf16_last"]) == (1, 1)
    assert report.launch is not None
    assert {one.option: one.place for one in report.launch.said}["model.context_parallel_size"] == "llama3.py:17"


def test_a_file_of_several_recipes_asks_which_and_names_what_it_did_not_read(tmp_path: Path) -> None:
    assert next(one.field for one in of_recipe(tmp_path, "").violations) == "recipe"
    report = of_recipe(tmp_path, "llama3_8b_peft_config")
    assert [one.why for one in report.violations if one.code == "OPTIONS"] == [
        "benchmark_defaults changes the configuration, and is not read"
    ]
    assert report.inputs is not None
    assert report.inputs.model.tuning is not None
    assert report.inputs.model.tuning.lora is not None
    assert report.inputs.model.tuning.lora.rank == 8


def test_its_exported_folder_is_checked_by_either_file_in_either_order(tmp_path: Path) -> None:
    for name, text in written("bridge", job("dp8.cp2.z1")).items():
        (tmp_path / name).write_text(text)
    program, overrides = str(tmp_path / "pretrain.py"), str(tmp_path / "overrides.txt")
    asks = [
        {"model": "llama-3-8b", "source": program},
        *({"model": one, "source": "llama-3-8b"} for one in (program, overrides)),
    ]
    found = [check(**ask, gpus="16xH100", search=False) for ask in asks]
    assert {report.name for report in found} == {"cp2.dp8.z1.mbs1.gbs64"}
    (tmp_path / "overrides.txt").unlink()
    with pytest.raises(InputError, match=r"overrides\.txt, which is not beside it"):
        check("llama-3-8b", source=program, gpus="16xH100", search=False)


def test_what_changes_no_plan_and_what_stays_frozen(tmp_path: Path) -> None:
    words = OPTIONS.rstrip() + " model.moe_router_dtype=fp32 model.cross_entropy_loss_fusion=false"
    report = asked(tmp_path, f"{words} model.freeze_vision_model=false\n")
    assert not report.violations
    report = asked(tmp_path, f"{words} model.freeze_language_model=true\n")
    assert [one.what for one in report.violations] == ["model.freeze_language_model is true"]


def test_what_a_recipe_sets_is_asked_for_once(tmp_path: Path) -> None:
    report = asked(tmp_path, OPTIONS.replace(" -mb 1", ""))
    assert ["train.micro_batch_size" in one.what for one in report.violations].count(True) == 1


def test_a_model_whose_name_is_imported_is_not_taken_by_that_name() -> None:
    text = (
        "from megatron.bridge.training.config import ConfigContainer\nfrom elsewhere import PATH_OF_MODEL\n\n\n"
        "def mine_config() -> ConfigContainer:\n    cfg = _pretrain_common()\n"
        "    cfg.model = AutoBridge.from_hf_pretrained(PATH_OF_MODEL).to_megatron_provider(load_weights=False)\n"
        "    cfg.model.tensor_model_parallel_size = 2\n    return cfg\n"
    )
    found, asked = recipe_named("mine.py", text, "")
    assert asked is None
    assert found is not None
    assert found.model == ""
    assert "PATH_OF_MODEL, whose value is not in the file" in found.problems[0].why


def test_a_recipe_of_a_model_that_sees_is_told_by_its_forward_step(tmp_path: Path) -> None:
    plain = PEFT.replace(" $@", "").replace(" peft.dim=16", "")
    told = [one.what for one in asked(tmp_path, f"{plain.strip()} --step_func vlm_step\n").violations]
    assert "--step_func is vlm_step" in told
    assert "--step_func is vlm_step" not in [one.what for one in asked(tmp_path, plain).violations]


@pytest.mark.parametrize("words", ["--step_func qwen3_vl_step", "--recipe gemma3_vl_4b_sft_config"])
def test_a_recipe_of_a_model_that_sees_is_told_by_its_name(tmp_path: Path, words: str) -> None:
    plain = PEFT.replace(" $@", "").replace(" peft.dim=16", "")
    option, value = words.split()
    told = [one.what for one in asked(tmp_path, f"{plain.strip()} {words}\n").violations]
    assert told.count(f"{option} is {value}") == 1


def test_the_argument_that_names_the_recipe_is_asked_for(tmp_path: Path) -> None:
    text = 'case "${1:?say a size}" in 4b) RECIPE=qwen3_4b_sft_config ;; 8b) RECIPE=qwen3_8b_sft_config ;; esac\n'
    text += "python run_recipe.py --recipe $RECIPE model.seq_length=4096 train.global_batch_size=8\n"
    (told,) = [one for one in asked(tmp_path, text).violations if one.what.startswith("which recipe is started")]
    assert told.fix == "give --arg (argument 1)"


OWN = """\
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.pretrain import pretrain


def own_config():
    config = _pretrain_common()
    config.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()
    config.model.tensor_model_parallel_size = 2
    config.model.max_position_embeddings = 4096
    config.train.micro_batch_size = 1
    config.train.global_batch_size = 16
    if not hasattr(config, "optim"):
        config.optim = OptimizerConfig()
    config.optim.use_distributed_optimizer = True
    return config


pretrain(own_config(), forward_step)
"""
LAID = """\
from megatron.bridge.recipes.llama.llama3 import llama3_8b_pretrain_8gpu_h100_bf16_config as recipe
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

config = process_config_with_overrides(recipe(), config_filepath=given.config_file, cli_overrides=left)
"""
SAID = """\
model: {tensor_model_parallel_size: 4, pipeline_model_parallel_size: 1, context_parallel_size: 1, seq_length: 2048}
train:
  micro_batch_size: 2
  global_batch_size: 32
"""


def test_a_recipe_of_a_users_own_is_read_and_by_the_script_that_starts_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "run.sh").write_text("# Megatron-Bridge\ntorchrun --nproc_per_node 8 own.py train.micro_batch_size=2\n")
    alone, started = (check(tmp_path / name, gpus="8xH100", search=False) for name in ("own.py", "run.sh"))
    assert (alone.name, started.name) == ("tp2.nosp.dp4.z1.mbs1.gbs16", "tp2.nosp.dp4.z1.mbs2.gbs16")
    assert alone.violations == started.violations == ()


def test_a_file_laid_over_a_recipe_of_the_package_is_read_by_the_program_that_lays_it(tmp_path: Path) -> None:
    (tmp_path / "laid.py").write_text(LAID)
    script = "source /opt/{}/activate.sh\nsrun bash -c 'torchrun --nproc_per_node 8 laid.py --config-file said.yaml'\n"
    (tmp_path / "run.sh").write_text(script.format("deep/" * 20))
    (missing,) = (one for one in check(tmp_path / "run.sh", gpus="8xH100").violations if "said" in one.what)
    assert (missing.code, missing.what) == ("ASK", "said.yaml is not here")
    (tmp_path / "said.yaml").write_text(SAID)
    report = check(tmp_path / "run.sh", gpus="8xH100", search=False)
    assert report.name == "tp4.nosp.dp2.z1.mbs2.gbs32"
    assert report.to_dict()["inputs"]["model"]["name"] == "llama-3-8b"
    assert report.launch is not None
    assert any(note.startswith(".../deep/") and note.endswith("script sets") for note in report.launch.notes)


def test_a_models_name_and_size_are_read_of_its_earlier_launcher(tmp_path: Path) -> None:
    words = "-m llama31 -s 405b -ng 512 -tp 8 -pp 8 -cp 2 -gb 512 -mb 1 -sl 8192"
    report = asked(tmp_path, f"python scripts/performance/setup_experiment.py --gpu h100 {words}\n")
    assert report.to_dict()["inputs"]["model"]["name"] == "llama-3.1-405b"


def test_the_whole_configuration_of_a_run_is_told_by_its_class(tmp_path: Path) -> None:
    file = tmp_path / "run_config.yaml"
    file.write_text("_target_: megatron.bridge.training.config.ConfigContainer\nmodel: {num_layers: 4}\n")
    assert format_of(file) == "hydra"
