"""torchtitan names models of its own, whose rope is made that of the model that was planned."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import check, plan
from meshwright.app.check import CheckReport
from meshwright.errors import InputError
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.fields.job import JobFields
from meshwright.library.models import spec
from meshwright.planning.plan_source import plan_question
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.planning.question.tuning_text import read_lora
from meshwright.specs.job import Job
from meshwright.specs.row import offload_token
from meshwright.targets import TARGETS, target_of_file
from meshwright.targets.torchtitan import flavors
from meshwright.targets.torchtitan.functions import module_keys
from tests.targets.cases import job
from tests.targets.test_round_trip import written


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("llama-3.1-8b", ()),
        ("llama-3-8b", ('rope.scaling = "none"',)),
        ("llama-3.2-1b", ("rope.scaling_factor = 32.0",)),
    ],
)
def test_the_rope_is_the_models(model: str, said: tuple[str, ...]) -> None:
    text = written("torchtitan", job("dp16.fsdp", model=model))["meshwright_plan.py"]
    ast.parse(text)
    assert text.count("layer.attention.rope") == len(said)
    assert all(part in text for part in said)


@pytest.mark.parametrize("dtype", ["fp8", "mxfp8"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_products_in_8_bits_are_written_and_read_back(model: str, dtype: str) -> None:
    fields = JobFields(model=model, gpus="8xB200", seq_len=2048, dtype=dtype)
    files = written("torchtitan", plan_question("dp8.fsdp.mbs2", fields).job)
    assert ("GroupedExpertsConverter" in files["meshwright_plan.py"]) == (model == "qwen3-30b-a3b")
    read = TARGETS["torchtitan"].read
    assert read is not None
    assert read(files, 8).workload["precision"].compute == dtype


def test_its_selective_recompute_is_written_and_read_back() -> None:
    text = written("torchtitan", job("dp16.fsdp.rc-sel-half_products"))["meshwright_plan.py"]
    assert "activation_checkpoint=SelectiveAC.Config()" in text
    found = TARGETS["torchtitan"].read({"meshwright_plan.py": text}, devices=16)
    assert not found.problems
    assert found.row.recompute_modules == ("half_products",)
    (problem,) = TARGETS["torchtitan"].refused(job("dp16.fsdp.rc-sel-mlp"))
    assert "rc-sel-half_products" in problem.fix


def test_a_model_it_does_not_ship_is_refused_with_those_it_does() -> None:
    (problem,) = TARGETS["torchtitan"].refused(job("dp16.fsdp", model="mixtral-8x7b"))
    assert "405B" in problem.why
    assert "accelerate" in problem.fix


def test_toml_without_a_length_is_recognised_and_one_of_images_is_told_apart() -> None:
    text = '[model]\nname = "flux"\n[training]\nlocal_batch_size = 4\n[parallelism]\ndata_parallel_shard_degree = -1\n'
    assert target_of_file("train.toml", text) == "torchtitan"
    found = TARGETS["torchtitan"].read({"train.toml": text}, devices=8)
    assert "model.name" in [problem.field for problem in found.problems]


def test_toml_that_parses_as_python_is_read_as_toml() -> None:
    """`[training]` is a list in Python and `seq_len = 8192` an assignment: nothing of it would be read."""
    text = "[training]\nlocal_batch_size = 2\nseq_len = 8192\n[parallelism]\ntensor_parallel_degree = 4\n"
    found = TARGETS["torchtitan"].read({"train.toml": text}, devices=16)
    assert (found.row.tp, found.row.dp, found.row.mbs) == (4, 4, 2)
    assert [problem.field for problem in found.problems] == ["activation_checkpoint"]  # one layer in 2 by default there


def test_updates_within_backward_are_layer_by_layer_and_messages_have_their_format() -> None:
    text = "[training]\nlocal_batch_size = 2\ndtype = 'bfloat16'\nmixed_precision_reduce = 'bfloat16'\n[parallelism]\n"
    more = "tensor_parallel_degree = 1\n[activation_checkpoint]\nmode = 'full'\n[optimizer]\nearly_step_in_backward = "
    held, early = (TARGETS["torchtitan"].read({"train.toml": text + more + word}, 8) for word in ("false", "true"))
    assert held.workload["precision"].name == "bf16 grad=bf16 reduce=bf16 moment=bf16 main=none"
    assert early.problems == held.problems
    assert (held.workload["optimizer"], early.workload["optimizer"]) == ("adamw", "adamw:layerwise=1")


def test_a_model_of_images_is_no_decoder() -> None:
    text = (
        '[model]\nname = "flux"\nflavor = "flux-dev"\n[training]\nlocal_batch_size = 4\nimg_size = 256\n[parallelism]\n'
    )
    found = TARGETS["torchtitan"].read({"train.toml": text}, devices=8)
    assert "a model of images" in next(problem.why for problem in found.problems if problem.field == "model.name")


@pytest.mark.parametrize(
    ("option", "recompute", "said"),
    [("op", "rc-sel-half_products", ""), ("4", "rc-block8", "one layer in 4")],
)
def test_selective_recompute_is_of_every_second_product_or_of_layers(option: str, recompute: str, said: str) -> None:
    text = f"""[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192
[parallelism]\ndata_parallel_shard_degree = -1\n[activation_checkpoint]\nselective_ac_option = "{option}"\n"""
    found = TARGETS["torchtitan"].read({"train.toml": text}, devices=8)
    assert not found.problems
    assert recompute in found.row.format().split(".")
    assert said in " ".join(found.notes)
    assert found.model["name"] == "llama-3.1-8b"
    assert {"model.name", "model.flavor"} <= {one.option for one in found.said}


def test_every_model_it_ships_is_one_of_the_librarys() -> None:
    for (family, layers, hidden, vocab), shipped in flavors._SHAPES.items():
        known = spec(str(flavors.library_name(*shipped)))
        assert (known.family, known.num_layers, known.hidden, known.vocab) == (family, layers, hidden, vocab)


def test_python_without_a_configuration_is_refused() -> None:
    with pytest.raises(InputError, match=r"Trainer\.Config"):
        TARGETS["torchtitan"].read({"train.py": "print(1)\n"}, devices=16)


REGISTRY = """\
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.trainer import Trainer

from . import model_registry
from .model import Llama3Model

LENGTH = 8192


def small() -> Trainer.Config:
    model_spec = model_registry("8B")
    return Trainer.Config(
        model_spec=model_spec,
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * LENGTH, max_context_length=LENGTH),
        activation_checkpoint=FullAC.Config(),
    )


