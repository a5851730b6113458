"""What Alpa's own tests assert of a compiler, and which tests here assert it: `python -m tests.alpa_intents`.

Alpa's tests for sharding, pipelines and its runtime (commit b8078a9f, tests/shard_parallel, tests/pipeline_parallel and
tests/runtime) were read for what they want to hold; each intent names tests of this repository that fail where it does
not hold. Tests of an option that Alpa alone has, of its own markers in XLA and of NCCL are named without one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PLANNED, STEPS = "tests/runtime/test_planned_steps.py", "tests/runtime/test_step_collectives.py"
GRAPH, FORMS = "tests/compiler/sharding/test_graph.py", "tests/compiler/sharding/test_closed_forms.py"
QUALITY, PARTITION = "tests/compiler/sharding/test_plan_quality.py", "tests/compiler/stages/test_partition.py"
RUNS, MEET = "tests/runtime/test_parallelize.py", "tests/runtime/test_collectives.py"
SHARD, LAYERS = "tests/runtime/test_shard_parallel.py", "tests/compiler/stages/test_layers.py"
CREATE, FOLLOW = "tests/runtime/test_create.py", "tests/runtime/test_follow.py"
PLANS, SAVED = "tests/runtime/test_method_plans.py", "tests/runtime/test_checkpoint.py"
SENT, LISTS = "tests/compiler/test_resharding.py", "tests/runtime/test_joined_runs.py"


@dataclass(frozen=True, slots=True)
class Intent:
    """One thing that has to hold."""

    area: str
    what: str
    theirs: str
    """File and test of Alpa's."""
    tests: tuple[str, ...] = ()
    """Of this repository; with no brackets, all cases of a test."""
    why_not: str = ""
    """Where there is none."""


def _all(area: str, *rows: tuple[str, str, str | tuple[str, ...]]) -> tuple[Intent, ...]:
    """Intents of an area; a text without `::` in place of tests says why there are none."""
    return tuple(
        Intent(area, what, theirs, why_not=own)
        if isinstance(own, str) and "::" not in own
        else Intent(area, what, theirs, (own,) if isinstance(own, str) else own)
        for what, theirs, own in rows
    )


