"""The table of methods in docs/methods.md: how each is stated, what prices it, what runs it, and what is left out.

python -m benchmarks.methods
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/methods.md"
BEGIN, END = "<!-- methods -->\n", "<!-- end of methods -->\n"
SYSTEMS, RUN = "tests/estimate/test_expert_systems.py", "tests/zoo/test_expert_exchange.py"
LOAD, EXCHANGE = "tests/kernels/test_expert_load.py", "tests/kernels/test_exchange.py"
PARITY = "tests/runtime/test_parity.py"
COVER = "test_a_cover_of_all_pairs_ends_where_one_device_ends"
GRIDS = "tests/runtime/test_tensor_grids.py"
RANKS, SUMS = "tests/runtime/rank_steps/test_rank_steps.py", "tests/estimate/data/test_other_sums.py"
APART = "test_ranks_end_where_one_device_ends"
SYNC, STATES, AWAY = "tests/estimate/data/test_sync.py", "tests/strategies/test_data.py", "tests/estimate/test_away.py"
HOSTED = "tests/runtime/rank_steps/test_host_steps.py"
PREFETCHED = "tests/runtime/rank_steps/test_prefetched_steps.py"
RING = "tests/strategies/test_weight_ring.py"
KEPT = "tests/strategies/test_memory.py"
CONTEXT = "tests/zoo/test_context_exchange.py"
SENT = "test_attention_of_8_ranks_is_that_of_one_and_sends_what_is_priced"
SECOND = "test_zero_plus_plus_sends_a_quarter_between_nodes_and_keeps_a_copy_in_each"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method of the literature."""

    name: str
    year: int
    stated: tuple[str, ...]
    """Tokens of a plan, or options."""
    priced: tuple[str, str]
    """File and name of the test of its price."""
    run: tuple[str, str] | None = None
    """File and name of the test that compares a run on 8 devices with one device; None where nothing runs it."""
    left_out: str = ""


