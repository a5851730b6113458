"""What the names of Megatron-LM's functional tests say."""

from __future__ import annotations

import pytest

from meshwright.formats.measured import functional_tests

CI = "Megatron-LM (mcore) CI dev"


@pytest.mark.parametrize(
    ("framework", "notes", "local"),
    [
        ("Megatron-LM CI", "gpt3_mcore_tp2_pp2_resume", True),
        ("Megatron-LM CI", "gpt3_mcore_te_tp2_pp2_resume", False),
        ("Megatron-LM CI", "gpt3_mcore_tp2_uninstall_te", True),
        ("Megatron-LM CI", "bert_mcore_tp2", False),
        ("Megatron-LM", "gpt3_mcore_tp2_pp2_resume", False),
    ],
)
def test_own_layers_are_those_of_functional_tests_without_transformer_engine(
    framework: str, notes: str, *, local: bool
) -> None:
    assert functional_tests.local_layers(framework, notes) == local


@pytest.mark.parametrize(
    ("notes", "instances", "pinned"),
    [
        ("gpt3_mcore_te_tp2_pp1_multi_dist_optimizer_instances; vocab", 2, True),
        ("gpt3_mcore_te_tp4_pp1_dist_optimizer_overlap_grad_reduce", 1, True),
        ("gpt3_mcore_cp2_pp2_ep2_te_4experts2parallel_nondeterministic", 1, True),
        ("gpt3_mcore_te_tp2_pp2_cp2; attention-backend=flash", 1, False),
        ("gpt3_mcore_te_tp2_pp2_resume_torch_dist_cp2_nondeterministic", 1, False),
        ("gpt3_mcore_te_tp2_pp2_resume_torch_dist_cross_entropy_loss_fusion", 1, False),
        ("gpt3_mcore_te_tp4_pp2_resume_torch_dist_reshard_8x1xNone", 1, False),
        ("num-distributed-optimizer-instances are not stated", 1, False),
    ],
)
def test_what_the_names_of_functional_tests_say(notes: str, instances: int, pinned: bool) -> None:
    assert functional_tests.optimizer_instances(CI, notes) == instances
    assert functional_tests.pinned_workspaces(CI, notes) == pinned
    assert not functional_tests.pinned_workspaces("Megatron-LM", notes)