INTENTS = (
    *_all(
        "shard",
        (
            "a network by samples: one all-reduce, weights whole",
            "test_mlp n_layer_mlp_data_parallel",
            (
                f"{PLANNED}::test_samples_of_a_network_are_split_where_they_outweigh_the_weights",
                f"{GRAPH}::test_data_parallel_is_found_at_the_price_of_one_all_reduce_of_the_gradients",
            ),
        ),
        (
            "a network by weights: layers - 1 all-reduces, columns and rows alternate",
            "test_mlp n_layer_mlp_model_parallel",
            (
                f"{PLANNED}::test_columns_and_rows_of_a_network_alternate_where_weights_outweigh_the_samples",
                f"{GRAPH}::test_columns_and_rows_alternate_where_weights_dominate",
            ),
        ),
        (
            "a network on 2 x 2: the closed form of its price",
            "test_mlp n_layer_mlp_2d_mesh",
            f"{FORMS}::test_samples_on_one_axis_and_columns_and_rows_on_the_other",
        ),
        (
            "a network on 2 x 2: as many all-reduces as layers",
            "test_mlp n_layer_mlp_2d_mesh",
            f"{PLANNED}::test_a_grid_takes_samples_and_weights",
        ),
        (
            "samples split whatever it costs",
            "test_mlp n_layer_mlp_force_data_parallel",
            f"{PLANNED}::test_data_parallel_splits_samples_whatever_it_costs",
        ),
        (
            "samples forced on one axis of a mesh",
            "test_mlp n_layer_mlp_force_batch_dim_mapping",
            f"{PLANNED}::test_stated_data_ranks_split_samples_where_weights_would_be",
        ),
        (
            "moments in parts: one reduce-scatter and one all-gather",
            "test_mlp n_layer_mlp_data_parallel_reduce_scatter",
            (
                f"{PLANNED}::test_moments_and_weights_in_parts_are_scattered_and_gathered[2]",
                f"{STEPS}::test_collectives_of_a_step[z2]",
            ),
        ),
        (
            "split results scattered where the next operator reads parts",
            "test_mlp n_layer_mlp_model_parallel_reduce_scatter",
            "tests/compiler/sharding/test_cost.py::test_sums_are_reduced_and_scattered_where_they_are_split_afterwards",
        ),
        (
            "moments in parts on 2 x 2",
            "test_mlp n_layer_mlp_2d_mesh_reduce_scatter",
            f"{STEPS}::test_beside_tensor_ranks_gradients_go_in_one_bucket_along_the_data_ranks",
        ),
        (
            "factored moments: one reduce-scatter, at most two of the others",
            "test_mlp n_layer_mlp_data_parallel_reduce_scatter_adafactor",
            f"{PLANNED}::test_factored_moments_in_parts_need_few_more",
        ),
        (
            "weights in parts: no all-reduce, two all-gathers, one reduce-scatter",
            "test_mlp n_layer_mlp_data_parallel_reduce_scatter_zero_stage_3",
            f"{PLANNED}::test_moments_and_weights_in_parts_are_scattered_and_gathered[3]",
        ),
        (
            "weights in parts: no parameter whole on a device",
            "test_mlp n_layer_mlp_data_parallel_reduce_scatter_zero_stage_3",
            (
                f"{STEPS}::test_with_split_parameters_no_device_holds_whole_ones",
                f"{RUNS}::test_zero_3_holds_no_parameter_whole",
            ),
        ),
        (
            "a state made in parts",
            "test_mlp weight_init",
            f"{CREATE}::test_parts_of_parameters_are_never_whole_on_a_device",
        ),
        (
            "transformer by samples: one all-reduce",
            "test_bert bert_layer_data_parallel",
            (
                f"{QUALITY}::test_a_transformer_split_by_samples_needs_one_all_reduce_of_its_gradients",
                f"{STEPS}::test_a_step_split_by_samples_needs_one_all_reduce_of_its_gradients",
            ),
        ),
        (
            "transformer by heads and columns: 4 L - 1 all-reduces",
            "test_bert bert_layer_model_parallel",
            (
                f"{QUALITY}::test_a_transformer_split_by_heads_and_columns_needs_4_all_reduces_a_layer_less_one",
                f"{STEPS}::test_a_step_split_by_heads_and_columns_needs_4_all_reduces_a_layer_less_one",
            ),
        ),
        (
            "transformer on 2 x 2: 4 L all-reduces",
            "test_bert bert_layer_2d_mesh",
            f"{PLANNED}::test_layers_on_a_grid_sum_their_results_and_once_their_gradients",
        ),
        (
            "transformer, samples forced on one axis",
            "test_bert bert_layer_force_batch_dim_mapping",
            f"{PLANNED}::test_stated_data_ranks_split_samples_of_a_transformer",
        ),
        (
            "a split table of words: its gradient is not reduced",
            "test_bert embedding_2d_mesh",
            f"{GRAPH}::test_the_gradient_of_a_large_table_is_not_reduced",
        ),
        (
            "language model by samples: one all-reduce",
            "test_bert bert_mlm_data_parallel",
            f"{PLANNED}::test_a_language_model_by_samples_reduces_its_gradients_once",
        ),
        (
            "language model by words: 4 L + 4 all-reduces",
            "test_bert bert_mlm_model_parallel",
            f"{PLANNED}::test_a_language_model_by_words_needs_few_sums_beside_its_layers[shape0]",
        ),
        (
            "language model on 2 x 2: 4 L + 5 all-reduces",
            "test_bert bert_mlm_2d_mesh",
            f"{PLANNED}::test_a_language_model_by_words_needs_few_sums_beside_its_layers[shape1]",
        ),
        (
            "transformer's moments in parts",
            "test_bert bert_layer_data_parallel_reduce_scatter",
            f"{RUNS}::test_parameters_after_some_steps_are_those_of_one_device",
        ),
        (
            "layers computed again: no sum but those that their backward reads",
            "test_bert bert_layer_model_parallel_remat",
            (
                f"{PLANNED}::test_layers_that_are_computed_again_sum_at_most_twice_more",
                f"{GRAPH}::test_a_checkpoint_pays_again_for_what_its_backward_reads",
            ),
        ),
        (
            "convolutions by samples: one all-reduce",
            "test_conv n_layer_conv_data_parallel",
            (
                f"{PLANNED}::test_convolutions_of_many_samples_reduce_their_kernels_once",
                f"{FORMS}::test_convolutions_by_samples_reduce_their_kernels",
            ),
        ),
        (
            "convolutions by channels: layers - 1 all-reduces",
            "test_conv n_layer_conv_model_parallel",
            f"{PLANNED}::test_convolutions_of_many_channels_sum_their_results",
        ),
        (
            "convolutions on a grid send what was priced",
            "test_conv n_layer_conv_2d_mesh",
            "tests/runtime/test_collective_bytes.py::test_bytes_are_those_that_were_priced",
        ),
        (
            "convolutions of single channels: at most one all-reduce",
            "test_conv n_layer_depthwise_conv_model_parallel",
            f"{PLANNED}::test_channels_that_do_not_meet_are_not_sent",
        ),
        (
            "experts on devices of their own: 4 all-to-alls and one all-reduce",
            "test_moe moe_layer",
            (
                f"{QUALITY}::test_experts_on_devices_of_their_own_need_4_all_to_alls",
                f"{STEPS}::test_a_step_with_experts_on_devices_of_their_own_needs_4_all_to_alls",
            ),
        ),
        (
            "experts on a grid send what was priced",
            "test_moe moe_layer_2d",
            "tests/runtime/test_collective_bytes.py::test_bytes_are_those_that_were_priced",
        ),
        (
            "experts of a grouped product split where memory wants it",
            "test_moe moe_lm_data_parallel_reduce_scatter_zero_3",
            f"{SHARD}::test_experts_of_a_grouped_product_are_split_where_memory_wants_it",
        ),
        (
            "all-to-alls and sums alone for parts of features",
            "test_mixed_2d dot_all_to_all",
            "Alpa's option forbids all-gathers there; here each has its price, and the cheapest plan takes one",
        ),
        (
            "gradients accumulated: reduced once",
            "test_gradient_accumulation single_host",
            (
                f"{PLANNED}::test_an_accumulated_gradient_is_reduced_once",
                f"{SHARD}::test_data_ranks_of_a_grid_reduce_their_gradients_once_a_step",
            ),
        ),
        (
            "gradients accumulated on a grid: reduced once",
            "test_gradient_accumulation 2d_mesh",
            (
                f"{PLANNED}::test_an_accumulated_gradient_on_a_grid_is_reduced_once",
                "tests/runtime/test_collective_bytes.py::test_at_gpt_sizes_a_grid_takes_megatrons_form_and_reduces_gradients_once",
            ),
        ),
        (
            "gradients accumulated in parts: one reduce-scatter, one all-gather",
            "test_gradient_accumulation reduce_scatter",
            (f"{STEPS}::test_collectives_of_a_step[z2]", f"{STEPS}::test_bytes_of_a_step_are_the_planner_s[z2]"),
        ),
        (
            "gradients accumulated on several hosts",
            "test_gradient_accumulation multi_host",
            "tests/runtime/workers/test_hosted.py::test_two_stages_on_two_hosts_each_compute_what_one_process_does",
        ),
        (
            "memory of a state that is given away is taken",
            "test_basic donate_buffer",
            (
                f"{LISTS}::test_donated_state_is_updated_in_its_own_memory",
                "tests/runtime/test_donation.py::test_the_peak_is_lower_where_the_state_is_given",
            ),
        ),
        (
            "product, reshape, transpose by samples: one all-reduce",
            "test_basic dot_reshape_transpose",
            f"{PLANNED}::test_what_every_device_does_for_its_own_samples_is_not_sent[product, reshape and transpose]",
        ),
        ("one device sends nothing", "test_basic one_by_one_mesh", f"{PLANNED}::test_one_device_sends_nothing"),
        (
            "dropout by samples: one all-reduce",
            "test_basic dropout",
            f"{PLANNED}::test_what_every_device_does_for_its_own_samples_is_not_sent[dropout]",
        ),
        (
            "gather of columns: one all-reduce",
            "test_basic gather",
            f"{PLANNED}::test_what_every_device_does_for_its_own_samples_is_not_sent[gather of columns]",
        ),
        (
            "a reshape that axes do not divide costs next to nothing",
            "test_basic reshape_uneven_partition",
            f"{FORMS}::test_what_every_device_does_for_its_own_samples_costs_two_numbers[uneven reshape]",
        ),
        (
            "argmax costs next to nothing",
            "test_basic argmax",
            f"{FORMS}::test_what_every_device_does_for_its_own_samples_costs_two_numbers[argmax]",
        ),
        (
            "sort costs next to nothing",
            "test_basic sort",
            f"{FORMS}::test_what_every_device_does_for_its_own_samples_costs_two_numbers[sort]",
        ),
        (
            "state stays as it is stated by hand",
            "test_manual set_input, set_output, grad_acc",
            "shardings are stated by a saved plan, not array by array",
        ),
        ("a saved plan is what is run", "test_manual set_input", f"{PLANS}::test_a_plan_is_replayed_as_it_was_decided"),
        (
            "parameters of a sharded step are those of one device",
            "test_numerical_correctness 2_layer_bert_shard_parallel",
            (
                f"{SHARD}::test_parameters_after_some_steps_are_those_of_one_device",
                f"{SHARD}::test_loops_checkpoints_and_three_axes",
            ),
        ),
    ),
    *_all(
        "pipeline",
        (
            "a network in stages in one process is that of one device",
            "test_mlp 2_layer_mlp_local_pipeline_parallel",
            f"{RUNS}::test_parameters_after_some_steps_are_those_of_one_device[LocalPipeline-1f1b]",
        ),
        (
            "a transformer in stages is that of one device",
            "test_bert 2_layer_bert_pipeshard_parallel",
            f"{RUNS}::test_parameters_after_some_steps_are_those_of_one_device",
        ),
        (
            "any tile goes to any other layout",
            "test_cross_mesh_resharding 4gpu_send_recv",
            (f"{SENT}::test_every_device_gets_its_part_and_no_entry_twice", f"{SENT}::test_boxes_are_those_of_jax"),
        ),
        (
            "replicas: sent once, gathered there",
            "test_cross_mesh_resharding 4gpu_allgather, 8gpu_2_dim_allgather",
            f"{SENT}::test_replicated_targets_receive_once_and_gather",
        ),
        (
            "small messages go to each",
            "test_cross_mesh_resharding 4gpu_broadcast, 8gpu_broadcast",
            f"{SENT}::test_small_messages_go_to_each",
        ),
        (
            "replicas share the sending",
            "test_cross_mesh_resharding 8gpu_broadcast",
            f"{SENT}::test_replicas_share_the_sending",
        ),
        (
            "stages by dynamic programming are the best of all",
            "test_dynamic_programming stage_construction; test_old_dp_vs_new_dp",
            f"{PARTITION}::test_the_best_partition_is_the_best_of_all",
        ),
        (
            "early stages hold more micro-batches",
            "test_stage_construction",
            f"{PARTITION}::test_early_stages_hold_more_micro_batches",
        ),
        (
            "stages found end where one device ends",
            "test_stage_construction mlp_layer_and_stage",
            "tests/runtime/test_auto.py::test_stages_may_be_found_alone",
        ),
        (
            "no given stages are quicker than those found",
            "test_stage_construction_slow",
            "tests/compiler/stages/test_search.py::test_no_given_stages_are_quicker",
        ),
        (
            "the price between borders is the optimum",
            "test_stage_construction_util mlp_1d_2d_the_same",
            "tests/compiler/stages/test_tables.py::test_every_entry_is_the_optimum_between_its_borders",
        ),
        (
            "the norm of all gradients, over stages: one sum",
            "test_global_norm global_norm",
            f"{MEET}::test_stages_meet_once_and_reach_what_one_device_reaches",
        ),
        (
            "a dynamic scale of the loss over stages",
            "test_global_norm dynamic_scale",
            f"{MEET}::test_stages_meet_once_and_reach_what_one_device_reaches",
        ),
        ("workers meet too", "test_global_norm glob_norm_and_all_le", f"{MEET}::test_workers_meet_too"),
        (
            "inference follows the placement of training",
            "test_inference_only mlp, bert",
            f"{FOLLOW}::test_results_are_those_of_one_device_and_parameters_stay",
        ),
        (
            "inference on stages that were found",
            "test_inference_auto",
            f"{FOLLOW}::test_results_are_those_of_one_device_and_parameters_stay",
        ),
        (
            "layers are cut where only the stream crosses",
            "test_layer_construction bert",
            f"{LAYERS}::test_repeated_layers_are_cut_where_only_the_stream_crosses",
        ),
        (
            "a network is cut into equal work",
            "test_layer_construction mlp",
            f"{LAYERS}::test_a_loss_without_repeated_layers_is_cut_into_equal_work",
        ),
        (
            "layers end by hand",
            "test_layer_construction manual",
            f"{LAYERS}::test_layers_end_by_hand_where_they_are_marked",
        ),
        (
            "shardings of stage inputs by hand",
            "test_manual_sharding, test_set_input_shard",
            "shardings are stated by a saved plan, not array by array",
        ),
        ("two steps in one process", "test_multi_graph 2_mlp", f"{RUNS}::test_the_batch_may_change_its_size"),
        (
            "markers go through gradients",
            "test_pipeline_marker transpose, jax_graph",
            "tests/compiler/test_marking.py::test_values_and_gradients_are_those_of_jax",
        ),
        ("markers in XLA's program", "test_pipeline_marker xla_graph", "no markers in XLA: programs are cut before it"),
        (
            "every stage reduces its gradients once",
            "test_reduce_scatter mlp_grad_acc_friendly",
            f"{STEPS}::test_every_stage_reduces_its_gradients_once",
        ),
        (
            "layers computed again change no number",
            "test_remat mlp_remat, 2_layer_bert_remat",
            (
                f"{RUNS}::test_jit_checkpoints_and_loops_inside_and_batches_of_another_size",
                "tests/runtime/test_catalogue.py::test_recomputation_and_forwards_that_run_ahead_change_no_number",
            ),
        ),
        (
            "forward run again keeps nothing",
            "test_remat auto_layer_slicing_remat",
            "tests/runtime/test_catalogue.py::test_forwards_that_are_run_again_keep_nothing",
        ),
        (
            "messages of parts gathered where they arrive",
            "test_scatter_gather 2_layer_bert",
            "tests/runtime/workers/test_hosted.py::test_two_stages_on_two_hosts_each_compute_what_one_process_does",
        ),
        (
            "schedules: every task once, in order, in the clocks of their paper",
            "test_schedules schedules",
            "tests/runtime/test_catalogue.py::test_a_schedule_is_compiled_and_checked_or_refused",
        ),
        (
            "each stage lies on its own devices",
            "test_mlp 2_layer_mlp_pipeshard_parallel",
            f"{RUNS}::test_stages_lie_on_their_own_devices",
        ),
        (
            "tied embeddings over stages",
            "test_tied_embedding",
            "tests/runtime/workers/test_processes.py::test_the_numbers_are_those_of_one_process",
        ),
    ),
    *_all(
        "runtime",
        (
            "a state made where the step reads it",
            "test_create_state shard_parallel, grad_acc, pipeshard",
            f"{CREATE}::test_state_is_made_where_it_is_read",
        ),
        (
            "another state than the step's is refused",
            "test_create_state",
            f"{CREATE}::test_another_state_than_the_steps_is_refused",
        ),
        (
            "evaluation follows the step",
            "test_follow_parallel shard_parallel, grad_acc, pipeshard",
            (
                f"{FOLLOW}::test_results_are_those_of_one_device_and_parameters_stay",
                f"{FOLLOW}::test_workers_evaluate_the_state_they_keep",
            ),
        ),
        (
            "channels between meshes",
            "test_cross_mesh_communicator create_and_set",
            "tests/runtime/workers/test_sockets.py::test_both_may_send_all_before_they_receive",
        ),
        (
            "batches are made ahead, in order",
            "test_data_loader data_parallel, model_parallel, data_model_parallel",
            (
                "tests/runtime/test_train.py::test_batches_are_made_ahead_in_order_from_any_step",
                "tests/runtime/test_train.py::test_the_same_batches_come_each_time",
            ),
        ),
        (
            "what runs can be written out: lists and XLA's text",
            "test_debug_info debug_shard_parallel, debug_pipeline_parallel",
            (
                f"{PLANS}::test_the_text_of_every_executable_is_there",
                "tests/compiler/instructions/test_listing.py::test_what_was_saved_is_read",
            ),
        ),
        (
            "more devices than there are is refused",
            "test_device_mesh resource_check",
            f"{PLANS}::test_another_step_and_too_few_devices_are_refused",
        ),
        (
            "arrays of workers come back",
            "test_device_mesh distributed_array",
            "tests/runtime/workers/test_processes.py::test_state_may_come_back_as_arrays",
        ),
        (
            "a checkpoint in parts is read on any sharding",
            "test_dist_save_load distributed_array_save_load",
            (
                f"{SAVED}::test_what_is_read_is_what_was_written_on_any_sharding",
                f"{SAVED}::test_replicated_values_are_written_once_and_split_ones_in_parts",
            ),
        ),
        (
            "a checkpoint of workers is read by one process",
            "test_dist_save_load distributed_mlp_uncached_save_load",
            "tests/runtime/workers/test_processes.py::test_a_checkpoint_of_workers_is_read_by_one_process",
        ),
        (
            "a checkpoint under another plan",
            "test_dist_save_load distributed_bert_cached_save_load; test_save_load",
            "tests/runtime/test_orbax_checkpoints.py::test_another_plan_goes_on_from_a_checkpoint",
        ),
        (
            "nothing is left behind by a step",
            "test_memory_leak shard_parallel, pipeline_parallel",
            ("tests/runtime/test_donation.py::test_sums_of_gradients_take_the_memory_of_the_ones_before",),
        ),
        (
            "plan, saved, read, same plan: sharding",
            "test_parallel_plan shard_parallel",
            f"{PLANS}::test_a_plan_is_replayed_as_it_was_decided",
        ),
        (
            "plan, saved, read, same plan: stages",
            "test_parallel_plan pipeshard_parallel",
            (
                f"{PLANS}::test_the_saved_stages_are_what_is_cut",
                "tests/runtime/test_auto.py::test_everything_chosen_and_replayed_from_a_saved_plan",
            ),
        ),
        (
            "random numbers are those of one device",
            "test_random_seed random_generation, set_seed",
            f"{RUNS}::test_random_keys_sums_and_derived_weights",
        ),
        (
            "random numbers computed again are the same",
            "test_random_seed remat_rng",
            "tests/runtime/rank_steps/test_host_steps.py::test_inputs_of_layers_that_are_computed_again_leave_at_the_priced_bytes",
        ),
        (
            "every instruction has its time",
            "test_tracing trace_pipeshard_executable",
            (
                "tests/runtime/test_called_layers.py::test_a_timed_step_has_one_entry_for_each_layer",
                f"{LISTS}::test_timing_begins_with_every_instruction_compiled_and_no_work_pending",
            ),
        ),
        ("NCCL through XLA", "test_xla_nccl", "needs GPUs"),
    ),
)


