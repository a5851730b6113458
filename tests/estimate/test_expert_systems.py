"""MoE systems on the loads where their papers have them win, and where they must lose; the vectors of their models."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import MeshwrightError
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.kernels.expert_load import counted_shares, rank_shares
from meshwright.library import models
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.expert_load import ExpertLoad
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.model import LayerRun
from meshwright.specs.row_text import parse_row
from meshwright.specs.workload import Workload

LITE, MIXTRAL = models.spec("deepseek-v2-lite"), models.spec("mixtral-8x7b")
PLAIN = "ep32.dp32.z1.mbs1.gbs128"


@cache
def priced(plan: str, zipf: float | None = None, *, seq_len: int = 4096, gpus: str = "4x8xA100-80") -> StepEstimate:
    """DeepSeek-V2-Lite under a plan."""
    where = resolve_gpus(gpus)
    row = parse_row(plan, devices=where.devices, global_batch=128, schedules=())
    load = None if zipf is None else ExpertLoad(zipf=zipf).of(LITE)
    workload = Workload(seq_len=seq_len, global_batch=row.gbs, expert_load=load)
    return estimate_plan(expand(row, LITE, seq_len), LITE, where, workload)


def step_s(plan: str, zipf: float | None = None, *, seq_len: int = 4096, gpus: str = "4x8xA100-80") -> float:
    """Its step."""
    return priced(plan, zipf, seq_len=seq_len, gpus=gpus).step_time_s


def test_shadows_win_on_skewed_loads_and_lose_on_even_ones() -> None:
    """FasterMoE: copies of hot experts cost a broadcast, which an even load does not pay back."""
    even, skewed = ([step_s(PLAIN + how, zipf) for how in ("", ".epshadow1", ".epshadow4")] for zipf in (0.0, 1.2))
    assert even == sorted(even)
    assert skewed == sorted(skewed, reverse=True)
    assert skewed[0] > 2 * skewed[-1]


def test_experts_move_where_tokens_outweigh_them() -> None:
    """Janus: long sequences bring more tokens than there are weights, short ones fewer."""
    assert step_s(f"{PLAIN}.epmove", seq_len=16384) < 0.8 * step_s(PLAIN, seq_len=16384)
    assert step_s(f"{PLAIN}.epmove", seq_len=512) > 2 * step_s(PLAIN, seq_len=512)


def test_placement_by_load_wins_where_experts_share_ranks_unevenly() -> None:
    """SmartMoE: nothing to gain where all are alike, or where each rank has one expert."""
    few = "ep8.dp32.z1.mbs1.gbs128"
    assert step_s(f"{few}.epbal", 0.6) < 0.95 * step_s(few, 0.6)
    assert step_s(f"{few}.epbal", 0.0) == pytest.approx(step_s(few, 0.0), rel=0.01)
    alone = "ep64.dp64.z1.mbs1.gbs128"
    both = [step_s(alone + how, 0.6, gpus="8x8xA100-80") for how in ("", ".epbal")]
    assert both[0] == pytest.approx(both[1], rel=1e-3)


def test_stashed_exchanges_are_not_repeated_and_take_memory() -> None:
    """DeepSpeed-TED: recomputation repeats a forward's exchanges, a third of all, unless they are kept."""
    again, stashed = (priced(f"{PLAIN}.rc-full{how}") for how in ("", ".epstash"))
    exchanged = [dict(one.breakdown_s)["ep"] for one in (again, stashed)]
    assert exchanged[1] == pytest.approx(2 / 3 * exchanged[0], rel=0.01)
    kept = [dict(one.stages[0].memory_bytes)["activations"] for one in (again, stashed)]
    # Six copies of 4,096 tokens of width 2,048 arrive and come back, in 26 layers with experts, two bytes each.
    assert kept[1] - kept[0] == pytest.approx(2 * 6 * 4096 * 2048 * 26 * 2, rel=0.01)


def test_layers_of_a_pyramid_are_priced_each_with_its_own_experts() -> None:
    """DeepSpeed-MoE: half of the layers like those of one model, half like those of another, and so is the step."""
    layer = MIXTRAL.last_layer()
    assert isinstance(layer.mlp, MoeMlp)
    residual = replace(layer.mlp, top_k=1, ffn_hidden=2048, shared_ffn_hidden=2048, residual=True)
    few, many = (replace(layer, mlp=replace(residual, experts=experts)) for experts in (8, 16))
    where, row = resolve_gpus("8xH100"), parse_row("ep8.dp8.z1.mbs1.gbs32", devices=8, global_batch=32, schedules=())
    found = []
    for halves in ((few, few), (few, many), (many, many)):
        model = replace(MIXTRAL, runs=tuple(LayerRun(layers=(half,), repeats=8) for half in halves))
        load = ExpertLoad(zipf=1.0).of(model)
        workload = Workload(seq_len=4096, global_batch=32, expert_load=load)
        found.append(estimate_plan(expand(row, model, 4096), model, where, workload))
    steps, held = [one.step_time_s for one in found], [dict(one.stages[0].memory_bytes) for one in found]
    assert steps[1] == pytest.approx((steps[0] + steps[2]) / 2, rel=1e-6)
    assert held[0]["weights"] < held[1]["weights"]
    for part in ("weights", "activations"):
        assert held[1][part] == pytest.approx((held[0][part] + held[2][part]) / 2, rel=1e-6)


def test_chunks_hide_exchanges_beside_the_experts() -> None:
    plain, chunks = (priced(PLAIN + how) for how in ("", ".epc2"))
    assert dict(chunks.breakdown_s)["ep"] < 0.8 * dict(plain.breakdown_s)["ep"]


