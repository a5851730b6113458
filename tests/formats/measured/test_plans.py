"""The plans a measured row may have run, and how its layers lie on their stages."""

from __future__ import annotations

from meshwright.formats.measured import MeasuredRun
from meshwright.specs.row import PlanRow
from tests.formats.measured.row import assumed, read, run_of


def row_of(**changes: str) -> PlanRow:
    return run_of(**changes).plans[0].row


def test_every_second_layer_is_half_of_each_chunk() -> None:
    row = row_of(recompute="selective (every 2nd layer)")
    assert (row.recompute, row.recompute_layers) == ("block", 8)


def test_interleaved_without_chunks_takes_two_where_layers_divide() -> None:
    assert row_of(schedule="1f1b-interleaved (paper)", vpp="").format() == "tp2.pp2.vpp2.dp4.z1.mbs1.gbs128"
    assert row_of(schedule="1F1B-I", vpp="", n_layers="33").vpp == 1
    # Embedding and head take a layer's place each: 32 of them on 4 stages.
    assert row_of(schedule="1F1B-I", vpp="", n_layers="30", pp="2").vpp == 2


def test_policies_spare_int8_steps_nothing() -> None:
    run = run_of(dtype="int8 (AQT)", recompute="remat_policy=save_dot_except_logits", framework="MaxText (JAX/XLA)")
    assert [possible.row.recompute for possible in run.plans] == ["full"]
    assert assumed(run)["recompute"].startswith("full: policies spare int8")
    assert row_of(recompute="remat_policy=save_dot_except_logits", framework="MaxText (JAX/XLA)").recompute == "sel"


def test_llama_3_ran_a_layer_a_chunk_without_recompute() -> None:
    run = run_of(schedule="1f1b-interleaved variant", vpp="", recompute="", framework="Meta internal", n_layers="30")
    assert [possible.row.recompute for possible in run.plans] == ["none"]
    assert run.plans[0].row.vpp == 8
    assert run.split == (1, *(2,) * 14, 1)


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


def test_what_is_not_said_may_have_been_several_plans() -> None:
    run = run_of(recompute="", micro_batch="", framework="torchtitan", tp="1", pp="1", dp="16", n_gpus="16")
    shown = [(possible.row.recompute, possible.row.mbs) for possible in run.plans]
    assert shown == [(mode, mbs) for mode in ("none", "sel", "full") for mbs in (4, 2, 1)]


def test_megatron_core_recomputes_as_few_layers_as_fit_where_nothing_is_said() -> None:
    def shown(run: MeasuredRun) -> list[tuple[str, int]]:
        return [(possible.row.recompute, possible.row.recompute_layers) for possible in run.plans]

    blocks = [("block", 4), ("block", 8), ("block", 12)]
    assert shown(run_of(recompute="")) == [("none", 0), ("sel", 0), *blocks, ("full", 0)]
    # A chunk of two layers has one between none and both.
    assert shown(run_of(recompute="", vpp="8")) == [("none", 0), ("sel", 0), ("block", 1), ("full", 0)]
    assert ("block", 4) not in shown(run_of(recompute="", framework="MaxText (JAX/XLA)"))


def test_fsdp_needs_no_degrees() -> None:
    run = run_of(zero_stage="FSDP", tp="", pp="", dp="", framework="torchtitan")
    assert run.plans[0].row.format() == "dp16.fsdp.mbs1.gbs128"
    assert "tp not stated" in str(read(tp=""))


def test_a_shard_group_as_large_as_the_job_is_plain_fsdp() -> None:
    fsdp = {"tp": "1", "pp": "1", "dp": "16"}
    assert row_of(zero_stage="FSDP 128", **fsdp).sharding == "fsdp"
    assert row_of(zero_stage="HSDP (FSDP8 x DP2)", **fsdp).format() == "dp16.hsdp8.mbs1.gbs128"


def test_a_stated_split_counts_embedding_and_head_as_layers() -> None:
    assert run_of(notes="stage layer split [16, 18]").split == (15, 17)
    assert run_of(notes="stage layer split [3, 4]").split == (16, 16)


def test_a_micro_batch_that_is_not_stated_is_small_with_experts() -> None:
    experts = {"arch": "moe", "n_experts": "8", "top_k": "2", "moe_ffn_hidden": "14336", "pp": "1", "dp": "8"}

    assert row_of(micro_batch="", **experts).mbs == 1
    assert row_of(micro_batch="", pp="1", dp="8").mbs == 4


def test_a_pipeline_that_keeps_gathered_weights_sums_gradients_once() -> None:
    run = run_of(zero_stage="FSDP (params not resharded after fwd)")
    assert run.plans[0].row.sharding == "z1"
    assert "gradients" in assumed(run)
    assert row_of(zero_stage="FSDP (params not resharded after fwd)", pp="1", dp="8").sharding == "fsdp-keep"


def test_torchtitan_cuts_a_rank_s_batch_by_the_ranks_of_the_pipeline() -> None:
    titan = {"framework": "torchtitan +torch.compile", "zero_stage": "FSDP2", "micro_batch": "", "vpp": ""}
    run = run_of(**titan, schedule="1f1b", notes="micro_batch column = LOCAL batch 32", global_batch_seqs="128")
    assert (run.plans[0].row.mbs, run.plans[0].row.sharding) == (16, "z1")
    assert row_of(**titan, schedule="1F1B-I", notes="LOCAL batch 32", global_batch_seqs="128").mbs == 16
    assert {"micro_batch", "reshard_after_forward"} <= set(assumed(run))


def test_thin_experts_are_not_cut_between_tensor_ranks() -> None:
    moe = {"n_experts": "64", "top_k": "4", "ep": "4", "n_gpus": "32", "dp": "4", "tp": "4", "year": "2025", "etp": ""}
    assert row_of(**moe, moe_ffn_hidden="1536").etp == 1
    assert row_of(**moe, moe_ffn_hidden="16384").etp == 4


def test_experts_of_a_framework_named_after_folding_fold() -> None:
    moe = {"n_experts": "8", "top_k": "2", "ep": "4", "n_gpus": "32", "dp": "4", "tp": "4", "year": "2025", "etp": ""}
    assert row_of(**moe, moe_ffn_hidden="28672", framework="Megatron-Core (MCore)").etp == 4
    assert row_of(**moe, moe_ffn_hidden="28672", framework="Megatron-Core (MCore w/ Folding)").etp == 1


def test_a_source_that_overlaps_nothing_is_taken_at_its_word() -> None:
    alone = row_of(notes="No communication overlap (TP, P2P and gradients not overlapped)")
    assert (alone.tp_overlap, alone.dp_overlap) == ("none", False)
    assert (row_of().tp_overlap, row_of().dp_overlap) == ("bulk", True)


def test_ranks_of_a_sequence_exchange_as_stated() -> None:
    assert row_of(cp="2", dp="2", notes="CP by all-to-all").cp == (("a2a", 2),)
    assert row_of(cp="2", dp="2").cp == (("p2p", 2),)
