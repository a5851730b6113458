"""A measured row as model, cluster, workload and the plans it may have run."""

from __future__ import annotations

import pytest

from meshwright.formats.measured import MeasuredRun, fold
from meshwright.library.software import software
from meshwright.specs.tuning import Lora, Tuning
from meshwright.units import MIB
from tests.formats.measured.row import assumed, read, run_of


def test_a_row_that_says_everything_is_one_plan() -> None:
    run = run_of()
    assert [possible.row.format() for possible in run.plans] == ["tp2.pp2.dp4.z1.mbs1.gbs128"]
    assert run.cluster.name == "2x8xH100"
    assert run.workload.seq_len == 8192
    assert run.split == (16, 16)
    assert run.model.parameters == pytest.approx(8.03e9, rel=0.001)


def test_tests_of_megatron_say_whose_layers_they_run() -> None:
    """Those that are not named after Transformer Engine write scores to memory."""
    for notes, kernel in (
        ("gpt3_mcore_te_tp2_pp2; vocab = ...", "flash"),
        ("gpt3_mcore_tp2_pp2_uninstall_te; vocab = ...", "materialised"),
        ("gpt3_mcore_tp1_pp2; vocab = ...", "materialised"),
    ):
        run = run_of(notes=notes, framework="Megatron-LM (mcore) CI dev", attention="flash/TE")
        assert run.workload.attention_kernel == kernel


def test_a_stated_fabric_replaces_the_usual_one() -> None:
    outer = run_of(inter_link="4x100Gb/s Omni-Path per node").cluster.groups[0].domains[-1]
    assert outer.bandwidth_bytes_per_s == 6.25e9
    assert "inter_link" in assumed(run_of())


def test_frameworks_have_their_habits() -> None:
    blank = {"recompute": "", "attention": "", "zero_stage": "", "micro_batch": ""}
    old = run_of(**blank, framework="Megatron-LM", year="2020", gated_mlp="False", n_kv_heads="32")
    assert old.plans[0].row.format() == "tp2.nosp.pp2.dp4.mbs1.gbs128.rc-full.nodpov"
    assert old.workload.attention_kernel == "materialised"
    new = run_of(**blank, framework="NeMo/Megatron-Core", year="2025")
    assert new.plans[0].row.format() == "tp2.pp2.dp4.z1.mbs1.gbs128.tpov"
    assert new.workload.attention_kernel == "flash"
    assert new.workload.precision.reduce == "bf16"
    assert {"zero_stage", "recompute", "attention", "micro_batch", "sp", "gradients"} <= set(assumed(new))


@pytest.mark.parametrize(
    ("framework", "year", "line"),
    [
        ("Megatron-LM", "2024", "megatron-lm"),
        ("Megatron-LM", "2025", "megatron-core"),
        ("Primus (Megatron-LM backend)", "2026", "megatron-core"),
        ("Megatron-DeepSpeed", "2024", "megatron-deepspeed"),
        ("DeepSpeed", "2021", "megatron-deepspeed"),
        ("DeepSpeed ZeRO-3 (HF)", "2024", "pytorch-eager"),
        ("LLM Foundry", "2023", "pytorch-eager"),
        ("NeMo AutoModel (PyTorch FSDP2)", "2026", "megatron-core"),
        ("torchtitan", "2025", "torchtitan-eager"),
        ("torchtitan +torch.compile", "2024", "pytorch-compiled"),
        ("nanotron v0.5", "2025", "nanotron"),
        ("Levanter", "2024", "xla"),
    ],
)
def test_a_framework_is_priced_as_its_line_of_the_time(framework: str, year: str, line: str) -> None:
    found = run_of(framework=framework, year=year, attention="flash").workload.software
    assert found.partition("@")[0] == line


@pytest.mark.parametrize(
    ("notes", "stops"),
    [
        ("A100 40GB with 1600 Gbps node-node interconnect (RoCE); FSDP prec PURE", False),
        ("A100 80GB with 1600 Gbps node-node interconnect (RoCE); FSDP prec DEFAULT", True),
        ("H100 80GB BF16; FSDP prec DEFAULT", True),
        ("H100 80GB BF16 (Large Scale, >= 128 GPUs); FSDP prec DEFAULT", True),
    ],
)
def test_tables_of_llm_foundry_ran_the_pytorch_of_their_month(notes: str, stops: bool) -> None:
    """Of May 2023, October 2023 and January 2024; PyTorch 2.1 came in between."""
    source = "MosaicML llm-foundry benchmarking README"
    run = run_of(source=source, framework="Composer/PyTorch FSDP", year="2023", zero_stage="3 (FSDP)", notes=notes)
    assert software(run.workload.software).stops_recompute == stops
    assert "settings" in assumed(run)