def held(outcomes: Mapping[str, str], intent: Intent) -> str:
    """Whether an intent holds: `passed`, `failed` with what is found instead where that is known, `skipped`,
    `not run`, or why there is no test.

    Args:
        outcomes: of tests, by their name with its case.
        intent: which.
    """
    if not intent.tests:
        return intent.why_not
    own = [word for test in intent.tests for word in _of(outcomes, test)]
    return next(
        (found for word in ("failed", "not run", "skipped") for found in own if found.startswith(word)), "passed"
    )


def _of(outcomes: Mapping[str, str], test: str) -> Iterator[str]:
    found = [word for name, word in outcomes.items() if name == test or name.startswith(test + "[")]
    yield from found or ["not run"]


class Outcomes:
    """Of pytest: what became of each test."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.of: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the worst of a test's phases.

        Args:
            report: of one phase.
        """
        if report.when == "call" or report.outcome != "passed":
            known = getattr(report, "wasxfail", None)
            word = report.outcome if known is None else f"failed: {known.removeprefix('reason: ')}"
            if not self.of.get(report.nodeid, "").startswith("failed"):
                self.of[report.nodeid] = word


HEAD = """# What Alpa's tests assert

Alpa's own tests of sharding, pipelines and its runtime (commit b8078a9f, 2023-12) were read for what they want to hold,
with the collectives that they count. `python -m tests.alpa_intents --page docs/alpa-intents.md` runs this repository's
tests of the same and writes this page.

| | intents | passed | failed | skipped or not run | without a test |
|---|---|---|---|---|---|
"""


