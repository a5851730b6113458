"""Steps as their libraries' users write them, with one line above them, end as on one device; `make corpus` has all."""

from __future__ import annotations

import pytest

from tests.corpus.table import CASES, built, measured, run

CHEAP = [
    ("nnx_train_step", "PipeshardParallel"),
    ("equinox_cnn_with_functions_and_strings", "DataParallel"),
    ("linen_train_state", "Zero2Parallel"),
    ("haiku_mnist", "DataParallel"),
    ("jax_keyword_batch", "Zero3Parallel"),
    ("jax_static_arguments", "PipeshardParallel"),
    ("jax_rate_in_the_batch", "DataParallel"),
    ("jax_epochs_by_fori_loop", "PipeshardParallel"),
    ("jax_private_gradients_by_vmap", "Zero3Parallel"),
    ("generator_and_discriminator", "Zero2Parallel"),
    ("linen_decoding_with_a_cache", "DataParallel"),
    ("jax_solved_by_odeint", "ShardParallel"),
    ("jax_momentum_contrast_with_a_queue", "DataParallel"),
    ("jax_tasks_with_batches_of_their_own", "DataParallel"),
    ("equinox_denoiser_in_u_form", "PipeshardParallel"),
    ("linen_scanned_decoder_with_saved_names_and_token_weights", "DataParallel"),
    ("jax_pairs_of_answers_behind_each_other", "DataParallel"),
    ("jax_step_for_pmap_with_a_named_axis", "Zero2Parallel"),
    ("jax_operator_in_frequencies_with_complex_weights", "Zero3Parallel"),
    ("equinox_flash_attention_masked_decay_and_injected_rates", "Zero2Parallel"),
    ("jax_two_of_four_experts_by_ragged_products_with_balance_and_z_loss", "DataParallel"),
    ("jax_words_of_a_shared_table_with_its_own_gradient_in_a_shard_map", "DataParallel"),
    ("haiku_experts_that_choose_their_words", "PipeshardParallel"),
    ("jax_hazards_of_those_still_at_risk", "DataParallel"),
    ("jax_samples_remembered_in_a_bank_by_number", "PipeshardParallel"),
    ("jax_labelled_and_unlabelled_samples_with_a_threshold_and_a_slow_teacher", "PipeshardParallel"),
]


@pytest.mark.parametrize(("name", "method"), CHEAP)
def test_a_step_of_the_corpus_runs_as_on_one_device(name: str, method: str) -> None:
    case = built(name, wide=False)
    expected = run(case, case.jit(case.step))
    row = measured(name, method, expected, 1e-5, wide=False)
    assert row["outcome"] == "runs", row


def test_the_corpus_is_wide() -> None:
    assert len(CASES) >= 80