def test_sailors_fork_computes_in_fp32_and_drops_nothing_where_its_rows_do_not_say() -> None:
    gpt = {"gated_mlp": "False", "attention": "", "year": "2025", "model_name": "GPT"}
    fork = run_of(**gpt, framework="Megatron-DeepSpeed (Sailor fork)", dtype="fp16/bf16 not stated")
    other = run_of(**gpt, framework="Megatron-DeepSpeed", dtype="fp16/bf16 not stated")

    assert (fork.workload.precision.name, other.workload.precision.name) == ("fp32", "fp16")
    assert [any(layer.dropout for layer in run.model.layers()) for run in (fork, other)] == [False, True]
    assert run_of(**gpt, framework="Megatron-DeepSpeed (Sailor fork)", dtype="bf16").workload.precision.name != "fp32"


def test_sailors_scripts_name_one_tokenizer_for_every_model() -> None:
    gpt = {"gated_mlp": "False", "year": "2025", "model_name": "OPT-350M", "vocab": "128256"}
    fork = run_of(**gpt, framework="Megatron-DeepSpeed (Sailor fork)", tp="4", dp="2")
    assert fork.model.vocab == 50688
    assert assumed(fork)["vocab"].startswith("50,688")
    assert fork.model.kinds()[0].mlp.relu
    assert run_of(**gpt, framework="Megatron-DeepSpeed").model.vocab == 128256


def test_megatrons_llama_example_follows_nemos_recipes() -> None:
    table = run_of(source="Megatron-LM examples/llama README", dtype="fp8 hybrid")
    assert (table.workload.precision.gradients, table.workload.precision.gathered) == ("bf16", "fp8")
    assert run_of(dtype="fp8 hybrid").workload.precision.gradients == "fp32"


def test_experts_padded_to_capacity_drop_tokens() -> None:
    moe = {"n_experts": "16", "top_k": "2", "moe_ffn_hidden": "2048", "ep": "4"}
    assert run_of(**moe, notes="MoE capacity factor 1, padded to capacity").capacity == 1.0
    assert run_of(**moe, notes="capacity factor 1.25").capacity is None


def test_ranks_of_a_sequence_gather_keys_in_pytorch() -> None:
    """As torchtitan's target is read: context_parallel gathers them by default."""
    split = {"cp": "2", "tp": "1", "pp": "1", "dp": "8", "n_gpus": "16", "zero_stage": "FSDP"}
    assert run_of(framework="torchtitan", **split).plans[0].row.cp == (("ag", 2),)
    assert run_of(framework="Megatron-Core", **split).plans[0].row.cp == (("p2p", 2),)


@pytest.mark.parametrize("text", ["LoRA", "method: SFT", "supervised fine-tuning"])
def test_fine_tuning_that_does_not_say_what_it_trains_is_not_priced(text: str) -> None:
    assert "what is trained is not stated" in str(read(notes=text))
    assert isinstance(read(notes="q-lora-rank=512"), MeasuredRun)


def test_adapters_are_read_from_the_words_of_the_source() -> None:
    run = read(
        notes="LoRA, benchmark=llama2_70b_lora", arch_source="adapters of rank 16 on attention projections", dtype="fp8"
    )
    assert isinstance(run, MeasuredRun)
    assert run.model.tuning == Tuning(
        lora=Lora(rank=16, targets=("linear_qkv", "linear_proj"), base="fp8", dropout=0.1)
    )
    assert run.workload.precision.function_inputs == "fp8"
    every = read(notes="LoRA dim 8 on all projections", dtype="bf16")
    assert isinstance(every, MeasuredRun)
    assert every.model.tuning == Tuning(lora=Lora(rank=8))


def test_a_log_that_contradicts_its_configuration_is_not_priced() -> None:
    assert "grad_accum" in str(read(notes="lora dim 8 on all projections; grad_accum=1 (log says 2)"))


