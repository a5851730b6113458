"""The configuration that a run of Megatron-Bridge leaves beside its checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check
from meshwright.app.check import CheckReport
from meshwright.errors import MeshwrightError

RUN = """_target_: megatron.bridge.training.config.ConfigContainer
comm_overlap:
  overlap_grad_reduce: null
  tp_comm_overlap: false
dataset:
  sequence_length: 4096
ddp:
  grad_reduce_in_fp32: false
  overlap_grad_reduce: true
  use_distributed_optimizer: true
mixed_precision:
  bf16: true
  params_dtype: {_call_: false, _target_: torch.bfloat16}
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama3ModelProvider8B
  activation_func: {_call_: false, _target_: torch.nn.functional.silu}
  add_bias_linear: false
  attention_backend:
    _args_: [3]
    _call_: true
    _target_: megatron.core.transformer.enums.AttnBackend
  attention_dropout: 0.0
  context_parallel_size: 1
  cpu_offloading: false
  cpu_offloading_num_layers: 0
  ffn_hidden_size: 14336
  gated_linear_unit: true
  hidden_dropout: 0.0
  hidden_size: 4096
  kv_channels: 128
  layernorm_epsilon: 1.0e-05
  normalization: RMSNorm
  num_attention_heads: 32
  num_layers: 32
  num_moe_experts: null
  num_query_groups: 8
  pipeline_model_parallel_size: 2
  position_embedding_type: rope
  recompute_granularity: null
  rotary_base: 500000
  seq_length: 4096
  sequence_parallel: true
  share_embeddings_and_output_weights: false
  tensor_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 4
  vocab_size: 128256
optimizer:
  bf16: true
  optimizer: adam
  exp_avg_dtype: {_call_: false, _target_: torch.bfloat16}
  exp_avg_sq_dtype: {_call_: false, _target_: torch.bfloat16}
  use_precision_aware_optimizer: true
peft: null
train:
  global_batch_size: 128
  micro_batch_size: 1
"""


def read(tmp_path: Path, text: str) -> CheckReport:
    """Checks a run on 16 devices."""
    (tmp_path / "run_config.yaml").write_text(text)
    return check(tmp_path / "run_config.yaml", cluster="16xH100", search=False)


def test_the_whole_run_is_plan_and_model(tmp_path: Path) -> None:
    report = read(tmp_path, RUN)
    assert not report.violations
    assert report.name == "tp2.pp2.vpp4.dp4.z1.mbs1.gbs128"
    assert report.inputs is not None
    assert report.inputs.model.parameters == 8_030_261_248
    workload = report.inputs.workload
    assert (workload.precision.moments, workload.attention_kernel) == ("bf16", "materialised")
    assert report.launch is not None
    places = {one.option: one.place for one in report.launch.said}
    lines = RUN.splitlines()
    said = {"--swiglu": "gated_linear_unit", "--norm-epsilon": "layernorm_epsilon"}
    for option, field in said.items():
        number = next(at for at, line in enumerate(lines, 1) if line.strip().startswith(field))
        assert places[option] == f"run_config.yaml:{number}"


def test_lists_are_options_of_their_own_form(tmp_path: Path) -> None:
    layers = "[[embedding" + ", decoder" * 10 + "], [" + ", ".join(["decoder"] * 22) + ", loss]]"
    text = RUN.replace("virtual_pipeline_model_parallel_size: 4", f"pipeline_model_parallel_layout: {layers}")
    assert read(tmp_path, text).name == "tp2.pp2.dp4.z1.mbs1.gbs128"
    experts = "num_moe_experts: 4\n  moe_router_topk: 2\n  moe_ffn_hidden_size: 512\n  expert_model_parallel_size: 2"
    experts += f"\n  expert_tensor_parallel_size: 1\n  moe_layer_freq: [{', '.join(['0'] + ['1'] * 31)}]"
    report = read(tmp_path, RUN.replace("num_moe_experts: null", experts))
    assert report.inputs is not None
    assert sum(getattr(one.mlp, "experts", 0) > 0 for one in report.inputs.model.layers()) == 31


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("peft: null", "peft: {_target_: megatron.bridge.peft.lora.LoRA, dim: 8}", "peft is given"),
        ("llama_provider.Llama3ModelProvider8B", "qwen_vl.Qwen25VLModelProvider", "the model is Qwen25VLModelProvider"),
    ],
)
def test_what_is_not_read_of_a_run_is_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(MeshwrightError, match=told):
        read(tmp_path, RUN.replace(old, new))