def large() -> Trainer.Config:
    parallelism = ParallelismConfig(tensor_parallel_degree=8)
    config = small()
    config.model_spec = model_registry("70B", converters=[Float8LinearConverter.Config(model_compile_enabled=True)])
    config.parallelism = parallelism
    config.training.num_tokens_per_microbatch_per_dp_rank = LENGTH
    config.training.dtype = "float32"
    return config


def adapted() -> Trainer.Config:
    config = small()
    config.training.dtype = "bfloat16"
    config.model_spec = model_registry("8B", converters=[LoRAConverter.Config(rank=16, target_modules=["wq", "w2"])])
    return config


def looped() -> Trainer.Config:
    config = small()
    for _ in range(2):
        config.training.steps = 5
    return config
"""
START = "torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config {} --training.steps 10 $@\n"


def started(folder: Path, config: str, more: str = "") -> CheckReport:
    registry = folder / "torchtitan/models/llama3/config_registry.py"
    registry.parent.mkdir(parents=True, exist_ok=True)
    registry.write_text(REGISTRY)
    (folder / "run.sh").write_text(START.format(config).replace("$@", more))
    return check(folder / "run.sh", cluster="16xH100", search=False)


def test_a_command_says_which_function_of_a_registry_is_meant(tmp_path: Path) -> None:
    one = started(tmp_path, "small")
    assert one.name == "dp16.fsdp.mbs2.gbs32.rc-full"
    other = started(tmp_path, "large", "--parallelism.data_parallel_replicate_degree 2")
    assert other.name == "tp8.dp2.mbs1.gbs2.rc-full"
    found = other.to_dict()["inputs"]
    assert (found["model"]["name"], found["workload"]["seq_len"]) == ("llama-3.1-70b", 8192)
    assert isinstance(other.inputs, JobInputs)
    assert other.inputs.workload.precision.compute == "fp8"
    assert other.launch is not None
    places = {said.option: said.place for said in other.launch.said}
    assert places["parallelism.data_parallel_replicate_degree"] == "run.sh:1"


def test_adapters_of_a_converter_are_read(tmp_path: Path) -> None:
    report = started(tmp_path, "adapted")
    assert isinstance(report.inputs, JobInputs)
    assert report.inputs.model.tuning is not None
    lora = report.inputs.model.tuning.lora
    assert lora is not None
    assert (lora.rank, lora.targets, lora.base) == (16, ("q_proj", "mlp.down_proj"), None)


@pytest.mark.parametrize(("config", "why"), [("none", "small, large, adapted"), ("looped", "it holds for _ in")])
def test_a_configuration_that_cannot_be_told_is_asked_for(tmp_path: Path, config: str, why: str) -> None:
    assert why in started(tmp_path, config).violations[0].why


def test_functions_that_call_one_another_many_times_are_read_once() -> None:
    chain = "".join(f"def f{at}():\n" + f"    config = f{at + 1}()\n" * 9 + "    return config\n" for at in range(12))
    text = f"{chain}def f12():\n    return Trainer.Config(training=TrainingConfig(seq_len=64))\n"
    loop = "def g():\n    return h()\ndef h():\n    return g()\n"
    keys, unresolved = module_keys(text + loop, "f0")
    assert (keys["training"], unresolved) == ({"seq_len": 64}, {})
    assert "config" in module_keys(text + loop.replace("g()\n", "g() or f12()\n"), "g")[1]


def test_a_module_of_several_configurations_says_none_alone() -> None:
    found = TARGETS["torchtitan"].read({"config_registry.py": REGISTRY}, devices=16)
    assert found.row is None
    assert "small, large, adapted, looped" in found.questions[0].why


@pytest.mark.parametrize(
    ("model", "lora"),
    [
        ("llama-3.1-8b", "r=16,targets=qkv_proj,o_proj,mlp.gate_proj,mlp.up_proj,mlp.down_proj"),
        ("qwen3-30b-a3b", "r=8,targets=qkv_proj,o_proj"),
        ("llama-3.1-8b", "r=4,targets=o_proj,base=fp32"),
    ],
)
def test_adapters_come_back(model: str, lora: str) -> None:
    one = plan_question(
        "dp8.fsdp.mbs2.rc-full",
        JobFields(model=model, gpus="8xH100", seq_len=2048, lora=lora, software="megatron-core"),
    ).job
    read = TARGETS["torchtitan"].read
    assert read is not None
    launch = read(dict(TARGETS["torchtitan"].files(one, estimate_of(one)).files), 8)
    assert not launch.problems
    assert one.model.tuning is not None
    assert read_lora(launch.workload["lora"]) == one.model.tuning.lora


@pytest.mark.parametrize(
    ("model", "lora", "what"),
    [
        ("llama-3.1-8b", "r=16", "adapters are on q_proj, k_proj, v_proj"),
        ("qwen3-30b-a3b", "r=8,targets=qkv_proj,experts.*", "experts.down_proj"),
        ("llama-3.1-8b", "r=8,targets=qkv_proj,base=nf4,dora", "frozen weights are stored in nf4"),
        ("deepseek-v2-lite", "r=8,targets=o_proj", "adapters in its deepseek_v3"),
    ],
)
def test_adapters_that_it_has_not_are_refused(model: str, lora: str, what: str) -> None:
    one = plan_question(
        "dp8.fsdp.mbs2.rc-full",
        JobFields(model=model, gpus="8xH100", seq_len=2048, lora=lora, software="megatron-core"),
    ).job
    assert what in " ".join(problem.what for problem in TARGETS["torchtitan"].problems(one))


def estimate_of(one: Job) -> StepEstimate:
    return estimate_plan(one.plan, one.model, one.cluster, one.workload)


def test_tensor_overlap_stays_inside_a_domain() -> None:
    """Its asynchronous tensor parallelism writes into peers' memory, which ends where NVLink does."""
    inside, across = job("tp8.dp2.fsdp.tpov"), job("tp16.tpov")
    assert not [problem for problem in TARGETS["torchtitan"].refused(inside) if "NVLink" in problem.why]
    (problem,) = (problem for problem in TARGETS["torchtitan"].refused(across) if "NVLink" in problem.why)
    assert "leave out tpov" in problem.fix


