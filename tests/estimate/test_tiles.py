"""Loss and feed-forward parts in tiles, and sequences of millions of tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

import meshwright as mw
from meshwright.errors import InfeasibleError
from meshwright.estimate.layout import expand
from meshwright.estimate.needed_flop import model_flop_per_token
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.library import models
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import Workload

LLAMA = models.resolve("llama-3.1-8b")
SEQ = 131_072


def step(row: PlanRow, seq: int = SEQ, gpus: str = "8xH100", **work: object) -> StepEstimate:
    workload = Workload(seq_len=seq, global_batch=row.gbs, **work)
    return estimate_plan(expand(row, LLAMA, seq), LLAMA, resolve_gpus(gpus), workload)


def test_logits_in_tiles_are_never_whole() -> None:
    """fp32 logits of 131072 x 128256 / 8 are 8.4 GB; a sixteenth of them lives, and a gradient of 131072 x 4096 / 8."""
    row = PlanRow(tp=8, recompute="full")
    whole, tiled = step(row), step(row, loss_tiles=16)
    saved = dict(whole.stages[0].memory_bytes)["activations"] - dict(tiled.stages[0].memory_bytes)["activations"]
    assert saved == pytest.approx(SEQ * 128_256 / 8 * 4 * 15 / 16 - SEQ * 4096 * 2 / 8, rel=0.02)
    assert tiled.peak_memory_bytes < whole.peak_memory_bytes - 0.9 * saved
    assert whole.step_time_s <= tiled.step_time_s < 1.02 * whole.step_time_s


def test_feed_forward_in_tiles_is_made_again_and_not_kept() -> None:
    """28672 + 14336 elements a token and layer are dropped; backward makes two thirds of a token's weights again."""
    row = PlanRow(tp=8)
    whole, tiled = step(row), step(row, mlp_tiles=16)
    saved = dict(whole.stages[0].memory_bytes)["activations"] - dict(tiled.stages[0].memory_bytes)["activations"]
    assert saved == pytest.approx(32 * SEQ * 3 * 14_336 * 2 / 8, rel=0.05)
    again = dict(tiled.breakdown_s)["recompute"]
    assert dict(whole.breakdown_s)["recompute"] == 0.0
    assert again > 32 * 2 * 3 * 4096 * 14_336 * SEQ / (8 * 989e12)
    assert tiled.hfu > tiled.mfu


def test_tiles_of_layers_made_again_are_made_twice() -> None:
    row = PlanRow(tp=8, recompute="full")
    again = [dict(step(row, mlp_tiles=tiles).breakdown_s)["recompute"] for tiles in (1, 8)]
    assert 1.2 * again[0] < again[1] < 1.7 * again[0]


def test_more_tiles_take_longer_and_less_memory() -> None:
    found = [step(PlanRow(tp=8, recompute="full"), loss_tiles=tiles) for tiles in (2, 8, 64)]
    assert found[0].step_time_s < found[1].step_time_s < found[2].step_time_s
    assert found[0].peak_memory_bytes > found[1].peak_memory_bytes > found[2].peak_memory_bytes


@pytest.mark.parametrize(("seq", "cp"), [(2**20, 8), (2**22, 32)])
def test_millions_of_tokens_take_the_flop_of_their_pairs(seq: int, cp: int) -> None:
    row = PlanRow(tp=8, cp=(("p2p", cp),), recompute="full")
    found = step(row, seq, f"{8 * cp}xH100", loss_tiles=8)
    flop = model_flop_per_token(LLAMA, seq, training=True)
    assert flop == pytest.approx(6 * LLAMA.active_parameters + 6 * 32 * 4096 * seq, rel=1e-3)
    assert found.mfu == pytest.approx(flop * seq / (found.step_time_s * 8 * cp * 989.4e12), rel=0.01)
    assert 0.3 < found.mfu < 0.6


def test_the_planner_takes_tiles_and_says_so() -> None:
    found = mw.plan(
        "llama-3.1-8b",
        gpus="8xH100",
        seq_len=SEQ,
        global_batch=8,
        loss_tiles=16,
        mlp_tiles=4,
        pin=("tp=8", "pp=1"),
    )
    assert found.to_dict()["inputs"]["workload"]["loss_tiles"] == 16
    assert [one.value for one in found.assumptions if one.name == "tiles"]
    again = mw.estimate(plan=found.best)
    assert again.best.estimate == found.best.estimate
    more = mw.estimate(plan=replace(found.best.job, workload=replace(found.best.job.workload, loss_tiles=1)))
    assert more.best.estimate.peak_memory_bytes > found.best.estimate.peak_memory_bytes


def test_tiles_are_a_repair_of_long_sequences() -> None:
    """600 K tokens on 8 H100: 8 x 75 K x 128256 fp32 logits are too much, a nineteenth of them is not.

    Liger's kernel cuts 75 K tokens of this model so; trainers have a switch for it.
    """
    asked = {"gpus": "8xH100", "seq_len": 600_000, "global_batch": 8, "pin": ("pp=1", "tp=1")}
    for software in ("megatron-core", None):
        with pytest.raises(InfeasibleError) as caught:
            mw.plan("llama-3.1-8b", software=software, **asked)
        assert "--loss-tiles 19: logits and loss in 19 pieces" in str(caught.value)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_one_tile_of_a_feed_forward_part_is_live_and_halves_with_twice_as_many(recompute: str) -> None:
    """c / n bytes beside what tiles do not change: differences of 2, 4, 8 and 16 tiles halve."""
    row = PlanRow(tp=8, recompute=recompute)
    found = [step(row, mlp_tiles=tiles, loss_tiles=512).stages[0] for tiles in (2, 4, 8, 16)]
    live = [sum(dict(stage.memory_bytes).values()) for stage in found]
    gains = [more - fewer for more, fewer in pairwise(live)]
    assert gains[0] > 0
    assert gains[1:] == pytest.approx([gains[0] / 2, gains[0] / 4], rel=1e-6)
