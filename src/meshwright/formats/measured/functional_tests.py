"""What the names of Megatron-LM's functional tests say of their runs, whose rows leave it open.

Source: model_config.yaml of the tests in tests/functional_tests/test_cases of NVIDIA/Megatron-LM (d98e8a64, 2026-08).
"""

from __future__ import annotations

import re

_NAME = re.compile(r"(gpt\d?_mcore_\w+)")


def local_layers(framework: str, notes: str) -> bool:
    """Whether a test runs Megatron's own layers, which write scores to memory.

    The names of tests carry `te` where they run on Transformer Engine: `gpt3_mcore_te_tp2_pp2_...`.

    Args:
        framework: the framework as the row states it: `Megatron-LM (mcore) CI dev`.
        notes: the notes of the row, which begin with the name of the test.
    """
    name = _test(framework, notes)
    return bool(name) and not re.search(r"_te(_|$)", name.replace("uninstall_te", ""))


def pinned_workspaces(framework: str, notes: str) -> bool:
    """Whether a test sets CUBLAS_WORKSPACE_CONFIG=:4096:8, as --deterministic-mode asks: all but those of rings, of
    fused losses and of checkpoints laid out anew.

    Args:
        framework: the framework as the row states it.
        notes: the notes of the row, which begin with the name of the test.
    """
    name = _test(framework, notes)
    return bool(name) and not re.search(r"_te_tp\d_pp\d_(\w+_)?cp2|cross_entropy_loss_fusion|_reshard_", name)


def optimizer_instances(framework: str, notes: str) -> int:
    """Groups of data ranks that hold the optimizer's states once each: --num-distributed-optimizer-instances.

    Args:
        framework: the framework as the row states it.
        notes: the notes of the row, which begin with the name of the test.
    """
    return 2 if "multi_dist_optimizer_instances" in _test(framework, notes) else 1


def _test(framework: str, notes: str) -> str:
    """The test's name, empty for other runs."""
    name = _NAME.match(notes.lower())
    return name[1] if name is not None and " ci" in framework.lower() else ""