def fields_refused(line: str, model: str, gpus: str = "16xH100") -> set[str]:
    return {problem.field for problem in TARGETS["torchtitan"].refused(job(line, model, gpus))}


def test_what_its_trainer_refuses_at_the_start_is_refused() -> None:
    """Heads of keys and values held twice, and sequences of multi-token prediction cut over context ranks."""
    assert fields_refused("tp4.fsdp", "qwen3-30b-a3b") == set()
    assert fields_refused("tp8.fsdp", "qwen3-30b-a3b") == {"tp"}
    assert fields_refused("cp2-ag.fsdp", "deepseek-v3") == {"cp"}
    one = job("tp8.fsdp", "llama-3.1-8b")
    odd = replace(one, workload=replace(one.workload, seq_len=4100))
    assert [problem.field for problem in TARGETS["torchtitan"].refused(odd)] == ["seq_len"]


def test_a_module_takes_sequences_as_long_as_the_plans() -> None:
    one = job("fsdp", "qwen3-8b")
    long = replace(one, workload=replace(one.workload, seq_len=65536))
    assert "layer.attention.rope.max_seq_len = 65536\n" in written("torchtitan", long)["meshwright_plan.py"]
    assert "max_seq_len" not in written("torchtitan", one)["meshwright_plan.py"]