METHODS = (
    Method(
        name="GShard",
        year=2020,
        stated=("ep", "capacity_factor"),
        priced=(LOAD, "test_gates_count_the_room_of_an_expert_their_own_way"),
        run=(RUN, "test_gates_with_capacity_route_alike_on_8_devices"),
        left_out="dispatch by one-hot products is not priced",
    ),
    Method(
        name="Switch Transformers",
        year=2021,
        stated=("ep", "capacity_factor"),
        priced=(LOAD, "test_a_capacity_drops_what_is_over_the_room_of_an_expert"),
        run=(RUN, "test_gates_with_capacity_route_alike_on_8_devices"),
    ),
    Method(
        name="FastMoE",
        year=2021,
        stated=("ep",),
        priced=("tests/strategies/test_expert.py", "test_imbalance_fills_the_fullest_rank"),
        run=(PARITY, "test_a_cover_of_all_pairs_ends_where_one_device_ends"),
        left_out="the exchange of token counts is priced as latency of the all-to-all",
    ),
    Method(
        name="Expert choice",
        year=2022,
        stated=("ep", "capacity_factor=1"),
        priced=(LOAD, "test_gates_count_the_room_of_an_expert_their_own_way"),
        run=(RUN, "test_gates_with_capacity_route_alike_on_8_devices"),
    ),
    Method(
        name="FasterMoE: shadowed experts",
        year=2022,
        stated=("epshadow2",),
        priced=(SYSTEMS, "test_two_shadows_are_fastest_in_the_model_of_fastermoe"),
        run=(RUN, "test_copies_of_hot_experts_are_sums_of_as_many_bytes_as_are_broadcast"),
        left_out="all layers have as many shadows; with a capacity factor the all-to-all of a run stays padded",
    ),
    Method(
        name="FasterMoE: chunks, topology-aware gate",
        year=2022,
        stated=("epc4", "locality"),
        priced=("tests/kernels/test_collectives.py", "test_fewer_tokens_that_leave_a_domain_take_less_time"),
        run=(RUN, "test_pieces_send_what_the_whole_does_in_as_many_exchanges"),
        left_out="the topology-aware gate is not executed",
    ),
    Method(
        name="DeepSpeed-MoE",
        year=2022,
        stated=("ep2h", "etp2"),
        priced=(RUN, "test_exchanges_of_the_compiled_program_have_the_priced_bytes"),
        run=(RUN, "test_every_way_ends_where_one_device_ends"),
    ),
    Method(
        name="DeepSpeed-MoE: pyramid of residual experts (PR-MoE)",
        year=2022,
        stated=("experts", "residual"),
        priced=(SYSTEMS, "test_layers_of_a_pyramid_are_priced_each_with_its_own_experts"),
        run=("tests/runtime/test_pyramid.py", "test_a_pyramid_ends_where_one_device_ends"),
        left_out="one ep degree, which divides the experts of every layer",
    ),
    Method(
        name="SmartMoE",
        year=2023,
        stated=("epbal",),
        priced=(LOAD, "test_pools_of_smartmoe_put_the_heaviest_expert_beside_a_light_one"),
        run=(RUN, "test_experts_placed_by_load_fill_ranks_as_priced_and_send_nothing_more"),
        left_out="one fixed placement for the stated load, with the steps that repay the move to it; verify and run "
        "of a plan with epbal hold experts in blocks, with the same values",
    ),
    Method(
        name="DeepSpeed-TED",
        year=2023,
        stated=("nosp.epdtd", "epstash", "tile1800000"),
        priced=(SYSTEMS, "test_stashed_exchanges_are_not_repeated_and_take_memory"),
        run=(RUN, "test_tensor_ranks_send_their_part_and_gather_results_at_the_priced_bytes"),
        left_out="tiles of the optimizer are not run; runs without epdtd split tokens over tensor ranks, too",
    ),
    Method(
        name="Tutel",
        year=2023,
        stated=("epc2", "ep2h"),
        priced=(SYSTEMS, "test_chunks_hide_exchanges_beside_the_experts"),
        run=(RUN, "test_every_way_ends_where_one_device_ends"),
        left_out="r = 0 (experts sharded by parameters) is stated as ZeRO-3",
    ),
    Method(
        name="Janus",
        year=2023,
        stated=("epmove",),
        priced=(SYSTEMS, "test_experts_move_where_tokens_outweigh_them"),
        run=(RUN, "test_weights_that_move_have_the_priced_bytes"),
        left_out="the cache in host memory, which saves the second gather",
    ),
    Method(
        name="Lina",
        year=2023,
        stated=("epfirst", "epbal", "epc4"),
        priced=(SYSTEMS, "test_exchanges_before_gradients_pay_where_few_micro_batches_hide_them"),
        run=(RUN, "test_every_way_ends_where_one_device_ends"),
        left_out="a run leaves the order of collectives to XLA; packing is ep with fewer ranks",
    ),
    Method(
        name="MoE parallel folding",
        year=2025,
        stated=("tp2.cp2.dp2.ep8",),
        priced=("tests/strategies/test_expert.py", "test_folding"),
        run=(RUN, "test_every_way_ends_where_one_device_ends"),
    ),
    Method(
        name="DeepEP, node-limited routing",
        year=2025,
        stated=("epdedup",),
        priced=(EXCHANGE, "test_dispatch_of_deepep_on_h800"),
        run=(RUN, "test_a_token_is_sent_once_to_a_domain_and_there_once_to_a_rank"),
        left_out="a run has room on every rank for every token, so it sends more where a token visits few ranks",
    ),
    *(
        Method(
            name=name,
            year=year,
            stated=stated,
            priced=(f"tests/{priced[0]}.py", priced[1]),
            run=run,
            left_out=left_out,
        )
        for name, year, stated, priced, run, left_out in (
            (
                "Megatron 1D",
                2019,
                ("tp4.nosp",),
                ("strategies/test_tensor_1d", "test_volume_per_layer"),
                (PARITY, COVER),
                "",
            ),
            (
                "Megatron sequence parallelism",
                2022,
                ("tp4", "tp4.tpov"),
                ("strategies/test_tensor_1d", "test_megatron_sequence_parallel_forward_of_a_long_sequence"),
                (GRIDS, "test_steps_equal_one_device"),
                "overlap is left to XLA",
            ),
            (
                "DeepSpeed-Domino",
                2024,
                ("tpov-halves", "nosp.tpov-halves"),
                ("estimate/test_halves", "test_the_other_half_hides_collectives_that_its_own_product_cannot"),
                ("tests/runtime/test_halves.py", "test_halves_end_where_one_device_ends"),
                "weights are not cut into columns besides; without sequence parallelism XLA may put sums of both "
                "halves together",
            ),
            (
                "Optimus (2D)",
                2021,
                ("tp2d2",),
                ("strategies/test_tensor_families", "test_elements_received"),
                (GRIDS, "test_steps_equal_one_device"),
                "a run gathers blocks at once instead of broadcasting them step by step",
            ),
            (
                "Tesseract (2.5D)",
                2022,
                ("tp25d2x2",),
                ("strategies/test_tensor_families", "test_elements_received"),
                (GRIDS, "test_steps_equal_one_device"),
                "as Optimus",
            ),
            (
                "Colossal-AI 3D",
                2021,
                ("tp3d2",),
                ("strategies/test_tensor_families", "test_elements_received"),
                (GRIDS, "test_steps_equal_one_device"),
                "",
            ),
            (
                "Ulysses",
                2023,
                ("cp4-a2a",),
                ("strategies/test_context", "test_ulysses_volume"),
                (CONTEXT, SENT),
                "",
            ),
            (
                "Ring attention, Megatron CP",
                2023,
                ("cp4", "cp4-ag"),
                ("strategies/test_context", "test_ring_volume"),
                (CONTEXT, SENT),
                "",
            ),
            (
                "Striped attention",
                2023,
                ("cp4-striped",),
                ("strategies/test_context", "test_stripes_cut_a_sequence_that_halves_do_not"),
                (CONTEXT, SENT),
                "a run masks the half of a block that a kernel leaves out",
            ),
            (
                "BurstAttention",
                2024,
                ("cp4-burst",),
                ("strategies/test_context", "test_burst_returns_three_quarters_of_a_ring_where_heads_share_no_keys"),
                (CONTEXT, SENT),
                "one ring over all ranks, not one in each node and one across",
            ),
            (
                "Tree attention",
                2024,
                ("cp4-tree",),
                ("strategies/test_context", "test_gathered_queries_are_less_than_keys_where_few_see_many"),
                (CONTEXT, SENT),
                "",
            ),
            (
                "USP",
                2024,
                ("cp4-a2a2xp2p2",),
                ("strategies/test_context", "test_hierarchy_is_an_exchange_inside_and_a_ring_outside"),
                (CONTEXT, SENT),
                "all-to-alls of heads are always the inner level",
            ),
        )
    ),
    *(
        Method(name=name, year=year, stated=stated, priced=priced, run=run, left_out=left_out)
        for name, year, stated, priced, run, left_out in (
            (
                "DDP",
                2020,
                ("z0",),
                (SYNC, "test_reduced_and_gathered_bytes_with_nothing_to_hide_them"),
                (PARITY, COVER),
                "",
            ),
            ("ZeRO-1", 2020, ("z1",), (STATES, "test_formulas_in_bf16"), (PARITY, COVER), ""),
            ("ZeRO-2", 2020, ("z2",), (SYNC, "test_zero_2_scatters_every_micro_batch"), (PARITY, COVER), ""),
            ("ZeRO-3", 2020, ("z3",), (STATES, "test_states_of_llama_3_8b"), (PARITY, COVER), ""),
            (
                "FSDP",
                2023,
                ("fsdp", "fsdp-keep"),
                (SYNC, "test_sharded_weights_are_gathered_twice_and_gradients_scattered_once"),
                (PARITY, COVER),
                "the order of gathers and products is XLA's",
            ),
            (
                "FSDP: prefetch depth",
                2023,
                ("fsdp.prefetch2", "z3.prefetch0"),
                ("tests/estimate/data/test_prefetch.py", "test_every_layer_ahead_is_held_whole"),
                (PREFETCHED, "test_layers_gathered_ahead_end_where_one_device_ends"),
                "a gather hides behind one layer, whatever the depth; runs with data parallelism only, repeat the "
                "forward of each layer, and gather table and head once",
            ),
            (
                "HSDP, MiCS",
                2022,
                ("hsdp8",),
                (SYNC, "test_groups_inside_a_node_gather_over_its_links"),
                (PARITY, COVER),
                "hierarchical gathers of MiCS are priced as those of any group",
            ),
            (
                "ZeRO++",
                2023,
                ("z3.qw-int8.qg-int4.hpz8",),
                (SUMS, SECOND),
                (RANKS, "test_zero_plus_plus_sends_the_priced_bytes"),
                "gradients are exchanged in one step, not hierarchically; runs with data parallelism only",
            ),
            (
                "WeiPipe",
                2025,
                ("weipipe",),
                (RING, "test_a_step_takes_the_turns_of_a_simulation_in_which_all_wait_for_the_slowest"),
                (
                    "tests/runtime/rank_steps/test_ring_steps.py",
                    "test_a_ring_ends_where_one_device_ends_and_sends_what_is_priced",
                ),
                "the zero-bubble forms; a run gathers embedding and head once a step and repeats the forward of each "
                "group of layers",
            ),
            (
                "PipeFisher",
                2023,
                ("--optimizer pipefisher",),
                (
                    "tests/estimate/layers/test_states.py",
                    "test_pipefisher_takes_from_the_bubble_what_kfac_adds_to_the_step",
                ),
                ("tests/runtime/test_filled_bubbles.py", "test_k_fac_ends_where_one_device_ends"),
                "a run makes and sums factors in every step, with the gradients of weights, which fill bubbles where a "
                "schedule parts these (zb-h1), and all inverses of a worker in its longest wait; neither stands in the "
                "timeline",
            ),
            (
                "Mobius",
                2023,
                ("mobius.vpp4.off-wog",),
                ("tests/estimate/test_paging.py", "test_two_stages_are_on_the_device"),
                ("tests/runtime/test_paged_stages.py", "test_paged_stages_end_where_one_device_ends"),
                "mapping of neighbours to different root complexes; not searched; runs on single devices of a stage "
                "(tp1), with off-wog",
            ),
            (
                "PowerSGD",
                2019,
                ("gc-powersgd4",),
                (SUMS, "test_compression_wins_between_slow_nodes_and_not_inside_one"),
                (RANKS, APART),
                "one collective per factor and bucket; only with z0",
            ),
            (
                "Top-k",
                2017,
                ("gc-topk1",),
                (SUMS, "test_payloads_are_those_of_the_papers"),
                (RANKS, APART),
                "only with z0",
            ),
            (
                "1-bit Adam",
                2021,
                ("gc-onebit100",),
                (SUMS, "test_payloads_are_those_of_the_papers"),
                (RANKS, APART),
                "the price is of a step after warm-up; only with z0",
            ),
            (
                "Gradients in fewer bits",
                2023,
                ("qg-fp8",),
                (
                    "tests/estimate/rules/test_unpriced.py",
                    "test_weights_and_gradients_cross_in_the_formats_a_plan_states",
                ),
                (RANKS, "test_zero_plus_plus_sends_the_priced_bytes"),
                "runs with int8 and int4 under ZeRO-3 only",
            ),
            (
                "Local SGD",
                2019,
                ("local16",),
                (SUMS, "test_seldom_averages_cost_their_share_and_an_outer_optimizer_eight_bytes"),
                (RANKS, APART),
                "not across pipelines",
            ),
            (
                "DiLoCo",
                2023,
                ("hsdp8.diloco64",),
                (SUMS, "test_seldom_averages_cost_their_share_and_an_outer_optimizer_eight_bytes"),
                (RANKS, APART),
                "groups run with unsharded weights; outer optimizer states stay on the device",
            ),
            (
                "Mixed precision",
                2018,
                ("--dtype bf16", "fp16"),
                (STATES, "test_recipes_replicated"),
                ("tests/runtime/test_narrow_formats.py", "test_plans_in_16_bits_end_where_one_device_ends"),
                "fp8 is not run; 16-bit runs agree within 1%",
            ),
            (
                "Full recompute",
                2016,
                ("rc-full", "rc-block4", "rc-uni4"),
                (KEPT, "test_gpt3_layer"),
                (PARITY, COVER),
                "",
            ),
            (
                "Selective recompute",
                2022,
                ("rc-sel", "rc-sel-mlp", "rc-sel-half_products"),
                (KEPT, "test_gpt3_layer"),
                (PARITY, COVER),
                "activations of experts, latent projections, shared experts and half of the products do not run alone",
            ),
            (
                "Checkmate",
                2020,
                ("rc-block4",),
                ("tests/search/test_recompute.py", "test_the_knapsack_equals_trying_everything"),
                (PARITY, COVER),
                "the search chooses layers and modules, not single operators",
            ),
            (
                "ZeRO-Offload",
                2021,
                ("off-og", "off-og-dpu"),
                (AWAY, "test_zero_offload_keeps_two_bytes_a_parameter_and_one_layers_gradients"),
                (HOSTED, "test_ranks_with_states_on_the_host_end_where_one_device_ends"),
                "runs with data parallelism only",
            ),
            (
                "ZeRO-Infinity",
                2021,
                ("off-wog", "off-wog-nvme"),
                (AWAY, "test_disks_take_what_they_are_said_to_take"),
                (HOSTED, "test_ranks_with_states_on_the_host_end_where_one_device_ends"),
                "runs with host memory and data parallelism only, not with disks",
            ),
            (
                "Swapped activations",
                2024,
                ("off-a",),
                (AWAY, "test_a_slower_slot_is_seen_where_copies_are"),
                (HOSTED, "test_ranks_whose_activations_wait_on_the_host_end_where_one_device_ends"),
                "runs with data parallelism only, where a backend has memory of the host; without recomputation a run "
                "moves all that JAX keeps, more than is priced",
            ),
        )
    ),
)


def table() -> str:
    """One row per method."""
    rows = ["| method | year | stated as | | priced, by | run, by | left out |", "|---|---|---|---|---|---|---|"]
    for one in METHODS:
        marks = "p m x" if one.run else "p m"
        stated = ", ".join(f"`{word}`" for word in one.stated)
        run = f"`{one.run[1]}`" if one.run else ""
        rows.append(f"| {one.name} | {one.year} | {stated} | {marks} | `{one.priced[1]}` | {run} | {one.left_out} |")
    return "\n".join(rows) + "\n"


def page(text: str) -> str:
    """The page with its table written anew."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def main() -> int:
    """Write the table."""
    PAGE.write_text(page(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
