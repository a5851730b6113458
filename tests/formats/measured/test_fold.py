"""Words of sources in the plan's own terms."""

from __future__ import annotations

import pytest

from meshwright.formats.measured import campaign, fold
from tests.formats.measured.row import assumed, read, run_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0", ("z0", 0)),
        ("1 (dist-opt)", ("z1", 0)),
        ("3", ("z3", 0)),
        ("ZeRO-2", ("z2", 0)),
        ("3 (FSDP FULL_SHARD)", ("fsdp", 0)),
        ("FSDP2 (ZeRO-3)", ("fsdp", 0)),
        ("FSDP 128", ("hsdp", 128)),
        ("HSDP (FSDP128 x DP4)", ("hsdp", 128)),
        ("megatron-fsdp optim_grads_params", ("fsdp", 0)),
        ("DDP", ("z0", 0)),
        ("DDP (FSDP=0; dist-opt not stated)", None),
        ("", None),
    ],
)
def test_sharding_in_the_words_of_sources(text: str, found: tuple[str, int] | None) -> None:
    assert fold.folded_sharding(text) == found


def test_the_searched_schedule_fills_what_the_handcrafted_leaves_of_its_limit() -> None:
    assert fold.more_activations("ZB-2p", 8) == pytest.approx(16 / 15 - 1)
    assert fold.more_activations("ZB-1p", 8) == fold.more_activations("1F1B", 8) == 0


@pytest.mark.parametrize(
    ("text", "name", "compute"),
    [
        ("bf16", "bf16", "bf16"),
        ("amp_bf16", "bf16", "bf16"),
        ("bf16 (fp32 grad accumulation)", "bf16", "bf16"),
        ("fp16/bf16 not stated", "fp16", "fp16"),
        ("fp8 (delayed-scaling hybrid)", "fp8", "fp8"),
        ("amp_fp8", "fp8", "fp8"),
        ("mxfp8", "fp8", "fp8"),
        ("nvfp4", "nvfp4", "nvfp4"),
        ("fp32", "fp32", "fp32"),
        ("int8 (AQT quantised matmuls, bf16 otherwise)", "int8", "int8"),
    ],
)
def test_formats_in_the_words_of_sources(text: str, name: str, compute: str) -> None:
    recipe, _ = fold.row_precision(text, year=2024)
    assert (recipe.name, recipe.compute) == (name, compute)


def test_pure_fsdp_reduces_gradients_in_16_bits() -> None:
    assert fold.row_precision("amp_bf16", year=2023, notes="FSDP prec PURE")[0].reduce == "bf16"
    assert fold.row_precision("amp_bf16", year=2023, notes="FSDP prec DEFAULT")[0].reduce == "fp32"


@pytest.mark.parametrize(
    ("text", "per_parameter"), [("bf16", 2.0), ("bf16 (fp32 grad accumulation)", 6.0), ("fp16", 6.0)]
)
def test_deepspeeds_engine_keeps_gradients_in_16_bits_and_their_sums_where_it_says_so(
    text: str, per_parameter: float
) -> None:
    run = run_of(framework="Megatron-DeepSpeed", dtype=text)
    recipe = run.workload.precision
    assert recipe.bytes_of("gradients") + 4.0 * recipe.master_gradient_copy == per_parameter
    assert ("gradients" in assumed(run)) == (text == "bf16")