def test_context_ranks_of_gpt_oss_take_a_kernel_that_has_them() -> None:
    texts = {
        line: written("torchtitan", job(line, "gpt-oss-20b"))["meshwright_plan.py"] for line in ("fsdp", "cp2-ag.fsdp")
    }
    assert 'attn_backend="flex"' in texts["cp2-ag.fsdp"]
    assert "attn_backend" not in texts["fsdp"]


def test_no_graph_is_captured_where_gradients_go_to_the_host() -> None:
    for line, graphs in (("fsdp.rc-full", True), ("fsdp.off-wog.rc-full", False)):
        assert (
            f"disable_cuda_graphs={not graphs},"
            in written("torchtitan", job(line, "llama-3.1-8b"))["meshwright_plan.py"]
        )


def test_of_the_offloads_tried_those_it_has_are_left() -> None:
    best = plan("llama-3.1-8b", gpus="4xRTX4090", offload="auto", target="torchtitan", top=1).best
    assert {offload_token(strategy.offload) for strategy in best.job.plan.strategies} == {"wog"}


@pytest.mark.parametrize(("components", "eager"), [('["loss"]', True), ('["model", "loss"]', False)])
def test_a_compiled_loss_alone_leaves_layers_uncompiled(components: str, eager: bool) -> None:
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 4096\n'
        f"[parallelism]\ntensor_parallel_degree = 2\n[compile]\nenable = true\ncomponents = {components}\n"
    )
    read = TARGETS["torchtitan"].read
    assert read is not None
    assert (read({"train.toml": text}, 8).workload.get("software") == "torchtitan-eager") == eager


def test_a_run_that_makes_a_seed_checkpoint_trains_nothing() -> None:
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 4096\n[checkpoint]\n'
    text += "create_seed_checkpoint = true\n"
    read = TARGETS["torchtitan"].read
    assert read is not None
    fields = [problem.field for problem in read({"train.toml": text}, 1).problems]
    assert fields == ["checkpoint.create_seed_checkpoint"]


def test_functions_that_change_configurations_of_other_files_say_so() -> None:
    text = (
        "from torchtitan.models.llama3.config_registry import llama3_8b\n\n\n"
        "def mine() -> GraphTrainer.Config:\n    return to_graph_trainer_config(llama3_8b())\n"
    )
    assert target_of_file("config_registry.py", text) == "torchtitan"
    with pytest.raises(InputError, match="change configurations of other files"):
        module_keys(text)


@pytest.mark.parametrize("key", ["expert_tensor_parallel_degree = 2", 'expert_parallel_comm_backend = "standard"'])
def test_keys_of_earlier_versions_that_do_nothing_are_passed_over(key: str) -> None:
    text = f'[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\n[parallelism]\n{key}\n'
    assert not TARGETS["torchtitan"].read({"train.toml": text}, 8).problems