def page(outcomes: Mapping[str, str]) -> str:
    """The page.

    Args:
        outcomes: of tests.
    """
    words = {intent: held(outcomes, intent) for intent in INTENTS}
    text = HEAD
    for area in dict.fromkeys(intent.area for intent in INTENTS):
        own = [words[intent].split(":")[0] if intent.tests else "" for intent in INTENTS if intent.area == area]
        counts = [own.count("passed"), own.count("failed"), own.count("skipped") + own.count("not run"), own.count("")]
        text += f"| {area} | {len(own)} | " + " | ".join(map(str, counts)) + " |\n"
    for area in dict.fromkeys(intent.area for intent in INTENTS):
        text += f"\n## {area.capitalize()}\n\n| intent | Alpa's test | here | tests |\n|---|---|---|---|\n"
        for intent in INTENTS:
            if intent.area == area:
                names = ", ".join(f"`{test.removeprefix('tests/').split('::')[0]}`" for test in intent.tests)
                text += f"| {intent.what} | {intent.theirs} | {words[intent]} | {names} |\n"
    return text


def main() -> None:
    """Run and write."""
    words = argparse.ArgumentParser()
    words.add_argument("--out", type=Path, help="outcomes as JSON; tests that passed are not run again")
    words.add_argument("--page", type=Path, help="write the page of docs")
    given = words.parse_args()
    known = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    wanted = sorted({test for intent in INTENTS for test in intent.tests if set(_of(known, test)) - {"passed"}})
    files = dict.fromkeys(test.split("::")[0] for test in wanted)
    for file in files:
        ran = Outcomes()
        own = [test for test in wanted if test.startswith(file)]
        pytest.main(["-q", "-p", "no:cacheprovider", "--tb=line", "--rootdir", str(ROOT), *own], plugins=[ran])
        known |= ran.of
        if given.out:
            given.out.write_text(json.dumps(known, indent=1))
    if given.page:
        given.page.write_text(page(known))
    found = [held(known, intent) for intent in INTENTS if intent.tests]
    print(f"{found.count('passed')} of {len(found)} intents with a test pass, {len(INTENTS) - len(found)} have none")
    sys.exit(found.count("passed") != len(found))


if __name__ == "__main__":
    main()