@pytest.mark.parametrize(
    ("text", "detail", "mode", "modules"),
    [
        ("none (unset in perf config)", "", "none", ()),
        ("full", "", "full", ()),
        ("remat_policy=custom", "", "full", ()),
        ("selective (remat_policy=minimal)", "remat_policy=minimal", "sel", ("core_attn", "layernorm")),
        ("remat_policy=save_dot_except_logits", "", "sel", ("core_attn", "layernorm")),
        ("selective (torchtitan selective AC)", "", "sel", ("half_products",)),
        ("selective", "", "sel", ("core_attn",)),
        ("selective", "moe_act, layernorm", "sel", ("moe_act", "layernorm")),
        ("selective", "up_proj, mlp", "sel", ("mla_up_proj", "mlp")),
        ("selective", "X: recompute_modules=['mla_up_proj'] recompute_num_layers=None", "sel", ("mla_up_proj",)),
        ("selective (every 2nd layer)", "", "block", ()),
    ],
)
def test_recompute_in_the_words_of_sources(text: str, detail: str, mode: str, modules: tuple[str, ...]) -> None:
    found = fold.recompute(text, detail)
    assert found is not None
    assert (found.mode, found.modules) == (mode, modules)


@pytest.mark.parametrize(
    ("text", "name", "chunks"),
    [
        ("ZB-1p", "zb-h1", 1),
        ("ZB-2p", "zb-h2-post", 1),
        ("ZB-V", "zb-v", 2),
        ("DualPipe", "dualpipe", 1),
        ("DualPipeV", "dualpipev", 2),
    ],
)
def test_zero_bubble_schedules_by_the_names_of_their_papers(text: str, name: str, chunks: int) -> None:
    assert fold.row_schedule(text, pp=8, vpp=None) == (name, chunks)


@pytest.mark.parametrize("text", ["zero-bubble", "Chimera"])
def test_schedules_that_are_not_priced_are_refused(text: str) -> None:
    assert "not priced" in str(read(schedule=text))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("flash (TE default; not stated)", True),
        ("flash/TE", True),
        ("standard (fused softmax)", False),
        ("unfused", False),
        ("MLA; unfused", False),
        ("", None),
    ],
)
def test_attention_in_the_words_of_sources(text: str, *, found: bool | None) -> None:
    assert fold.flash(text) is found


@pytest.mark.parametrize(
    ("text", "per_device"),
    [
        ("400Gb/s NDR IB per GPU (DGX-H100)", 50e9),
        ("8x200Gb/s HDR IB per node (Selene)", 25e9),
        ("4x100Gb/s Omni-Path per node", 6.25e9),
        ("800Gb/s per node (vTrain config)", 12.5e9),
        ("8x50GB/s IB per node", 50e9),
        ("2Tb/s RoCE per node", 31.25e9),
        ("400Gbps RoCE per GPU", 50e9),
        ("400 gbps per gpu", 50e9),
        ("50GBps per GPU", 50e9),
        ("400 Gbit/s per GPU", 50e9),
        ("8x 40GiB/s per node", 40 * 2**30),
        ("3200Mb/s per GPU", 0.4e9),
        ("RoCE RDMA", None),
        ("", None),
    ],
)
def test_speeds_between_nodes(text: str, per_device: float | None) -> None:
    assert fold.fabric_bytes_per_s(text, 8) == per_device


def test_boards_without_a_switch_are_domains_of_their_own() -> None:
    links = "NVLink3 (4 NVLinks per pair; Jean Zay)"
    joined = run_of(gpu="A100-SXM", intra_link=links, inter_link="4x100Gb/s Omni-Path per node").cluster.groups[0]
    switched = run_of(gpu="A100-SXM", intra_link="NVLink3/NVSwitch").cluster.groups[0]

    assert [domain.size for domain in joined.domains] == [4, 8, 16]
    assert [domain.size for domain in switched.domains] == [8, 16]
    assert fold.board_devices("NVLink2 (2 NVLinks per pair)") == 4
    assert fold.board_devices("NVLink4/NVSwitch (8-GPU)") is None


@pytest.mark.parametrize(
    ("text", "device"), [('"Ampere"', "A100-SXM"), ("hopper", "H100-SXM"), ("'H100-SXM'", "H100-SXM"), ("L4", "L4")]
)
def test_a_generation_stands_for_its_training_device(text: str, device: str) -> None:
    name, inferred = fold.device_name(text, 80.0)
    assert name == device
    assert bool(inferred) == (text.strip("\"'").lower() in fold.GENERATIONS)


