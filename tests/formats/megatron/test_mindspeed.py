"""Options of MindSpeed-LLM, as the plan and the model that they make in Megatron-LM."""

from __future__ import annotations

import pytest

from meshwright.formats.megatron.read import MegatronFlags, read_flags

SHAPE = "--hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 1024"
BATCH = "--micro-batch-size 1 --global-batch-size 32 --bf16"


def read(options: str, program: str = "pretrain_gpt.py", devices: int = 8) -> MegatronFlags:
    """Reads a script that starts MindSpeed-LLM."""
    return read_flags(f"torchrun --nproc_per_node {devices} {program} {SHAPE} {BATCH} {options}\n", devices=devices)


def test_experts_and_latents_go_by_its_names() -> None:
    found = read(
        "--num-layers 4 --multi-head-latent-attention --qk-rope-head-dim 32 --qk-nope-head-dim 64 --kv-lora-rank 128 "
        "--v-head-dim 64 --num-experts 8 --moe-router-topk 2 --first-k-dense-replace 1 --moe-layer-freq 2 "
        "--n-shared-experts 2 --moe-intermediate-size 256 --moe-router-load-balancing-type noaux_tc --norm-topk-prob "
        "--moe-token-dispatcher-type alltoall_seq --n-group 4 --topk-group 2 --seq-aux"
    )
    assert not found.problems
    facts = found.model
    assert facts["moe_layers"] == [False, False, True, False]  # past the first, every second from 0
    assert (facts["expert_ffn_hidden"], facts["shared_ffn_hidden"]) == (256, 512)
    assert (facts["nope_dim"], facts["rope_dim"], facts["router_groups"]) == (64, 32, (4, 2))
    assert found.row is not None
    assert found.row.dispatcher == "alltoall"


def test_minus_one_has_experts_in_every_layer() -> None:
    found = read("--num-layers 4 --num-experts 8 --first-k-dense-replace -1 --moe-layer-freq -1")
    assert not found.problems
    assert found.model["moe_layers"] == [True] * 4


def test_experts_over_tensor_ranks_are_not_cut() -> None:
    options = "--num-layers 4 --num-experts 8 --tensor-model-parallel-size 2 --sequence-parallel"
    cut, spread = (read(f"{options} --expert-model-parallel-size 2 {more}") for more in ("", "--moe-tp-extend-ep"))
    assert cut.row is not None
    assert spread.row is not None
    assert (cut.row.ep, cut.row.etp) == (2, 2)
    assert (spread.row.ep, spread.row.etp) == (4, 1)


def test_empty_layers_are_in_no_stage() -> None:
    found = read(
        "--num-layers 16 --noop-layers 13,14,15 --pipeline-model-parallel-size 4 --schedules-method dualpipev "
        "--num-experts 4 --first-k-dense-replace 3 --moe-layer-freq 1"
    )
    assert not found.problems
    assert found.row is not None
    assert (found.row.schedule, found.row.vpp) == ("dualpipev", 2)
    assert found.layout == (2, 2, 2, 2, 2, 2, 1, 0)
    assert found.model["num_layers"] == 13
    assert found.model["moe_layers"] == [False] * 3 + [True] * 10


def test_the_ring_is_its_default_and_is_said() -> None:
    options = "--num-layers 4 --context-parallel-size 2 --use-fused-rmsnorm"
    silent = read(options)
    assert silent.row is not None
    assert silent.row.cp == (("p2p", 2),)
    assert any("MindSpeed's default since 2025" in note for note in silent.notes)
    stated = read(f"{options} --context-parallel-algo ulysses_cp_algo")
    assert stated.row is not None
    assert stated.row.cp == (("a2a", 2),)
    assert not any("default since" in note for note in stated.notes)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--stage dpo --is-pairwise-dataset", "posttrain_gpt.py trains by dpo"),
        ("--stage sft --swap-optimizer", "--swap-optimizer is not read"),
        ("--stage sft --attention-mask-type general", "--attention-mask-type is general"),
        ("--stage sft --swap-attention", "--swap-attention is not read"),
        ("--stage sft --output-logit-softcapping 30", "--output-logit-softcapping is not read"),
        ("--stage sft --lora-r 8", "--lora-target-modules is not given"),
    ],
)
def test_what_no_plan_holds_is_a_problem(options: str, told: str) -> None:
    assert told in [one.what for one in read(f"--num-layers 4 {options}", "posttrain_gpt.py").problems]


def test_options_without_a_price_are_told_and_stages_may_be_listed() -> None:
    options = "--num-layers 10 --enable-hf2mg-convert --model-type-hf qwen3 --use-ascend-coc --reuse-fp32-param"
    found = read(f"{options} --pipeline-model-parallel-size 4 --num-layer-list 2,2,3,3")
    assert not found.problems
    assert found.layout == (2, 2, 3, 3)
    assert any("--reuse-fp32-param" in note and "2 bytes a parameter less" in note for note in found.notes)
    assert any("--use-ascend-coc" in note and "priced without" in note for note in found.notes)


def test_fine_tuning_reads_adapters() -> None:
    options = "--num-layers 4 --stage sft --is-instruction-dataset --prompt-type qwen --variable-seq-lengths"
    whole = read(options, "posttrain_gpt.py")
    assert not whole.problems
    assert "lora" not in whole.workload
    adapters = read(f"{options} --lora-r 8 --lora-alpha 16 --lora-target-modules linear_qkv", "posttrain_gpt.py")
    assert not adapters.problems
    assert adapters.workload["lora"] == {"r": 8, "targets": ["linear_qkv"]}
    assert {one.option: one.value for one in adapters.said}["--lora-target-modules"] == "linear_qkv"


def test_options_that_are_the_same_are_told_in_one_sentence() -> None:
    options = "--use-fused-rmsnorm --use-fused-swiglu --use-wandb --tokenizer-name-or-path your tokenizer path"
    found = read(f"--num-layers 4 {options} --num-experts 4 --moe-router-load-balancing-type pai_megatron_aux_loss")
    assert not found.problems
    assert sum("of MindSpeed, a kernel" in note for note in found.notes) == 1
    assert any("left to fill in: 'your tokenizer path'" in note for note in found.notes)


def test_spread_experts_are_told_as_the_script_writes_them() -> None:
    degrees = "--tensor-model-parallel-size 2 --expert-model-parallel-size 2"
    found = read(f"--num-layers 4 --num-experts 8 {degrees} --moe-tp-extend-ep")
    said = {one.option: one.value for one in found.said}
    assert said["--expert-model-parallel-size"] == "2"
    assert "--expert-tensor-parallel-size" not in said


def test_the_width_of_layers_that_are_not_there_is_no_part_of_the_model() -> None:
    experts = "--num-experts 8 --moe-ffn-hidden-size 512 --ffn-hidden-size 12288"
    assert read(f"--num-layers 4 {experts}").model["ffn_hidden"] == 512
    assert read(f"--num-layers 4 {experts} --first-k-dense-replace 1").model["ffn_hidden"] == 12288
