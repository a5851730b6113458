"""Weights that travel round a ring of ranks: turns, bytes, memory, where they win and where they are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.result import StepPrice
from meshwright.specs.row_of import strategy_row
from meshwright.specs.row_text import parse_row
from meshwright.strategies.weight_ring import WeightRing, turns


def estimate(plan: str, gpus: str = "8xH100", model: str = "llama-3.2-1b", seq: int = 16384) -> StepPrice:
    (found,) = mw.estimate(model, gpus=gpus, plan=plan, seq_len=seq).plans
    return found.estimate


@given(ranks=st.integers(2, 6), micro_batches=st.integers(1, 5), layer_s=st.floats(0.1, 2), each=st.integers(1, 3))
def test_a_step_takes_the_turns_of_a_simulation_in_which_all_wait_for_the_slowest(
    ranks: int, micro_batches: int, layer_s: float, each: int
) -> None:
    """A third of a layer's seconds are forward; rank r is r turns late, at one group forward and one backward."""
    forward_s, backward_s = each * layer_s / 3, 2 * each * layer_s / 3
    whole_s = 0.0
    for turn in range((micro_batches + 2) * ranks - 1):
        forward = [0 <= turn - rank < ranks * micro_batches for rank in range(ranks)]
        backward = [0 <= turn - rank - ranks < ranks * micro_batches for rank in range(ranks)]
        whole_s += max(f * forward_s + b * backward_s for f, b in zip(forward, backward, strict=True))
    own_s = micro_batches * ranks * each * layer_s
    none = np.zeros(1, dtype=bool)
    found_s = WeightRing().waits_s(
        np.array([[layer_s / 3]]),
        np.array([[2 * layer_s / 3]]),
        np.array([float(ranks * each)]),
        none,
        np.array([float(ranks)]),
        micro_batches,
    )
    assert own_s + found_s.item() == pytest.approx(whole_s)
    if micro_batches > 1:
        assert whole_s == pytest.approx(turns(ranks, micro_batches) * each * layer_s)


@given(layers=st.integers(2, 12), ranks=st.integers(2, 5), head_s=st.floats(0, 4))
def test_the_slowest_group_is_one_that_whole_layers_can_make(layers: int, ranks: int, head_s: float) -> None:
    if layers < ranks:
        return
    item_s, count = np.array([[1.0, head_s]]), np.array([float(layers), 1.0])
    edges = np.array([False, True])
    waited_s = WeightRing().waits_s(item_s / 2, item_s / 2, count, edges, np.array([float(ranks)]), 2).item()
    group_s = (waited_s + 2 * (layers + head_s)) / turns(ranks, 2)
    # As many layers as that on each rank, fewer where the head is.
    assert (ranks - 1) * int(group_s + 1e-6) + max(int(group_s - head_s + 1e-6), 0) >= layers
    # None does with less.
    fewer_s = [*map(float, range(1, layers + 1)), *(head_s + each for each in range(layers + 1))]
    enough = [one for one in fewer_s if one >= head_s and (ranks - 1) * int(one) + int(one - head_s + 1e-9) >= layers]
    assert group_s == pytest.approx(min(enough), abs=1e-6)
    assert group_s >= (layers + head_s) / ranks - 1e-9


def test_what_crosses_does_not_grow_with_the_tokens() -> None:
    """A pipeline of activations is quicker for short sequences, one of weights where their compute hides weights."""

    def both(seq: int) -> list[StepPrice]:
        return [estimate(f"{plan}.mbs1.gbs64.rc-full", seq=seq) for plan in ("pp8.dp1.z1", "dp8.weipipe")]

    (pipeline, ring), (long_pipeline, long_ring) = both(1024), both(16384)
    assert ring.step_time_s > 1.5 * pipeline.step_time_s
    assert long_ring.step_time_s < long_pipeline.step_time_s
    assert dict(long_ring.breakdown_s)["dp"] < dict(ring.breakdown_s)["dp"]