def test_weights_that_stay_gathered_are_not_resharded() -> None:
    assert fold.folded_sharding("FSDP (params not resharded after fwd)") == ("fsdp-keep", 0)


def test_modules_have_the_names_that_plans_use() -> None:
    again = fold.recompute("selective", "norm, act, shared_expert")
    assert again is not None
    assert again.modules == ("layernorm", "moe_act", "shared_experts")


@pytest.mark.parametrize(
    ("text", "month"),
    [
        ("NeMo/Megatron-Core, NVIDIA NeMo Framework Release 25.04", "2025-04"),
        ("NVIDIA dgxc-benchmarking v25.05.05", "2025-05"),
        ("Megatron-Bridge performance summary 26.04.01", "2026-04"),
        ("torchtitan benchmarks Dec-2024", "2024-12"),
        ("the run of December 2024", "2024-12"),
        ("Megatron-Core r0.8.0", None),
        ("decided in 2024", None),
        ("MoE Parallel Folding (arXiv 2504.14960)", None),
        ("a batch of 24.96 samples", None),
    ],
)
def test_releases_named_by_year_and_month(text: str, month: str | None) -> None:
    assert fold.release_month(text) == month


def test_a_run_ran_under_the_framework_of_its_time() -> None:
    assert run_of(framework="NeMo/Megatron-Core", source="dgxc-benchmarking v25.05.05").workload.software == (
        "megatron-core@2025-05"
    )
    by_year = run_of(year="2025", source="a report")
    assert by_year.workload.software == "megatron-core@2025-06"
    assert assumed(by_year)["software"] == "megatron-core of 2025-06: only the year is stated"


def test_rounds_of_mlperf_are_one_campaign_each() -> None:
    assert campaign({"source": "MLPerf Training v5.0 NVIDIA tyche_ngpu512_ngc25.04"}) == "MLPerf Training v5.0"
    assert campaign({"source": " SimuMax B200 release v1.2 "}) == "SimuMax B200 release v1.2"


def test_speed_of_a_node_that_its_devices_do_not_divide() -> None:
    assert fold.fabric_bytes_per_s("1x100Gb/s IB per node", 8) == pytest.approx(12.5e9 / 8, rel=1e-15)
    assert fold.fabric_bytes_per_s("10GB/s", 3) == pytest.approx(1e10 / 3, rel=1e-15)


def test_fine_tuning_in_fp8_keeps_inputs_of_products_in_fp8_and_attention_where_it_says_so() -> None:
    wide, narrow = (fold.row_precision(name, year=2025)[0] for name in ("bf16", "fp8"))
    assert fold.kept_in_8_bits(wide, "fp8 attention") == (wide, "")
    plain, attended = (fold.kept_in_8_bits(narrow, notes)[0] for notes in ("", "with FP8 attention"))
    assert (plain.function_inputs, plain.attention_inputs) == ("fp8", None)
    assert (attended.function_inputs, attended.attention_inputs) == ("fp8", "fp8")


def test_adapters_in_the_words_of_sources() -> None:
    trained = fold.adapters("llama2_70b_lora: lora dim 16 on all projections", "fp8")
    plain = fold.adapters("lora of rank 8 on attention projections: rank 8 on attention projections", "bf16")
    assert trained is not None
    assert plain is not None
    assert trained.lora is not None
    assert plain.lora is not None
    assert (trained.lora.rank, trained.lora.base, trained.lora.dropout) == (16, "fp8", 0.1)
    assert (plain.lora.rank, plain.lora.base, plain.lora.dropout) == (8, None, 0.0)
    assert (trained.lora.targets, plain.lora.targets) == (("all-linear",), ("linear_qkv", "linear_proj"))
    assert fold.adapters("pretraining", "bf16") is None
