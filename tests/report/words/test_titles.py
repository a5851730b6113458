"""Plans are told apart by their titles, and a stage's strategy is said whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

import meshwright as mw
from meshwright import plan
from meshwright.report.words.comparison import distinct_titles
from meshwright.report.words.titles import strategy_text
from meshwright.specs.job import Job
from meshwright.specs.row_text import parse_row
from meshwright.specs.strategy import DataParallel, LayerStrategy, Recompute


@pytest.mark.parametrize(
    ("line", "devices", "said"),
    [
        ("tp8.dp4.z1.rc-full.tpov", 32, "tp8 dp4 z1 rc-full tpov"),
        ("cp4.ep8.epdedup.epov-wgrad.dp2.z1", 8, "cp4 ep8 epdedup epov-wgrad dp2 z1"),
        ("cp4-a2a2xp2p2.dp2.fsdp.off-o", 8, "cp4-a2a2xp2p2 dp2 fsdp off-o"),
        ("tp8.dp1.z1", 8, "tp8"),  # nothing is sharded over one rank
        ("dp1", 1, "unsharded"),
    ],
)
def test_a_strategy_is_said_in_the_words_of_a_line(line: str, devices: int, said: str) -> None:
    row = parse_row(line, devices=devices, global_batch=64, schedules=("1f1b",))
    assert strategy_text(row.strategy(recomputed=False)) == said


def test_plans_on_the_same_groups_say_what_differs() -> None:
    found = plan("llama-3.1-8b", gpus="8xH100,8xA100-80")
    titles = [entry["title"] for entry in found.to_dict()["plans"]]
    assert len(set(titles)) == len(titles)
    assert titles[0] == found.best.title
    assert {one.partition(" (")[0] for one in titles} == {one.title for one in found}


def test_states_over_all_ranks_are_said_behind_what_a_pipeline_does_itself() -> None:
    two = LayerStrategy(data=DataParallel(shard=2, zero=2, across=6))
    one = LayerStrategy(data=DataParallel(zero=1, across=6), recompute=Recompute(kind="full"))
    assert strategy_text(two) == "dp2 z2, states over all 6 ranks"
    assert strategy_text(one) == "z1 rc-full, states over all 6 ranks"


def test_one_chunk_is_said_as_one() -> None:
    def job(vpp: int) -> Job:
        found = mw.estimate("gpt2", f"pp2.vpp{vpp}.dp1.mbs1.gbs8", gpus="2xH100").best.job
        assert isinstance(found, Job)
        return replace(found, name=None)

    several, one = distinct_titles([(job(2), "2xH100"), (job(1), "2xH100")])
    assert several == "2xH100"
    assert "1 chunk," in one
