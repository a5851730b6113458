"""Configurations of trainers that are read and not written, as their users have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright import check
from meshwright.app.check import CheckReport
from meshwright.errors import InputError, UnsupportedError
from meshwright.fields.job import JobFields
from meshwright.formats.megatron import model_facts
from meshwright.launch_files.script import script_question
from meshwright.launch_files.source import Outside
from meshwright.library.models import spec
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.targets import TRAINERS, reader_named, readers, target_named

TUNE = """\
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj']
  apply_lora_to_mlp: True
  lora_rank: 16
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: 2048
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  output_dir: ${output_dir}
optimizer:
  _component_: torch.optim.AdamW
batch_size: 2
gradient_accumulation_steps: 4
enable_activation_checkpointing: True
fsdp_cpu_offload: False
dtype: bf16
"""
LIT = """\
checkpoint_dir: checkpoints/meta-llama/Meta-Llama-3.1-8B
precision: bf16-true
devices: 4
num_nodes: 1
train:
  global_batch_size: 66
  micro_batch_size: 4
  lr_warmup_steps: 10
  max_seq_length: 512
"""
NANOTRON = """\
model:
  dtype: bfloat16
  make_vocab_size_divisible_by: 1
  model_config:
    is_llama_config: true
    hidden_size: 2048
    intermediate_size: 8192
    num_attention_heads: 32
    num_hidden_layers: 16
    num_key_value_heads: 8
    max_position_embeddings: 4096
    tie_word_embeddings: true
    vocab_size: 128256
optimizer:
  accumulate_grad_in_fp32: true
  zero_stage: 1
parallelism:
  dp: 2
  pp: 2
  tp: 2
  pp_engine: 1f1b
  tp_mode: REDUCE_SCATTER
  tp_linear_async_communication: true
tokens:
  batch_accumulation_per_replica: 8
  micro_batch_size: 2
  sequence_length: 4096
"""
NEOX = """\
{
  "pipe-parallel-size": 2,
  "model-parallel-size": 1,
  "num-layers": 32,
  "hidden-size": 4096,
  "num-attention-heads": 32,
  "seq-length": 2048,
  "max-position-embeddings": 2048,
  "pos-emb": "rotary",
  "norm": "layernorm",
  "no-weight-tying": true,
  "gpt-j-residual": true,
  "attention-config": [[["flash"], 32]],
  "zero_optimization": {"stage": 1, "overlap_comm": True},
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2,
  "checkpoint-activations": true,
  "fp16": {"enabled": true},
}
"""
FOUNDRY = """\
variables:
  max_seq_len: 2048
max_seq_len: ${variables.max_seq_len}
model:
  name: mpt_causal_lm
  d_model: 4096
  n_heads: 32
  n_layers: 32
  max_seq_len: ${variables.max_seq_len}
  vocab_size: 50368
train_loader:
  name: text
optimizer:
  name: decoupled_lionw
global_train_batch_size: 1024
device_train_microbatch_size: auto
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  mixed_precision: PURE
  activation_checkpointing: true
"""
LEVANTER = """\
data: !include data/pile.yaml
model:
  type: llama
  hidden_dim: 4096
  intermediate_dim: 11008
  num_layers: 32
  num_heads: 32
  num_kv_heads: 32
  seq_len: 2048
trainer:
  mp: p=f32,c=bfloat16
  train_batch_size: 256
  num_train_steps: 1000
"""
XTUNER = """\
from torch.optim import AdamW
from xtuner.model import SupervisedFinetune

pretrained_model_name_or_path = "meta-llama/Llama-2-7b-hf"
sequence_parallel_size = 2
max_length = 8192
pack_to_max_length = True
batch_size = 1  # per device
accumulative_counts = 4
accumulative_counts *= sequence_parallel_size
optim_type = AdamW
model = dict(
    type=SupervisedFinetune,
    llm=dict(pretrained_model_name_or_path=pretrained_model_name_or_path, torch_dtype=torch.float16),
)
optim_wrapper = dict(type=AmpOptimWrapper, dtype="float16")
"""
SWIFT = """\
NPROC_PER_NODE=8 \\
swift sft \\
    --model Qwen/Qwen2.5-7B-Instruct \\
    --tuner_type full \\
    --torch_dtype bfloat16 \\
    --per_device_train_batch_size 1 \\
    --gradient_accumulation_steps 2 \\
    --deepspeed zero2_offload \\
    --max_length 4096
