"""Options from printed arguments, W&B and Hydra configs and YAML files."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from meshwright.errors import InputError, MeshwrightError, UnsupportedError
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.megatron.read import read_flags
from meshwright.formats.megatron.records import script_of
from meshwright.formats.shell import read_script

DUMP = """using world size: 16
------------------------ arguments ------------------------
  add_bias_linear ................................. False
  bf16 ............................................ True
  cp_comm_type .................................... ['a2a']
  context_parallel_size ........................... 2
  fp16 ............................................ False
  global_batch_size ............................... 64
  hidden_size ..................................... 4096
  micro_batch_size ................................ 1
  num_attention_heads ............................. 32
  num_experts ..................................... None
  num_layers ...................................... 32
  pipeline_model_parallel_size .................... 2
  tensor_model_parallel_size ...................... 2
  sequence_parallel ............................... True
  use_distributed_optimizer ....................... True
  virtual_pipeline_model_parallel_size ............ 4
  wandb_api_key ................................... sk-secret
-------------------- end of arguments ---------------------
"""


def read(text: str, kind: str, environment: dict[str, str] | None = None) -> LaunchFile:
    script = read_script(script_of(text, kind), name=f"run.{kind}", environment=environment)
    return read_flags(script, devices=16)


def test_printed_arguments_are_the_plan_of_the_run() -> None:
    found = read(DUMP, "args")
    assert (found.problems, found.questions) == ((), ())
    assert found.row is not None
    assert found.row.format() == "tp2.cp2-a2a.pp2.vpp4.dp2.z1.mbs1.gbs64.nodpov"
    places = {said.option: said.place for said in found.said}
    assert places["--hidden-size"] == "run.args:9"
    assert not any("secret" in str(value) for value in (found.said, found.unpriced, found.notes))


def test_a_wandb_config_says_the_same() -> None:
    values = {
        "tensor_model_parallel_size": {"value": 2},
        "pipeline_model_parallel_size": {"value": 2},
        "micro_batch_size": {"desc": None, "value": 1},
        "global_batch_size": {"value": 64},
        "sequence_parallel": {"value": True},
        "use_distributed_optimizer": {"value": True},
        "wandb_key": {"value": "sk-secret"},
    }
    found = read(json.dumps(values, indent=1), "wandb")
    assert found.row is not None
    assert found.row.format() == "tp2.pp2.dp4.z1.mbs1.gbs64.nodpov"


def test_a_hydra_config_of_nemo_is_read_by_its_own_names() -> None:
    pytest.importorskip("yaml")
    text = """
trainer: {devices: 8, num_nodes: 2}
model:
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  sequence_parallel: true
  encoder_seq_length: 4096
  activations_checkpoint_granularity: full
  activations_checkpoint_method: uniform
  activations_checkpoint_num_layers: 1
"""
    found = read(text, "hydra")
    assert found.row is not None
    assert found.row.recompute == "full"
    assert found.workload["seq_len"] == 4096


NEMO = """
trainer: {devices: 8, num_nodes: 2, precision: bf16}
exp_manager:
  model_parallel_size: ${multiply:${training.model.tensor_model_parallel_size}, ${.pipelines}}
model:
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 8
  hidden_size: 1024
  ffn_hidden_size: ${multiply:3, ${.hidden_size}}
  num_attention_heads: 8
  hidden_dropout: 0.0
  attention_dropout: 0.0
  normalization: rmsnorm
  bias: false
  qkv_bias: true
  activation: fast-swiglu
  share_embeddings_and_output_weights: false
  position_embedding_type: rope
  megatron_amp_O2: true
  optim: {name: distributed_fused_adam, overlap_grad_sync: true}
"""


def test_the_model_of_a_nemo_config_is_that_of_its_own_defaults_and_words() -> None:
    """Interpolations are resolved; `activation`, `bias` and `optim` are words that Megatron-LM does not have."""
    pytest.importorskip("yaml")
    found = read(NEMO, "hydra")
    assert found.row is not None
    assert found.row.format() == "tp2.nosp.pp2.dp4.z1.mbs1.gbs64"
    facts = {name: found.model[name] for name in ("ffn_hidden", "gated", "norm", "biases", "dropout", "max_positions")}
    assert facts == {
        "ffn_hidden": 3072,
        "gated": True,
        "norm": "rmsnorm",
        "biases": (True, False, False),
        "dropout": False,
        "max_positions": 4096,
    }
    assert not found.model["tied_embeddings"]
    assert found.workload["precision"].activations == "bf16"


@pytest.mark.parametrize("more", ["  mm_cfg: {llm: {}}\n", "  encoder: {num_layers: 2}\n", "  patch_dim: 14\n"])
def test_nemo_models_with_another_tower_are_refused(more: str) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(UnsupportedError, match="no plain decoder"):
        script_of(NEMO + more, "hydra")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("megatron_griffin", "recurrences"),
        ("megatron_ul2", "an encoder and a decoder"),
        ("fine_tune_retro", "retrieved"),
        ("megatron_llama_distill", "second model"),
    ],
)
def test_nemo_configs_of_other_models_are_told_by_their_names(name: str, why: str) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(UnsupportedError, match=why):
        script_of(f"name: {name}\n{NEMO}", "hydra")


def test_nemo_takes_the_names_of_norms_that_megatron_core_has() -> None:
    pytest.importorskip("yaml")
    found = read(NEMO.replace("rmsnorm", "RMSNorm"), "hydra")
    assert (found.model["norm"], found.problems) == ("rmsnorm", ())


def test_variables_of_a_yaml_file_are_asked_for() -> None:
    pytest.importorskip("yaml")
    text = """ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --tensor-model-parallel-size: ${TP}
  --micro-batch-size: 1
  --global-batch-size: $((2 * ${GBS}))
  --sequence-parallel: true
  --swiglu: false
  --save: $(touch gone)/`touch gone`