OF_A_FOLDER = """\
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer
from . import model_registry


def deepseek_v3_16b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("16B"),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=4096, max_context_length=4096),
        parallelism=ParallelismConfig(expert_parallel_degree=8),
        activation_checkpoint={again},
    )
"""


def test_a_registry_whose_functions_have_a_folders_name_says_the_model(tmp_path: Path) -> None:
    file = tmp_path / "config_registry.py"
    file.write_text(OF_A_FOLDER.format(again="None"))
    report = check(file, cluster="8xH100", search=False)
    assert (report.name, report.to_dict()["inputs"]["model"]["name"]) == ("ep8.dp8.fsdp.mbs1.gbs8", "deepseek-v2-lite")


@pytest.mark.parametrize(
    ("again", "recompute"),
    [('mode="full"', ".rc-full"), ('mode="none"', ""), ('mode="selective", selective_ac_option="1"', ".rc-block27")],
)
def test_recompute_of_releases_between_and_a_fork_is_read(tmp_path: Path, again: str, recompute: str) -> None:
    file = tmp_path / "config_registry.py"
    text = OF_A_FOLDER.format(again=f"ActivationCheckpointConfig({again})")
    file.write_text(text.replace("Trainer.Config", "TrainerConfig"))
    assert check(file, cluster="8xH100", search=False).name == f"ep8.dp8.fsdp.mbs1.gbs8{recompute}"


def test_no_model_is_asked_for_while_the_configuration_is_open(tmp_path: Path) -> None:
    file = tmp_path / "config_registry.py"
    file.write_text(REGISTRY)
    assert [one.field for one in check(file, search=False).violations] == ["config", "cluster"]


@pytest.mark.parametrize(
    ("function", "flavor", "model"),
    [("qwen3_8b", "8B", "qwen3-8b"), ("qwen3_vl_8b", "8B", None), ("qwen3_5_4b", "4B", None)],
)
def test_a_folder_whose_name_begins_as_anothers_is_not_that(function: str, flavor: str, model: str | None) -> None:
    text = OF_A_FOLDER.format(again="None").replace("deepseek_v3_16b", function).replace("16B", flavor)
    found = TARGETS["torchtitan"].read({"config_registry.py": text}, devices=8)
    assert found.model.get("name") == model


ON_THE_WAY = """
    config.activation_checkpoint.early_stop = True
    config.activation_checkpoint.mode = mode
    return config
"""


@pytest.mark.parametrize(
    ("again", "mode", "changed", "recompute"),
    [
        ('ActivationCheckpointConfig("full")', '"none"', False, "full"),
        ('ActivationCheckpointConfig("selective", "1")', '"none"', False, "block"),
        ("ActivationCheckpointConfig(mode=mode)", '"full"', False, "full"),
        ("ActivationCheckpointConfig()", '"full"', True, "full"),
        ("None", '"none"', True, "none"),
        ("ActivationCheckpointConfig(mode=mode)", "chosen()", False, None),
        ("ActivationCheckpointConfig(**mode)", "chosen()", False, None),
        ("ActivationCheckpointConfig()", "chosen()", True, None),
    ],
)
def test_recompute_is_read_however_it_is_said_or_asked_for(
    again: str, mode: str, changed: bool, recompute: str | None
) -> None:
    text = OF_A_FOLDER.format(again=again)
    text = text.replace("    return Trainer", f"    mode = {mode}\n    return Trainer")
    if changed:
        text = text.replace("return Trainer", "config = Trainer") + ON_THE_WAY
    found = TARGETS["torchtitan"].read({"config_registry.py": text}, devices=8)
    assert (None if found.row is None else found.row.recompute) == recompute
    assert [question.field for question in found.questions] == ([] if recompute else ["activation_checkpoint"])


def test_a_memory_budget_is_no_selective_recompute() -> None:
    text = OF_A_FOLDER.format(again='ActivationCheckpointConfig(mode="memory_budget")')
    found = TARGETS["torchtitan"].read({"config_registry.py": text}, devices=8)
    assert [problem.field for problem in found.problems] == ["activation_checkpoint"]