"""
OF_MEGATRON = """\
NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-30B-A3B --tensor_model_parallel_size 2 --sequence_parallel true \\
    --expert_model_parallel_size 4 --micro_batch_size 2 --global_batch_size 32 --max_length 8192 \\
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 --overlap_grad_reduce false
"""


RLHF = """\
read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \\
   --max_len 4096 \\
   --train_batch_size 64 \\
   --micro_train_batch_size 2 \\
   --pretrain meta-llama/Meta-Llama-3-8B \\
   --zero_stage 3 \\
   --adam_offload \\
   --bf16 \\
   --gradient_checkpointing
EOF
deepspeed --num_gpus 8 --module $training_commands
"""
VERL = """\
torchrun --nproc_per_node=$1 -m verl.trainer.fsdp_sft_trainer \\
    data.train_batch_size=64 data.micro_batch_size_per_gpu=4 data.max_length=2048 \\
    model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct model.lora_rank=16 \\
    ulysses_sequence_parallel_size=2 use_remove_padding=true
"""


def read(folder: Path, name: str, text: str, **more: Any) -> CheckReport:
    """A file as `check` reads it."""
    (folder / name).write_text(text)
    return check(folder / name, **{"cluster": "8xH100", "search": False, **more})


def inputs(report: CheckReport) -> JobInputs:
    """What was asked, with the model."""
    assert isinstance(report.inputs, JobInputs)
    return report.inputs


def asks(report: CheckReport) -> list[str]:
    """Fields of what only the user can say."""
    return [one.field for one in report.violations if one.code == "ASK"]


def refused(report: CheckReport) -> list[str]:
    """Fields of what a plan cannot hold."""
    return [one.field for one in report.violations if one.code == "OPTIONS"]


def test_a_recipe_of_torchtune_says_model_adapters_and_sharding(tmp_path: Path) -> None:
    report = read(tmp_path, "8B_lora.yaml", TUNE)
    assert report.name == "dp8.fsdp.mbs2.gbs64.rc-full"
    model = inputs(report).model
    assert model.name == "llama-3.1-8b"
    assert model.tuning is not None
    assert model.tuning.lora is not None
    assert model.tuning.lora.rank == 16
    assert set(model.tuning.lora.targets) == {"q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"}
    assert inputs(report).workload.seq_len == 2048
    assert inputs(report).workload.precision.master is None  # all of it in bf16


@pytest.mark.parametrize(
    ("model", "rank", "tokens", "offload", "gpus", "published_gib"),
    [
        # pytorch/torchtune README (October 2024): batch 2, packed, compiled, checkpointed; with `loss_tiles` of its
        # LinearCrossEntropyLoss. The 3B rows also offload the inputs of layers.
        ("llama3_1.qlora_llama3_1_8b", 8, 2048, False, "1xRTX4090", 7.4),
        ("llama3_1.lora_llama3_1_8b", 8, 2048, False, "1xRTX4090", 16.2),
        ("llama3_2.qlora_llama3_2_3b", 64, 4096, True, "1xA100-80", 4.6),
        ("llama3_2.lora_llama3_2_3b", 64, 4096, True, "1xA100-80", 8.5),
    ],
)
def test_torchtunes_loss_in_pieces_holds_what_its_table_says(
    tmp_path: Path, model: str, rank: int, tokens: int, offload: bool, gpus: str, published_gib: float
) -> None:
    text = TUNE.replace("llama3_1.lora_llama3_1_8b", model).replace("lora_rank: 16", f"lora_rank: {rank}")
    text = text.replace("'v_proj']", "'v_proj', 'output_proj']").replace("max_seq_len: 2048", f"max_seq_len: {tokens}")
    text = text.replace("gradient_accumulation_steps: 4", "gradient_accumulation_steps: 1") + "compile: True\n"
    text += f"enable_activation_offloading: {offload}\n"
    loss = "loss:\n  _component_: torchtune.modules.loss.LinearCrossEntropyLoss\n"
    whole, pieces = (
        read(tmp_path, "a_single_device.yaml", one, cluster=gpus, search=False) for one in (text, text + loss)
    )
    assert (inputs(whole).workload.loss_tiles, inputs(pieces).workload.loss_tiles) == (1, 8)
    held = [
        sum(size for kind, size in one.estimate.fullest.memory_bytes if kind not in ("overhead", "comm_buffers"))
        for one in (whole, pieces)
    ]
    assert held[1] < held[0]
    assert held[1] / 2**30 == pytest.approx(published_gib, rel=0.10)
    assert (
        inputs(
            read(tmp_path, "a_single_device.yaml", text + loss + "  num_output_chunks: 4\n", cluster=gpus)
        ).workload.loss_tiles
        == 4
    )


def test_weights_that_torchtune_updates_in_backward_need_what_its_table_says(tmp_path: Path) -> None:
    """pytorch/torchtune README (October 2024): Llama 3.1 8B, full finetune, 1x 4090, batch 2 of 2,048: 18.9 GiB."""
    text = TUNE.replace("lora_llama3_1_8b", "llama3_1_8b").replace(
        "torch.optim.AdamW", "bitsandbytes.optim.PagedAdamW8bit"
    )
    text = "\n".join(line for line in text.splitlines() if not line.strip().startswith(("lora_", "apply_lora")))
    text = text.replace("gradient_accumulation_steps: 4", "gradient_accumulation_steps: 1") + "\nloss:\n"
    text += "  _component_: torchtune.modules.loss.LinearCrossEntropyLoss\n"
    name = "8B_full_single_device.yaml"
    early = read(tmp_path, name, text + "optimizer_in_bwd: True\n", cluster="1xRTX4090", search=False)
    late = read(tmp_path, name, text, cluster="1xRTX4090", search=False)
    assert (early.ok, late.ok) == (True, False)
    bytes_of = dict(early.estimate.fullest.memory_bytes)
    held = sum(size for kind, size in bytes_of.items() if kind not in ("overhead", "comm_buffers"))
    assert held / 2**30 == pytest.approx(18.9, rel=0.10)
    text = text.replace("gradient_accumulation_steps: 1", "gradient_accumulation_steps: 4")
    with pytest.raises(UnsupportedError, match="4 micro-batches"):
        read(tmp_path, name, text + "optimizer_in_bwd: True\n", cluster="1xRTX4090", search=False)


def test_recipes_for_one_device_and_fused_steps_are_told(tmp_path: Path) -> None:
    assert refused(read(tmp_path, "8B_lora_single_device.yaml", TUNE)) == ["devices"]
    alone = read(tmp_path, "8B_lora_single_device.yaml", TUNE, cluster="1xH100")
    assert alone.ok
    assert alone.name == "dp1.mbs2.gbs8.rc-full"


def test_a_recipe_without_an_optimizer_or_with_a_teacher_trains_no_plan(tmp_path: Path) -> None:
    text = TUNE.replace("optimizer:\n  _component_: torch.optim.AdamW\n", "teacher_model:\n  _component_: x\n")
    assert refused(read(tmp_path, "8B_lora.yaml", text)) == ["optimizer", "teacher_model"]


def test_litgpt_drops_what_is_left_of_a_batch_and_recomputes_on_several_devices(tmp_path: Path) -> None:
    report = read(tmp_path, "full.yaml", LIT, cluster="4xH100")
    assert report.ok
    assert report.name == "dp4.fsdp.mbs4.gbs64.rc-full"
    assert any("64 sequences" in note for note in report.launch.notes) if report.launch else False
    assert refused(read(tmp_path, "full.yaml", LIT)) == ["devices"]
    assert read(tmp_path, "full.yaml", LIT, settings="devices=8").ok


def test_litgpt_keeps_what_adapters_stand_on_as_wide_as_its_mixed_precision_does(tmp_path: Path) -> None:
    tuned = LIT.replace("bf16-true", "bf16-mixed") + "lora_r: 8\n"
    one = inputs(read(tmp_path, "lora.yaml", tuned, cluster="4xH100"))
    assert one.model.lora is not None
    assert (one.model.lora.base, one.workload.precision.reduce) == ("fp32", "fp32")
    alone = tuned.replace("devices: 4", "devices: 1")
    stored = read(tmp_path, "lora.yaml", alone + "quantize: bnb.nf4\n", cluster="1xH100")
    assert refused(stored) == ["quantize"]


def test_litgpt_copies_a_pretraining_between_nodes_and_has_batches_of_its_own(tmp_path: Path) -> None:
    anew = LIT.replace("checkpoint_dir: checkpoints/meta-llama/", "model_name: ").replace(
        "num_nodes: 1", "num_nodes: 2"
    )
    report = read(tmp_path, "pretrain.yaml", anew)
    assert report.name == "dp8.hsdp4.mbs4.gbs64"
    assert report.launch is not None
    assert any("HYBRID_SHARD" in note for note in report.launch.notes)
    usual = LIT.replace("  global_batch_size: 66\n", "").replace("  micro_batch_size: 4\n", "  micro_batch_size: 1\n")
    tuned = read(tmp_path, "full.yaml", usual)
    assert tuned.name == "dp4.fsdp.mbs1.gbs16.rc-full"
    assert tuned.launch is not None
    assert any("4 micro-batches" in note for note in tuned.launch.notes)


def test_nanotron_holds_the_whole_model_and_its_degrees(tmp_path: Path) -> None:
    report = read(tmp_path, "config.yaml", NANOTRON)
    assert report.ok
    assert report.name == "tp2.pp2.dp2.z1.mbs2.gbs32"
    assert inputs(report).model.parameters == 1_235_814_400  # Llama 3.2 1B
    assert refused(read(tmp_path, "config.yaml", NANOTRON, cluster="16xH100")) == ["parallelism.dp"]


@pytest.mark.parametrize(
    ("said", "instead", "field"),
    [
        ("tp_mode: REDUCE_SCATTER", "tp_mode: ALL_REDUCE", "parallelism.tp_linear_async_communication"),
        ("  pp: 2\n", "  pp: 16\n", "tokens.batch_accumulation_per_replica"),
        ("  tp: 2\n", "  tp: 16\n", "parallelism.tp"),
        ("is_llama_config: true", "is_starcoder2_config: true", "parallelism.recompute_layer"),
    ],
)
def test_nanotron_refuses_what_its_trainer_stops_on_or_reads_past(
    tmp_path: Path, said: str, instead: str, field: str
) -> None:
    text = NANOTRON.replace("  pp_engine", "  recompute_layer: true\n  pp_engine").replace(said, instead)
    assert set(refused(read(tmp_path, "config.yaml", text))) - {"parallelism.dp"} == {field}


def test_nanotron_goes_on_with_context_ranks_from_a_checkpoint(tmp_path: Path) -> None:
    text = NANOTRON.replace("  pp: 2", "  pp: 1\n  context_parallel_size: 2").replace("zero_stage: 1", "zero_stage: 0")
    report = read(tmp_path, "config.yaml", text)
    assert set(refused(report)) == {"parallelism.context_parallel_size"}
    kind = "is_qwen2_config: true\n    _attn_implementation: llama3_ring_attention"
    text = text.replace("is_llama_config: true", kind) + "checkpoints:\n  resume_checkpoint_path: checkpoints\n"
    assert read(tmp_path, "config.yaml", text).name == "tp2.cp2-ag.dp2.mbs2.gbs32"


def test_nanotron_fills_in_what_a_file_leaves_out(tmp_path: Path) -> None:
    """Starcoder2 has one head of keys and values, or the groups that are stated, and layers of four widths."""
    said = "    num_key_value_heads: 8\n", "    intermediate_size: 8192\n"
    short = NANOTRON.replace(said[0], "").replace(said[1], "").replace("is_llama_config", "is_starcoder2_config")
    one = inputs(read(tmp_path, "config.yaml", short))
    four = inputs(
        read(
            tmp_path, "config.yaml", short.replace("true\n", "true\n    grouped_query: true\n    num_kv_heads: 4\n", 1)
        )
    )
    facts = [model_facts(one.model), model_facts(four.model)]
    assert [(of["kv_heads"], of["ffn_hidden"]) for of in facts] == [(1, 8192), (4, 8192)]


def test_neox_asks_for_the_vocabulary_that_its_tokenizer_has(tmp_path: Path) -> None:
    report = read(tmp_path, "6-9B.yml", NEOX)
    assert asks(report) == ["padded_vocab_size"]
    report = read(tmp_path, "6-9B.yml", NEOX, settings="padded_vocab_size=50432")
    assert report.ok
    assert report.name == "pp2.dp4.z1.mbs4.gbs32.rc-full"
    assert inputs(report).model.parameters == 6_857_302_016  # Pythia 6.9B
    assert inputs(report).workload.precision.name == "fp16"


def test_foundry_fills_in_references_and_asks_for_a_micro_batch_that_is_auto(tmp_path: Path) -> None:
    assert asks(read(tmp_path, "mpt.yaml", FOUNDRY)) == ["device_train_microbatch_size"]
    report = read(tmp_path, "mpt.yaml", FOUNDRY, settings="device_train_microbatch_size=8")
    assert report.ok
    assert report.name == "dp8.fsdp.mbs8.gbs1024.rc-full"
    workload = inputs(report).workload
    assert (workload.seq_len, workload.optimizer, workload.precision.reduce) == (2048, "lion", "bf16")
    lines = "\n".join(f"  {line}" for line in FOUNDRY.split("\n"))
    submitted = f"name: a\nimage: b\ncompute: {{gpus: 8}}\nparameters:\n{lines}\n"
    assert asks(read(tmp_path, "job.yaml", submitted)) == ["device_train_microbatch_size"]
    assert read(tmp_path, "job.yaml", submitted, settings="device_train_microbatch_size=8").name == report.name


@pytest.mark.parametrize(
    ("said", "parameters"),
    [
        ("", 6_658_859_008),  # GPT-2's layers: biases and learned positions
        ("  expansion_ratio: 2\n", 4_511_113_216),
        ("  ffn_config: {ffn_hidden_size: 8192}\n", 4_511_113_216),
        ("  attn_config: {alibi: true}\n", 6_650_470_400),
        ("  attn_config: {alibi: true}\n  no_bias: true\n", 6_649_024_512),
    ],
)
def test_foundry_counts_the_biases_positions_and_width_of_mpt(tmp_path: Path, said: str, parameters: int) -> None:
    text = FOUNDRY.replace("  vocab_size: 50368\n", f"  vocab_size: 50368\n{said}").replace(": auto", ": 8")
    report = read(tmp_path, "mpt.yaml", text)
    assert inputs(report).model.parameters == parameters
    assert not any("left out" in note for note in report.warnings)


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("  ffn_config: {ffn_type: mptgeglu}\n", "model.ffn_config.ffn_type"),
        ("  expansion_ratio: 2.00001\n", "model.expansion_ratio"),
        ("  no_bias: true\n", "model.no_bias"),
    ],
)
def test_foundry_refuses_what_no_family_has(tmp_path: Path, said: str, field: str) -> None:
    text = FOUNDRY.replace("  vocab_size: 50368\n", f"  vocab_size: 50368\n{said}").replace(": auto", ": 8")
    assert refused(read(tmp_path, "mpt.yaml", text)) == [field]


def test_nanotron_asks_for_the_kind_of_its_model(tmp_path: Path) -> None:
    report = read(tmp_path, "config.yaml", NANOTRON.replace("    is_llama_config: true\n", ""))
    assert refused(report) == ["model.model_config.is_llama_config"]


def test_levanter_trains_with_the_tokenizer_of_gpt_2_by_default(tmp_path: Path) -> None:
    report = read(tmp_path, "llama.yaml", LEVANTER.replace("!include data/pile.yaml", "{id: wikitext}"))
    assert report.ok
    assert inputs(report).model.vocab == 50257


def test_levanter_takes_the_tokenizer_of_a_file_it_includes(tmp_path: Path) -> None:
    assert asks(read(tmp_path, "llama.yaml", LEVANTER)) == ["model"]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "pile.yaml").write_text('tokenizer: "NousResearch/Llama-2-7b-hf"\n')
    report = read(tmp_path, "llama.yaml", LEVANTER)
    assert report.ok
    assert report.name == "dp8.fsdp.mbs32.gbs256.rc-full"
    assert inputs(report).model.parameters == 6_738_415_616  # Llama 2 7B


def test_xtuner_asks_for_the_engine_that_its_command_names(tmp_path: Path) -> None:
    assert asks(read(tmp_path, "llama2.py", XTUNER)) == ["deepspeed"]
    report = read(tmp_path, "llama2.py", XTUNER, settings="deepspeed=deepspeed_zero3_offload")
    assert report.ok
    assert report.name == "cp2-a2a.dp4.z3.mbs1.gbs32.rc-full.off-wog"
    with pytest.raises(InputError, match=r"xtuner\.v1"):
        read(tmp_path, "v1.py", "from xtuner.v1.train import TrainerConfig\n")


def test_swift_takes_the_files_of_deepspeed_that_come_with_it(tmp_path: Path) -> None:
    report = read(tmp_path, "sft.sh", SWIFT)
    assert report.ok
    assert report.name == "dp8.z2.mbs1.gbs16.rc-full.off-og.nodpov"
    assert inputs(report).workload.precision.master == "fp32"
    plain = read(tmp_path, "sft.sh", SWIFT.replace("    --deepspeed zero2_offload \\\n", ""))
    assert plain.name == "dp8.mbs1.gbs16.rc-full"
    assert inputs(plain).workload.precision.master is None  # weights loaded in bf16 have no other copy


def test_sheared_llamas_are_read_from_their_sizes(tmp_path: Path) -> None:
    sizes = "d_model: 2048\n  n_heads: 16\n  n_layers: 24\n  intermediate_size: 5504\n  vocab_size: 32000"
    text = (
        f"max_seq_len: 4096\nmodel:\n  name: mosaic_llama2_1.3b\n  {sizes}\n  l0_module: null\n"
        "train_loader:\n  name: text\ntokenizer:\n  type: hftokenizer\nmax_duration: 48000ba\n"
        "optimizer:\n  name: decoupled_adamw\nprecision: amp_bf16\nglobal_train_batch_size: 256\n"
        "device_train_microbatch_size: 16\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n"
    )
    report = read(tmp_path, "1.3b.yaml", text)
    assert report.name == "dp8.fsdp.mbs16.gbs256"
    assert inputs(report).model.parameters == spec("sheared-llama-1.3b").parameters
    pruned = text.replace("l0_module: null", "l0_module:\n    start_sparsity: 0.0")
    assert "model.l0_module" in refused(read(tmp_path, "prune.yaml", pruned))


def test_an_overlap_with_experts_that_a_model_has_not_is_without_effect(tmp_path: Path) -> None:
    report = read(tmp_path, "moe.sh", OF_MEGATRON.replace("--micro", "--moe_shared_expert_overlap true --micro"))
    assert report.name == "tp2.ep4.dp4.z1.mbs2.gbs32.rc-full.nodpov"
    assert any("no shared experts" in note for note in report.warnings)


def test_swift_2_calls_options_otherwise(tmp_path: Path) -> None:
    earlier = (
        "NPROC_PER_NODE=8 swift sft --model_type qwen2-0_5b-instruct --sft_type full --dtype AUTO --batch_size 4 "
        "--gradient_accumulation_steps 8 --max_length 4096 --deepspeed 'default-zero3'\n"
    )
    report = read(tmp_path, "sft.sh", earlier)
    assert report.ok
    assert report.name == "dp8.z3.mbs4.gbs256.rc-full.nodpov"
    assert (inputs(report).model.name, inputs(report).workload.seq_len) == ("qwen2-0.5b", 4096)
    path = earlier.replace("--sft_type full", "--sft_type lora --model_id_or_path /hub/Qwen2-0___5B-Instruct")
    assert refused(read(tmp_path, "lora.sh", path)) == ["target_modules"]  # DEFAULT is another set for each model
    named = read(tmp_path, "named.sh", path.replace("--dtype", "--lora_target_modules q_proj v_proj --dtype"))
    assert inputs(named).model.lora is not None
    assert inputs(named).model.lora.targets == ("q_proj", "v_proj")


def test_swift_trains_modules_beside_its_adapters(tmp_path: Path) -> None:
    saved = SWIFT.replace("--tuner_type full", "--tuner_type lora --modules_to_save embed_tokens lm_head")
    tuning = inputs(read(tmp_path, "sft.sh", saved)).model.lora
    assert tuning is not None
    assert tuning.train == ("embedding", "head")


def test_swift_on_one_visible_device_starts_one_process(tmp_path: Path) -> None:
    report = read(tmp_path, "sft.sh", SWIFT.replace("NPROC_PER_NODE=8", "CUDA_VISIBLE_DEVICES=0"))
    assert report.launch is not None
    assert report.launch.started == 1


def test_swift_computes_feed_forward_parts_in_pieces(tmp_path: Path) -> None:
    whole = inputs(read(tmp_path, "sft.sh", SWIFT))
    tiled = SWIFT.replace("--tuner_type full", "--tuner_type full --use_tiled_mlp true --tiled_mlp_num_shards 8")
    assert whole.workload.mlp_tiles == 1
    assert inputs(read(tmp_path, "sft.sh", tiled)).workload.mlp_tiles == 8
    usual = tiled.replace(" --tiled_mlp_num_shards 8", "")
    assert inputs(read(tmp_path, "sft.sh", usual)).workload.mlp_tiles == 4


def test_swifts_megatron_takes_the_model_of_the_weights_that_it_loads(tmp_path: Path) -> None:
    loaded = OF_MEGATRON.replace("--model Qwen/", "--load /weights/").replace("-A3B ", "-A3B-mcore ")
    assert loaded != OF_MEGATRON
    assert inputs(read(tmp_path, "moe.sh", loaded)).model.name == "qwen3-30b-a3b"


def test_swift_hands_options_to_megatron(tmp_path: Path) -> None:
    report = read(tmp_path, "moe.sh", OF_MEGATRON)
    assert report.legal
    assert report.name == "tp2.ep4.dp4.z1.mbs2.gbs32.rc-full.nodpov"
    assert inputs(report).workload.seq_len == 8192
    place = {one.option: one.place for one in report.launch.said} if report.launch else {}
    assert place["micro_batch_size"] == "moe.sh:2"


@pytest.mark.parametrize(
    ("words", "why"),
    [("swift infer --model x", "serves"), ("swift rlhf --model x --rlhf_type dpo", "pairs or rewards")],
)
def test_swift_says_what_it_starts_where_that_is_no_training(tmp_path: Path, words: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read(tmp_path, "run.sh", f"{words}\n")


def test_a_script_that_only_speaks_of_swift_says_what_it_starts(tmp_path: Path) -> None:
    text = "echo beginning swift sft\ntorchrun --nproc_per_node 8 patched.py --model x\n"
    with pytest.raises(InputError, match=r"it starts patched\.py") as caught:
        read(tmp_path, "run.sh", text)
    assert caught.value.problems[0].what == "no program of ms-swift is started"


def test_several_devices_without_processes_share_one_model(tmp_path: Path) -> None:
    alone = SWIFT.replace("NPROC_PER_NODE=8", "CUDA_VISIBLE_DEVICES=0,1").replace("zero2_offload", "zero2")
    assert refused(read(tmp_path, "sft.sh", alone)) == ["device_map"]


def test_openrlhf_is_read_from_the_words_that_a_heredoc_holds(tmp_path: Path) -> None:
    report = read(tmp_path, "sft.sh", RLHF)
    assert report.name == "dp8.z3.mbs2.gbs64.rc-full.off-og"
    assert (inputs(report).model.name, inputs(report).workload.seq_len) == ("llama-3-8b", 4096)
    assert report.launch is not None
    assert {one.option for one in report.launch.said} >= {"zero_stage", "adam_offload", "pretrain"}
    with pytest.raises(InputError, match="starts train_dpo"):
        read(tmp_path, "dpo.sh", RLHF.replace("train_sft", "train_dpo"))


def test_verl_is_read_from_its_keys(tmp_path: Path) -> None:
    report = read(tmp_path, "sft.sh", VERL, arguments=("8",))
    assert report.ok
    assert report.name == "cp2-a2a.dp4.fsdp.mbs4.gbs64.rc-full"
    with pytest.raises(InputError, match="starts main_ppo"):
        read(tmp_path, "ppo.sh", VERL.replace("fsdp_sft_trainer", "main_ppo"))


def test_trainers_are_read_and_never_written() -> None:
    assert set(TRAINERS).isdisjoint(readers())
    with pytest.raises(UnsupportedError, match="no files are written for torchtune"):
        target_named("torchtune")


def test_results_of_an_evaluation_are_no_configuration() -> None:
    neox = reader_named("neox")
    assert neox.recognised("run.yml", NEOX)
    assert not neox.recognised("results.json", NEOX.replace("{", '{\n  "results": {},', 1))


def test_verl_says_why_its_other_trainers_are_not_read(tmp_path: Path) -> None:
    for program, why in (("experimental.apart.main_ppo", "with rollouts"), ("trainer.sft_trainer", "with tokens")):
        with pytest.raises(InputError, match=why):
            read(tmp_path, "run.sh", f"torchrun --nproc_per_node=8 -m verl.{program} data.train_batch_size=64\n")


@pytest.mark.parametrize(("vocab", "layout"), [(128256, (5, 5, 5, 1)), (32000, (5, 4, 4, 3))])
def test_nanotron_balances_what_stages_multiply(tmp_path: Path, vocab: int, layout: tuple[int, ...]) -> None:
    """A layer of 67 M products and a head of 263 M: each rank takes blocks until it has more than a quarter."""
    text = NANOTRON.replace("pp: 2", "pp: 4").replace("tp: 2", "tp: 1").replace("128256", str(vocab))
    (tmp_path / "nano.yaml").write_text(text)
    question, violations, _, _ = script_question(tmp_path / "nano.yaml", "nanotron", JobFields(gpus="8xH100"))
    assert not violations
    assert question is not None
    assert question.plan is not None
    assert tuple(chunk.num_layers for chunk in question.plan.pipelines[0].chunks()) == layout


def test_neox_of_version_2_has_the_mlp_of_llama_by_a_key(tmp_path: Path) -> None:
    sizes = {"hidden_size": 4096, "num_layers": 32, "num_attention_heads": 32, "pos_emb": "rotary", "rotary_pct": 1}
    shape = {"norm": "rmsnorm", "mlp_type": "llama", "activation": "silu", "no_weight_tying": True}
    plain = {"use_bias_in_attn_linear": False, "pipe_parallel_size": 1, "model_parallel_size": 1, "seq_length": 2048}
    batch = {"train_micro_batch_size_per_gpu": 1, "attention_config": [[["flash"], 32]]}
    text = json.dumps(sizes | shape | plain | batch, indent=2)
    report = read(tmp_path, "7B.yml", text, settings="padded_vocab_size=32000")
    assert inputs(report).model.parameters == 6_738_415_616  # Llama 7B


def test_neox_counts_layers_where_it_parts_them_by_type(tmp_path: Path) -> None:
    (tmp_path / "neox.yml").write_text(NEOX.replace('"pipe-parallel-size": 2', '"pipe-parallel-size": 4'))
    settings = {"padded_vocab_size": "50432"}
    outside = Outside(settings=settings)
    question, _, _, _ = script_question(tmp_path / "neox.yml", "neox", JobFields(gpus="8xH100"), outside)
    assert question is not None
    assert question.plan is not None
    assert {chunk.num_layers for chunk in question.plan.pipelines[0].chunks()} == {8}
