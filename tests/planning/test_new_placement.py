"""SmartMoE's switch: experts that change ranks, the seconds they take, the steps that repay them."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright as mw
from meshwright.planning.new_placement import NewPlacement, new_placement
from meshwright.specs.job import Job

COUNTS = "800,400,200,200,100,100,100,100"
"""Of mixtral's eight experts: on two ranks in blocks 1,600 and 400 tokens."""


def placement(load: str, gpus: str = "2x1xA100-80", plan: str = "ep2.dp2.z1.mbs1.gbs8.epbal") -> NewPlacement:
    job = mw.estimate("mixtral-8x7b", plan, gpus=gpus, seq_len=1024, expert_load=load)[0].job
    assert isinstance(job, Job)
    return new_placement(job, job.plan.strategies[0])


def test_the_experts_that_change_ranks_move_with_weights_and_states(tmp_path: Path) -> None:
    counted = tmp_path / "loads.csv"
    counted.write_text(COUNTS + "\n")
    found = placement(str(counted))
    # 800 and all 100s on the first rank, the others on the second: three come from the first, four go there.
    assert (found.moved, found.experts) == (32 * 6, 32 * 8)
    each = 3 * 4096 * 14336 * (2 + 12)
    # At the rate that the fabric of these nodes reaches, 18.75 of 25 GB/s.
    assert found.moving_s == pytest.approx(32 * 3 * each / 18.75e9, rel=0.01)
    # A node of eight takes them over NVLink.
    assert placement(str(counted), "1x2xA100-80").moving_s < found.moving_s / 5


def test_nothing_is_repaid_where_all_experts_have_the_same_load() -> None:
    assert placement("zipf:0").pays_after is None
    skewed = placement("zipf:1.2")
    assert skewed.pays_after == 1 + int(skewed.moving_s / skewed.saved_s)
    shown = mw.estimate(
        "mixtral-8x7b", "ep2.dp2.z1.mbs1.gbs8.epbal", gpus="2x1xA100-80", seq_len=1024, expert_load="zipf:1.2"
    )
    assert any("change ranks" in text and "repaid in" in text for text in shown[0].identities())