def test_groups_on_their_way_are_on_the_device_beside_what_zero_3_keeps() -> None:
    kept, ring = (dict(estimate(f"dp8.{word}.mbs1.gbs64").stages[0].memory_bytes) for word in ("z3", "weipipe"))
    assert [ring[name] for name in ("weights", "gradients", "optimizer", "activations")] == [
        kept[name] for name in ("weights", "gradients", "optimizer", "activations")
    ]
    # Three groups of weights in 2 bytes and one of gradients in 4, each an eighth of 1.24 B parameters and the table;
    # less the two gathered tables and one gradient of zero 3.
    table, whole = 128_256 * 2048, 1.2358e9
    more = (3 * 2 + 4) * (whole / 8 + table) - (2 * 2 + 4) * table
    assert ring["transient"] - kept["transient"] == pytest.approx(more, rel=0.01)


def test_plans_say_it_in_one_word() -> None:
    row = parse_row("dp8.weipipe.mbs1.gbs64", devices=8, global_batch=64, schedules=())
    assert row.format().startswith("dp8.weipipe.")
    assert row.data().passing == "ring"
    said = strategy_row(row.strategy())
    assert said is not None
    assert said.sharding == "weipipe"


@pytest.mark.parametrize(
    ("plan", "what"),
    [
        ("pp2.dp4.weipipe", "weipipe with pp2"),
        ("cp2.dp4.weipipe", "weipipe with cp2"),
        ("dp1.tp8.weipipe", "weipipe on one data rank"),
        ("dp8.weipipe.hpz4", "weipipe with hpz4"),
        ("dp8.weipipe.off-wo", "weipipe with weights or gradients on the host"),
    ],
)
def test_what_has_no_meaning_beside_a_ring_is_refused(plan: str, what: str) -> None:
    with pytest.raises((InputError, UnsupportedError)) as raised:
        mw.estimate("llama-3.2-1b", gpus="8xH100", plan=f"{plan}.mbs1.gbs64")
    assert any(problem.what == what for problem in raised.value.problems)


@pytest.mark.parametrize(("plan", "fix"), [("dp8.etp4", "etp1, or fsdp"), ("tp2.dp4", "etp2")])
def test_experts_that_other_ranks_hold_are_refused(plan: str, fix: str) -> None:
    with pytest.raises(InputError) as raised:
        mw.estimate("mixtral-8x7b", gpus="8xH200", plan=f"{plan}.weipipe.mbs1.gbs64")
    assert [problem.fix for problem in raised.value.problems if problem.what.startswith("weipipe with etp")] == [fix]


def test_more_ranks_than_layers_are_refused_with_fewer() -> None:
    with pytest.raises(InputError) as raised:
        mw.estimate("llama-3.2-1b", gpus="32xH100", plan="dp32.weipipe.mbs1.gbs64")
    (problem,) = raised.value.problems
    assert problem.what == "weipipe of 32 ranks with 16 layers"
    assert problem.fix == "use dp16.tp2, or fsdp"


def test_a_search_that_names_it_finds_the_best_ring() -> None:
    found = mw.plan("llama-3.2-1b", gpus="4xH100", global_batch=16, seq_len=4096, pin={"sharding": "weipipe"})
    best = found.plans[0]
    assert "weipipe" in best.row.format()
    others = [
        estimate(f"tp{tp}.dp{4 // tp}.weipipe.mbs{mbs}.gbs16{words}", "4xH100", seq=4096)
        for tp in (1, 2)
        for mbs in (1, 2, 4)
        for words in ("", ".rc-full", ".tpov" if tp > 1 else ".rc-sel")
    ]
    assert best.estimate.step_time_s <= min(one.step_time_s for one in others if one.fits == "yes") * (1 + 1e-9)
    experts = mw.plan("mixtral-8x7b", gpus="16xH200", global_batch=64, seq_len=4096, pin={"sharding": "weipipe"})
    used = [strategy for one in experts.plans for strategy in one.plan.strategies]
    assert {(one.expert.ep, one.expert.etp // one.tp) for one in used} == {(1, 1)}
    opened = mw.plan("llama-3.2-1b", gpus="4xH100", global_batch=16, seq_len=4096, methods="sharding").plans[0]
    assert opened.estimate.step_time_s <= best.estimate.step_time_s
