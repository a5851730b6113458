"""Plans for uneven experts: what a search does about hot ones, and what a target leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright as mw
from meshwright.errors import InputError

BATCH = 64
JOB = {"model": "deepseek-v2-lite", "gpus": "2x8xH100", "global_batch": BATCH, "top": 1}


def best_s(**how: object) -> tuple[float, str]:
    """Step and name of the best plan."""
    found = mw.plan(**(JOB | how))[0]
    return found.estimate.step_time_s, str(found.name)


def test_a_skewed_load_is_met_by_what_is_quickest_and_never_by_less() -> None:
    free_s, free = best_s(expert_load="zipf:1")
    kept_s, kept = best_s(expert_load="zipf:1", pin="hot_experts=kept")
    assert any(token in free for token in ("epbal", "epshadow", "epmove"))
    assert not any(token in kept for token in ("epbal", "epshadow"))
    assert free_s <= kept_s
    assert best_s()[0] <= free_s


def test_a_balanced_load_is_no_load() -> None:
    assert best_s(expert_load="balanced") == best_s()


def test_a_target_keeps_to_what_it_can_say() -> None:
    _, name = best_s(expert_load="zipf:1", target="megatron")
    assert not any(token in name for token in ("epbal", "epshadow", "epmove"))


def test_a_load_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loads.csv"
    path.write_text("8,4,2,2\n")
    with pytest.raises(InputError, match="counts 4 experts"):
        mw.plan("mixtral-8x7b", gpus="8xH100", expert_load=path)
    with pytest.raises(InputError, match="has no experts"):
        mw.plan("llama-3-8b", gpus="8xH100", expert_load="zipf:1")


def test_a_plan_file_keeps_its_load(tmp_path: Path) -> None:
    plans = mw.plan("mixtral-8x7b", gpus="16xH100", expert_load="zipf:0.8", global_batch=BATCH, top=1)
    path = tmp_path / "plan.json"
    plans.save(path)
    again = mw.estimate(plan=path)
    assert again[0].estimate.step_time_s == plans[0].estimate.step_time_s
    even = mw.estimate(plan=path, expert_load="zipf:0")
    assert even[0].estimate.step_time_s < again[0].estimate.step_time_s