@pytest.mark.parametrize(("tokens", "hidden", "ratio"), [(16384, 1024, 2.0), (16384, 4096, 0.5)])
def test_ratio_of_token_bytes_to_weight_bytes_says_what_moves(tokens: int, hidden: int, ratio: float) -> None:
    """Janus, per machine: four exchanges of T k h over two passes of 8 h^2 per expert are T k / (4 n h E_l)."""
    machines, gpus, top_k, local = 4, 8, 2, 1
    moved = 4 * gpus * tokens * top_k * hidden * (machines - 1) / machines
    weights = 2 * (machines - 1) * gpus * local * 8 * hidden**2
    assert moved / weights == pytest.approx(ratio)


def test_two_shadows_are_fastest_in_the_model_of_fastermoe() -> None:
    """3 products and 4 exchanges of the fullest rank, and a broadcast per shadow."""
    hidden, alpha, element, bandwidth, rate = 2048, 2, 4, 6.25e9, 11.5e12
    tokens = (8192.0, 4096.0, 1024.0, 512.0)
    shares = counted_shares((tokens,))
    found = []
    for shadows in range(4):
        fullest = rank_shares(shares, 4, shadowed=shadows)[0].max() * sum(tokens)
        products = 3 * 4 * alpha * hidden**2 * fullest / rate
        sent = 4 * hidden * element * fullest / bandwidth
        found.append(products + sent + shadows * 2 * alpha * hidden**2 * element / bandwidth)
    assert [round(seconds * 1e3, 2) for seconds in found] == [114.66, 68.07, 35.81, 39.38]
    assert int(np.argmin(found)) == 2


@settings(max_examples=12, deadline=None)
@given(counts=st.lists(st.integers(1, 50), min_size=8, max_size=8), ep=st.sampled_from([2, 4, 8]))
def test_a_counted_load_is_the_number_of_its_fullest_rank(counts: list[int], ep: int) -> None:
    """One number for all layers is a load whose fullest rank has it; even counts cost what no load costs."""
    where, row = resolve_gpus("8xH100"), parse_row(f"ep{ep}.dp8.z3.gbs8", devices=8, global_batch=8, schedules=())
    plan = expand(row, MIXTRAL, 4096)

    def seconds(**load: object) -> float:
        return estimate_plan(plan, MIXTRAL, where, Workload(seq_len=4096, global_batch=8, **load)).step_time_s

    fullest = float(np.array(counts).reshape(ep, -1).sum(axis=1).max() * ep / sum(counts))
    load = ExpertLoad(counts=(tuple(map(float, counts)),))
    assert seconds(expert_load=load) == pytest.approx(seconds(expert_imbalance=fullest))
    assert seconds(expert_load=ExpertLoad(counts=((7.0,) * 8,))) == seconds()


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ("ep8.dp8.epshadow2", "shadowed"),
        ("ep8.dp8.epbal", "placed_by_load"),
        ("ep8.dp8.epdtd", "drop_duplicates"),
        ("ep8.dp8.epstash", "stash_collectives"),
        ("ep8.dp8.epmove.epov-shared", "overlap"),
    ],
)
def test_settings_without_effect_are_refused_with_a_remedy(plan: str, field: str) -> None:
    row = parse_row(f"{plan}.z3.gbs8", devices=8, global_batch=8, schedules=())
    with pytest.raises(MeshwrightError) as caught:
        estimate_plan(
            expand(row, MIXTRAL, 4096), MIXTRAL, resolve_gpus("8xH100"), Workload(seq_len=4096, global_batch=8)
        )
    (problem,) = [one for one in caught.value.problems if one.field.endswith(field)]
    assert problem.why
    assert problem.fix


def test_gathered_tokens_leave_a_load_that_placement_levels() -> None:
    load = ExpertLoad(counts=((40.0, 30.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),))
    job = Workload(seq_len=4096, global_batch=8, expert_load=load)

    def step_s(ways: str) -> float:
        row = parse_row(f"ep4.{ways}.dp8.z1.gbs8", devices=8, global_batch=8, schedules=())
        return estimate_plan(expand(row, MIXTRAL, 4096), MIXTRAL, resolve_gpus("8xH100"), job).step_time_s

    assert step_s("epag.epbal") < 0.95 * step_s("epag")
    with pytest.raises(MeshwrightError, match="all ranks get all tokens"):
        step_s("epag.epshadow2")


def test_exchanges_before_gradients_pay_where_few_micro_batches_hide_them() -> None:
    """Lina: as flows of equal right, gradients of the last backward slow its exchanges; inside a node they do not."""
    few = "ep32.dp32.z1.mbs4.gbs128"
    shared, first = priced(few), priced(f"{few}.epfirst")
    assert first.step_time_s < 0.995 * shared.step_time_s
    assert dict(first.breakdown_s)["dp"] < dict(shared.breakdown_s)["dp"]
    inside = "ep8.dp32.z1.mbs4.gbs128"
    assert step_s(f"{inside}.epfirst") == step_s(inside)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("ep32.dp32.z3.mbs1", "in no order with exchanges"),
        ("ep32.dp32.z1.mbs1.epmove", "tokens are not exchanged"),
        ("dp32.z1.mbs1", "nothing is exchanged"),
    ],
)
def test_an_order_of_exchanges_and_gradients_that_means_nothing_is_refused(plan: str, words: str) -> None:
    with pytest.raises(MeshwrightError, match=words):
        step_s(f"{plan}.epfirst")
