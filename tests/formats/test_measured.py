"""Measured rows: free text folded into plans, gaps filled by rule, refusals with all reasons."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.formats.measured import MeasuredRun, fold, model_or_none, read_rows, read_run
from meshwright.library.devices import device
from meshwright.library.models import resolve
from meshwright.specs.layers import LatentAttention, MoeMlp
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow

LLAMA = {
    "id": "run",
    "year": "2024",
    "model_name": "my model",
    "n_layers": "32",
    "hidden": "4096",
    "ffn_hidden": "14336",
    "n_heads": "32",
    "n_kv_heads": "8",
    "head_dim": "128",
    "vocab": "128256",
    "gated_mlp": "True",
    "gpu": "H100-SXM",
    "gpu_mem_gb": "80",
    "n_gpus": "16",
    "nodes_gpus": "8",
    "seq_len": "8192",
    "tp": "2",
    "pp": "2",
    "vpp": "1",
    "dp": "4",
    "global_batch_seqs": "128",
    "micro_batch": "1",
    "dtype": "bf16",
    "recompute": "none",
    "attention": "flash",
    "zero_stage": "1",
    "framework": "Megatron-Core",
}


def find(name: str) -> ModelSpec | None:
    return model_or_none(resolve, name)


def read(**changes: str) -> MeasuredRun | str:
    return read_run(LLAMA | changes, device, find)


def run_of(**changes: str) -> MeasuredRun:
    found = read(**changes)
    assert isinstance(found, MeasuredRun), found
    return found


def row_of(**changes: str) -> PlanRow:
    return run_of(**changes).plans[0].row


def assumed(run: MeasuredRun) -> dict[str, str]:
    return {assumption.name: assumption.value for assumption in run.assumptions}


def test_a_row_that_says_everything_is_one_plan() -> None:
    run = run_of()
    assert [possible.row.format() for possible in run.plans] == ["tp2.pp2.dp4.z1.mbs1.gbs128"]
    assert run.cluster.name == "2x8xH100"
    assert run.workload.seq_len == 8192
    assert run.split == (16, 16)
    assert run.model.parameters == pytest.approx(8.03e9, rel=0.001)


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
    assert fold.sharding(text) == found


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


def test_every_second_layer_is_half_of_each_chunk() -> None:
    row = row_of(recompute="selective (every 2nd layer)")
    assert (row.recompute, row.recompute_layers) == ("block", 8)


@pytest.mark.parametrize(
    ("text", "name", "chunks"),
    [
        ("ZB-1p", "zb-h1", 1),
        ("ZB-2p", "zb-h2", 1),
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


def test_interleaved_without_chunks_takes_two_where_layers_divide() -> None:
    assert row_of(schedule="1f1b-interleaved (paper)", vpp="").format() == "tp2.pp2.vpp2.dp4.z1.mbs1.gbs128"
    assert row_of(schedule="1F1B-I", vpp="", n_layers="33").vpp == 1


def test_megatron_core_interleaves_where_nothing_is_said() -> None:
    run = run_of(vpp="")
    assert run.plans[0].row.vpp == 8
    assert assumed(run)["vpp"].startswith("8: usual in Megatron-Core")
    assert row_of(vpp="", n_layers="33").vpp == 1
    assert row_of(vpp="", schedule="1F1B").vpp == 1
    assert row_of(vpp="", framework="NVIDIA NeMo").vpp == 1
    assert row_of(vpp="", notes="stage layer split [16, 18]").vpp == 1


def test_edges_that_take_a_layers_place_leave_chunks_without_layers() -> None:
    """22 layers, the embedding and the head on 24 virtual stages."""
    run = run_of(pp="8", vpp="3", dp="1", tp="2", n_layers="22", schedule="1F1B-I")
    assert run.split == (0, *(1,) * 22, 0)
    assert run_of(pp="2", n_layers="30", dp="4").split == (15, 15)
    assert run_of(pp="8", dp="1", n_layers="22").split == (2, 3, 3, 3, 3, 3, 3, 2)


def test_tests_of_megatron_say_whose_layers_they_run() -> None:
    """Those that are not named after Transformer Engine write scores to memory."""
    for notes, kernel in (
        ("gpt3_mcore_te_tp2_pp2; vocab = ...", "flash"),
        ("gpt3_mcore_tp2_pp2_uninstall_te; vocab = ...", "materialised"),
        ("gpt3_mcore_tp1_pp2; vocab = ...", "materialised"),
    ):
        run = run_of(notes=notes, framework="Megatron-LM (mcore) CI dev", attention="flash/TE")
        assert run.workload.attention_kernel == kernel


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
        ("RoCE RDMA", None),
        ("", None),
    ],
)
def test_speeds_between_nodes(text: str, per_device: float | None) -> None:
    assert fold.fabric_bytes_per_s(text, 8) == per_device


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


def test_what_is_not_said_may_have_been_several_plans() -> None:
    run = run_of(recompute="", micro_batch="", tp="1", pp="1", dp="16", n_gpus="16")
    shown = [(possible.row.recompute, possible.row.mbs) for possible in run.plans]
    assert shown == [(mode, mbs) for mode in ("none", "sel", "full") for mbs in (4, 2, 1)]


def test_fsdp_needs_no_degrees() -> None:
    run = run_of(zero_stage="FSDP", tp="", pp="", dp="", framework="torchtitan")
    assert run.plans[0].row.format() == "dp16.fsdp.mbs1.gbs128"
    assert "tp not stated" in str(read(tp=""))


def test_a_shard_group_as_large_as_the_job_is_plain_fsdp() -> None:
    fsdp = {"tp": "1", "pp": "1", "dp": "16"}
    assert row_of(zero_stage="FSDP 128", **fsdp).sharding == "fsdp"
    assert row_of(zero_stage="HSDP (FSDP8 x DP2)", **fsdp).format() == "dp16.hsdp8.mbs1.gbs128"


def test_a_known_name_takes_the_librarys_model() -> None:
    deepseek = {
        "model_name": "DeepSeekV3",
        "n_layers": "61",
        "hidden": "7168",
        "ffn_hidden": "18432",
        "n_heads": "128",
        "n_kv_heads": "128",
        "vocab": "129280",
        "n_experts": "256",
        "top_k": "8",
        "moe_ffn_hidden": "2048",
        "ep": "8",
        "etp": "1",
    }
    run = run_of(**deepseek, notes="w/o MTP")
    assert isinstance(run.model.kinds()[0].attention, LatentAttention)
    assert run.model.mtp_layers == 0
    assert run.split == ()
    proxy = run_of(model_name="Llama 3.1 8B", n_layers="4")
    assert proxy.model.num_layers == 4
    assert "4 of the 32 layers" in assumed(proxy)["model"]


def test_a_name_with_other_widths_is_built_from_the_columns() -> None:
    run = run_of(model_name="llama-3-8b", ffn_hidden="11008")
    assert run.model.kinds()[0].mlp.ffn_hidden == 11008  # type: ignore[union-attr]
    assert run.model.family == "measured"


def test_experts_from_columns_and_notes() -> None:
    run = run_of(
        n_experts="16",
        top_k="2",
        moe_ffn_hidden="2048",
        ep="4",
        notes="moe-layer-freq=([0]*1+[1]*31); moe-shared-expert-intermediate-size=512; token drop",
    )
    dense, moe = run.model.kinds()
    assert isinstance(moe.mlp, MoeMlp)
    assert (moe.mlp.experts, moe.mlp.shared_ffn_hidden) == (16, 512)
    assert dense.mlp.kind == "dense"
    assert run.capacity == 1.0
    assert run.plans[0].row.etp == 2


def test_a_stated_split_counts_embedding_and_head_as_layers() -> None:
    assert run_of(notes="stage layer split [16, 18]").split == (15, 17)
    assert run_of(notes="stage layer split [3, 4]").split == (16, 16)


@pytest.mark.parametrize("text", ["LoRA", "method: SFT", "supervised fine-tuning"])
def test_only_full_training_is_priced(text: str) -> None:
    assert "only full training" in str(read(notes=text))
    assert isinstance(read(notes="q-lora-rank=512"), MeasuredRun)


def test_all_reasons_come_together() -> None:
    reason = str(read(n_layers="", hidden="wide", n_heads="-3", gpu=""))
    for part in ("n_layers not stated", "hidden 'wide'", "n_heads '-3'", "gpu not stated"):
        assert part in reason
    assert "unknown device" in str(read(gpu="RTX-2080+RTX-3090"))


@given(
    column=st.sampled_from(sorted(LLAMA)),
    text=st.one_of(
        st.text(max_size=20), st.sampled_from(["0", "-1", "nan", "inf", "1e9", "1e300", "7", "True", "FSDP0"])
    ),
)
def test_any_text_in_any_column_gives_a_run_or_a_reason(column: str, text: str) -> None:
    found = read_run(LLAMA | {column: text}, device, find)
    assert isinstance(found, MeasuredRun) or found


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_rows(tmp_path / "absent.csv")
    other = tmp_path / "other.csv"
    other.write_text("id,gpus\na,b\n")
    with pytest.raises(InputError, match="no column n_layers"):
        read_rows(other)
    empty = tmp_path / "header.csv"
    empty.write_text(",".join(LLAMA) + "\n")
    with pytest.raises(InputError, match="holds no run"):
        read_rows(empty)


def test_short_and_long_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    names = list(LLAMA)
    file.write_text(",".join(names) + "\nfirst\n" + ",".join([*LLAMA.values(), "beyond"]) + "\n")
    rows = read_rows(file)
    assert rows[0]["gpu"] == ""
    assert rows[1] == LLAMA


def test_boards_without_a_switch_are_domains_of_their_own() -> None:
    links = "NVLink3 (4 NVLinks per pair; Jean Zay)"
    joined = run_of(gpu="A100-SXM", intra_link=links, inter_link="4x100Gb/s Omni-Path per node").cluster.groups[0]
    switched = run_of(gpu="A100-SXM", intra_link="NVLink3/NVSwitch").cluster.groups[0]

    assert [domain.size for domain in joined.domains] == [4, 8, 16]
    assert [domain.size for domain in switched.domains] == [8, 16]
    assert fold.board_devices("NVLink2 (2 NVLinks per pair)") == 4
    assert fold.board_devices("NVLink4/NVSwitch (8-GPU)") is None


def test_a_micro_batch_that_is_not_stated_is_small_with_experts() -> None:
    experts = {"arch": "moe", "n_experts": "8", "top_k": "2", "moe_ffn_hidden": "14336", "pp": "1", "dp": "8"}

    assert row_of(micro_batch="", **experts).mbs == 1
    assert row_of(micro_batch="", pp="1", dp="8").mbs == 4


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