def test_memory_of_a_device_is_that_of_the_driver_where_a_fine_tuning_row_says_it() -> None:
    assert fold.stated_memory_bytes("memory stated as 143771 MiB", 141e9) == 143771 * 2**20
    assert fold.stated_memory_bytes("memory stated as 143771 MiB", 180e9) == 180e9


def test_weights_cross_the_network_in_the_format_that_frameworks_gather() -> None:
    gathered = [
        run_of(dtype=dtype, framework=framework, zero_stage="FSDP2 (ZeRO-3)").workload.precision.gathered_bytes
        for dtype, framework in (
            ("fp8", "torchtitan"),
            ("bf16", "torchtitan"),
            ("fp8", "NeMo"),
            ("fp8", "Megatron-Core"),
        )
    ]

    assert gathered == [1.0, 2.0, 1.0, 2.0]


def test_a_device_may_be_named_by_its_generation() -> None:
    run = run_of(gpu='"Ampere"')
    assert run.cluster.groups[0].device.name == "A100-80"
    assert assumed(run)["gpu"].startswith("A100-SXM of 80 GB")


def test_adapters_of_a_tray_are_not_shared_by_the_rack() -> None:
    """Nodes of 72 GB200 with `4x400Gb/s per node`: 50 GB/s per device, as `72x400Gb/s per node` says, too."""
    for nodes, text in ((72, "4x400Gb/s per node"), (72, "72x400Gb/s per node"), (4, "4x400Gb/s per node")):
        run = run_of(
            gpu="GB200", n_gpus="576", nodes_gpus=str(nodes), inter_link=text, dp="576", global_batch_seqs="576"
        )
        assert run.cluster.groups[0].domains[-1].bandwidth_bytes_per_s == pytest.approx(50e9)


@pytest.mark.parametrize(
    ("notes", "once", "overlap", "imbalance"),
    [
        ("dispatcher HybridEP", True, "none", 1.0),
        ("dispatcher=deepep a2a_overlap=True", True, "paired-wgrad", 1.0),
        ("dispatcher=None a2a_overlap=None", False, "none", 1.0),
        ("token drop", False, "none", 1.0),
        ("dispatcher=alltoall shared_expert_overlap=true", False, "shared", 1.0),
        ("dropless, real routing; DeepEP; +1f1b a2a overlap", True, "paired-wgrad", 1.5),
    ],
)
def test_what_a_row_says_of_its_experts(notes: str, once: bool, overlap: str, imbalance: float) -> None:
    experts = {"n_experts": "8", "top_k": "2", "moe_ffn_hidden": "1024", "framework": "Megatron-Bridge 26.02"}
    run = run_of(notes=notes, **experts)
    assert (run.deduplicates, run.overlap, run.workload.expert_imbalance) == (once, overlap, imbalance)


@pytest.mark.parametrize(
    ("option", "bytes_each"), [("cross_entropy_loss_fusion", 4.0), ("defer_embedding_wgrad_compute", 4.0), ("", 0.0)]
)
def test_options_of_the_head_hold_logits_on_the_last_stage(option: str, bytes_each: float) -> None:
    """Exponentials of the fused loss in 32 bits; two gradients in 16 bits that wait for the gradient of the head."""
    run = run_of(notes=f"gpt3_mcore_te_tp2_pp2_{option}", micro_batch="4")
    row = run.plans[0].row
    logits = row.mbs * run.workload.seq_len * run.model.vocab / row.tp

    assert run.head_bytes == logits * bytes_each


@pytest.mark.parametrize(("gpu", "more_mib"), [("A100-SXM", 2 * (32 - 8.125)), ("H100-SXM", 0.0)])
def test_deterministic_tests_pin_scratch_memory_at_what_newer_devices_have_anyway(gpu: str, more_mib: float) -> None:
    notes = "gpt3_mcore_te_tp2_pp2"
    assert run_of(gpu=gpu, framework="Megatron-LM CI", notes=notes).workspace_bytes == more_mib * MIB
    assert run_of(gpu=gpu, framework="Megatron-LM", notes=notes).workspace_bytes == 0


def test_states_are_shared_inside_the_instances_of_the_optimizer() -> None:
    said = {"zero_stage": "1 (dist-opt)", "notes": "gpt3_mcore_te_tp2_pp1_multi_dist_optimizer_instances"}
    row = run_of(framework="Megatron-LM CI", **said).plans[0].row
    assert (row.sharding, row.shard_group) == ("z1in", row.dp // 2)