"""
    asked = read(text, "yaml")
    assert {question.fix for question in asked.questions} == {"give --env TP=VALUE", "give --env GBS=VALUE"}
    found = read(text, "yaml", {"TP": "2", "GBS": "32"})
    assert found.row is not None
    assert found.row.format() == "tp2.dp8.mbs1.gbs64.nodpov"
    assert "--swiglu" not in {said.option for said in found.said}


@pytest.mark.parametrize("kind", ["args", "wandb", "hydra", "yaml"])
@pytest.mark.parametrize("text", ["{}", "[1, 2]", "hello", "a: [", '{"a": {"b": 1}}', "x ... 1\n"])
def test_what_is_no_record_is_an_error(text: str, kind: str) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(MeshwrightError):
        script_of(text, kind)


def test_anchors_that_multiply_are_refused() -> None:
    pytest.importorskip("yaml")
    levels = "\n".join(
        f"k{n}: &k{n} {{{', '.join(f'a{m}: *k{n - 1}' for m in range(9))}}}" if n else "k0: &k0 {x: 1}"
        for n in range(9)
    )
    with pytest.raises(InputError, match="aliases"):
        script_of(levels, "hydra")


def test_options_over_a_base_that_is_not_here_are_a_part_of_a_run() -> None:
    text = "modules:\n  trainer:\n    framework: megatron\n    config: base.yaml\n    overrides:\n"
    text += "      tensor_model_parallel_size: 2\n      micro_batch_size: 1\n"
    with pytest.raises(InputError, match=r"megatron's base\.yaml"):
        script_of(text, "hydra")


def test_processes_of_a_run_are_those_that_it_recorded() -> None:
    dump = "\n".join(
        f"  {name} {'.' * 20} {value}"
        for name, value in (("num_layers", 4), ("micro_batch_size", 1), ("tensor_model_parallel_size", 2))
    )
    assert read_flags(script_of(f"{dump}\n  world_size ........ 16\n", "args")).started == 16
    assert read_flags(script_of(dump, "args")).started is None


_DEEPSPEED = """\
{host}------------------------ arguments ------------------------
{host}  bf16 ............................................ True
{host}  deepspeed ....................................... {deepspeed}
{host}  ds_sequence_parallel_size ....................... 1
{host}  encoder_num_layers .............................. 28
{host}  global_batch_size ............................... 16
{host}  hidden_size ..................................... 3584
{host}  micro_batch_size ................................ 1
{host}  no_pipeline_parallel ............................ False
{host}  num_attention_heads ............................. 28
{host}  num_experts ..................................... [1]
{host}  num_key_value_heads ............................. 4
{host}  num_layers ...................................... 28
{host}  pipeline_model_parallel_size .................... 4
{host}  retriever_report_topk_accuracies ................ []
{host}  seq_length ...................................... 2048
{host}  tensor_model_parallel_size ...................... 1
{host}  topk ............................................ 1
{host}  vision_backbone_type ............................ vit
{host}  world_size ...................................... 16
{host}  zero_stage ...................................... 1.0
"""


@pytest.mark.parametrize("host", ["", "worker-0: "])
def test_arguments_that_megatron_deepspeed_prints_are_read_by_their_own_names(host: str) -> None:
    """Defaults of other programs, and one expert, are of no plan; names of the fork are."""
    text = _DEEPSPEED.format(host=host, deepspeed=True)
    made = script_of(text, "args")
    said = {*made.split()}
    assert {"--deepspeed", "--zero-stage", "--num-key-value-heads"} <= said
    assert not {"--vision-backbone-type", "--num-experts", "--encoder-num-layers"} & said
    assert not any("retriever" in word for word in said)
    assert "--zero-stage 1 \\\n" in made
    off = script_of(_DEEPSPEED.format(host=host, deepspeed=False), "args")
    assert "--zero-stage" not in off
    found = read_flags(read_script(off), devices=16)
    assert (found.problems, found.model["kv_heads"]) == ((), 4)


def test_a_stored_number_that_is_zero_or_one_is_no_switch() -> None:
    pytest.importorskip("yaml")
    values = {
        "hidden_size": 4096,
        "num_layers": 2,
        "micro_batch_size": 1,
        "hidden_dropout": 0.0,
        "attention_dropout": 0,
    }
    text = "wandb_version: 1\n" + "".join(f"{name}: {{value: {value}}}\n" for name, value in values.items())
    words = script_of(text, "wandb").split()
    pairs = {"--hidden-dropout 0.0", "--attention-dropout 0", "--micro-batch-size 1"}
    assert pairs <= {f"{one} {after}" for one, after in pairwise(words)}
