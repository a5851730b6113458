"""Optimizer states and weights by kind of parameter, in whole estimates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layers.item_costs import item_costs
from meshwright.estimate.layers.items import NONE, Item
from meshwright.estimate.layers.states import DECOMPOSITION_SHARE, shared_update_s, tensor_updates_s
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.rows import strategy_columns
from meshwright.fields.job import JobFields
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.planning.pricing import Pricer
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.specs import ModelSpec, PlanRow, Workload
from meshwright.specs.optimizers import optimizer_named
from meshwright.specs.optimizers.base import Matrix
from meshwright.specs.optimizers.kfac import Kfac
from meshwright.specs.precision import precision, stated
from meshwright.specs.strategy import DataParallel, ExpertParallel, LayerStrategy, Offload
from meshwright.units import GIB
from tests.estimate.cases import DENSE, MIXED, TIED
from tests.strategies.columns import sharding


def estimated(
    model: ModelSpec, row: PlanRow, optimizer: str = "adam", gpus: str = "8xH100", recipe: str = "bf16", **given: str
) -> StepEstimate:
    """A row's estimate under an optimizer."""
    chosen = stated(precision(recipe), given) if given else precision(recipe)
    workload = Workload(seq_len=2048, global_batch=row.gbs, precision=chosen, optimizer=optimizer)
    return estimate_plan(expand(row, model, 2048), model, resolve_gpus(gpus), workload)


def optimizer_bytes(estimate: StepEstimate) -> float:
    """Of the fullest stage."""
    return max(dict(stage.memory_bytes)["optimizer"] for stage in estimate.stages)


def update_s(estimate: StepEstimate) -> float:
    """Of the optimizer's step."""
    return dict(estimate.breakdown_s)["optimizer"]


ALONE = PlanRow(gbs=1)
TABLES = 2 * DENSE.vocab * DENSE.hidden
LAYERS = 12
# Matrices of one layer of DENSE: queries and output, keys with values, gate with up, down.
SHAPES = ((4096, 4096), (4096, 4096), (4096, 2048), (4096, 28672), (14336, 4096))
MATRICES = LAYERS * sum(rows * columns for rows, columns in SHAPES)
VECTORS = DENSE.parameters - MATRICES - TABLES


def test_the_model_is_made_of_the_matrices_counted_here() -> None:
    assert (2 * LAYERS + 1) * DENSE.hidden == VECTORS


def kept_on_one_device(optimizer: str) -> float:
    """States alone: the main copy taken off."""
    found = estimated(DENSE, ALONE, optimizer, gpus="1xGB300")
    return optimizer_bytes(found) - 4.0 * DENSE.parameters


def test_muon_keeps_one_momentum_of_matrices_and_two_of_the_rest() -> None:
    assert kept_on_one_device("muon") == pytest.approx(4 * MATRICES + 8 * (VECTORS + TABLES))


def test_adafactor_keeps_rows_and_columns_of_every_matrix_tables_included() -> None:
    factors = LAYERS * sum(rows + columns for rows, columns in SHAPES) + 2 * (DENSE.vocab + DENSE.hidden)
    assert kept_on_one_device("adafactor") == pytest.approx(4 * factors + 4 * VECTORS)


def test_8_bit_adam_keeps_the_embedding_in_fp32() -> None:
    table = TABLES / 2
    small = 2.03125 * (DENSE.parameters - table)
    assert kept_on_one_device("adamw-8bit") == pytest.approx(small + 8 * table)


def test_galore_keeps_a_low_rank_of_matrices_of_layers() -> None:
    low = LAYERS * sum(128 * (2 * max(shape) + min(shape)) for shape in SHAPES)
    assert kept_on_one_device("galore") == pytest.approx(4 * low + 8 * (VECTORS + TABLES))


def test_tied_tables_are_counted_once() -> None:
    found = estimated(TIED, ALONE, "adafactor", gpus="1xH100")
    positions = 4 * TIED.learned_positions * TIED.hidden
    states = optimizer_bytes(found) - 4.0 * TIED.parameters - positions
    assert 0 < states < 0.01 * TIED.parameters
    eight = optimizer_bytes(estimated(TIED, ALONE, "adamw-8bit", gpus="1xH100")) - 4.0 * TIED.parameters
    table = TIED.vocab * TIED.hidden
    assert eight == pytest.approx(2.03125 * (TIED.parameters - table) + 8 * table, rel=1e-6)


def test_states_are_shared_out_as_the_sharding_says() -> None:
    whole, shared = (
        optimizer_bytes(estimated(DENSE, row, "muon"))
        for row in (PlanRow(dp=8, gbs=8), PlanRow(dp=8, gbs=8, sharding="z1"))
    )
    assert whole == pytest.approx(8 * shared)


def test_experts_keep_states_of_their_own_shapes() -> None:
    """16 experts of 3 matrices of 2048 x 1024 in 8 layers and a prediction module, over 8 ranks."""
    row = PlanRow(dp=8, ep=8, gbs=8)
    adam, factored = (optimizer_bytes(estimated(MIXED, row, name)) for name in ("adam", "adafactor"))
    experts = 9 * 2 * (2048 * 2048 + 1024 * 2048)
    assert adam - factored > 8 * experts


def test_paged_states_leave_the_device_and_take_the_link_twice() -> None:
    row = PlanRow(dp=8, gbs=8, sharding="z1")
    here, paged = (estimated(DENSE, row, name) for name in ("adamw-8bit", "paged-adamw-8bit"))
    assert optimizer_bytes(paged) == pytest.approx(4.0 * DENSE.parameters / 8)
    moved_s = 2 * 2.03125 * DENSE.parameters / 8 / 50e9
    assert update_s(paged) - update_s(here) == pytest.approx(moved_s, rel=0.01)


@pytest.mark.parametrize("name", ["muon", "shampoo", "soap", "galore", "kfac"])
def test_updates_with_products_take_longer_than_adams(name: str) -> None:
    row = PlanRow(dp=8, gbs=8, sharding="z1")
    adam, other = (update_s(estimated(DENSE, row, one)) for one in ("adam", name))
    assert other > 1.2 * adam


def test_newton_schulz_steps_cost_what_their_flop_take_at_the_rate_of_large_products() -> None:
    """On one device: 5 x 2 (2 n m^2 + m^3) of every matrix."""
    adam, muon = (estimated(DENSE, ALONE, name, gpus="1xGB300") for name in ("adam", "muon"))
    flop = LAYERS * sum(10 * (2 * max(s) * min(s) ** 2 + min(s) ** 3) for s in SHAPES)
    taken_s = update_s(muon) - update_s(adam)
    assert 0.5 < flop / 2500e12 / taken_s < 0.95


def test_decompositions_of_shampoo_cost_what_their_flop_take_at_a_part_of_the_rate_of_fp32() -> None:
    """On one device: those of queries, output, keys, values, gate, up and down, each so many steps."""
    often, seldom = (optimizer_named(f"shampoo:every={n}") for n in (10, 1000))
    shapes = [(4096, 4096)] * 2 + [(4096, 1024)] * 2 + [(4096, 14336)] * 2 + [(14336, 4096)]
    matrices = [Matrix(rows=r, columns=c, whole_rows=r, whole_columns=float(c)) for r, c in shapes]
    flop = LAYERS * sum(float(often.decomposition_flop(m) - seldom.decomposition_flop(m)) for m in matrices)
    rate = DECOMPOSITION_SHARE * resolve_gpus("1xGB300").groups[0].device.peak("fp32")
    more_s = np.diff([update_s(estimated(DENSE, ALONE, f"shampoo:every={n}", gpus="1xGB300")) for n in (1000, 10)])
    assert flop / rate < float(more_s[0]) < 1.1 * flop / rate, "blocks of both tables come on top"


@pytest.mark.parametrize("every", [1, 100, 1000])
def test_pipefisher_takes_from_the_bubble_what_kfac_adds_to_the_step(every: int) -> None:
    row = PlanRow(pp=4, gbs=16)
    plain, filled, none = (
        estimated(DENSE, row, f"{name}:every={n}", gpus="4xH100")
        for name, n in (("kfac", every), ("pipefisher", every), ("kfac", 10**7))
    )
    bubble, aside = dict(plain.breakdown_s)["bubble"], plain.step_time_s - none.step_time_s
    assert filled.step_time_s == pytest.approx(max(plain.step_time_s - bubble, none.step_time_s), rel=0.02)
    assert (aside > bubble) == (every == 1), "all of what is done seldom fits"
    # One stage has no bubble to fill.
    alone = (estimated(DENSE, ALONE, f"{name}:every=20", gpus="1xGB300") for name in ("kfac", "pipefisher"))
    one, other = (found.step_time_s for found in alone)
    assert one == pytest.approx(other, rel=1e-12)


def test_data_ranks_sum_the_factors_of_kfac(monkeypatch: pytest.MonkeyPatch) -> None:
    def times_s() -> list[float]:
        plans = (("kfac:every=1", ""), ("kfac:every=2", ""), ("kfac:every=1", "z1"), ("kfac:every=1", "fsdp"))
        rows = [(PlanRow(dp=8, gbs=8, sharding=word or "z0"), name) for name, word in plans]
        return [estimated(DENSE, row, name).step_time_s for row, name in (*rows, (ALONE, "kfac:every=1"))]

    whole_s = times_s()
    monkeypatch.setattr(Kfac, "statistics_bytes", lambda self, matrix: 0.0)
    every, seldom, sharded, fully, alone = (a - b for a, b in zip(whole_s, times_s(), strict=True))
    assert every == pytest.approx(2 * seldom, rel=0.02)
    assert every == pytest.approx(sharded) == pytest.approx(fully)
    assert every > 0 == alone


def test_tensor_ranks_of_muon_all_update_the_whole_matrix() -> None:
    """Megatron-LM's muon_tp_mode duplicated: cutting by tensor ranks does not make the update shorter."""
    alone = update_s(estimated(DENSE, PlanRow(dp=2, gbs=2), "muon", gpus="2xGB300"))
    cut = update_s(estimated(DENSE, PlanRow(tp=2, gbs=2), "muon", gpus="2xGB300"))
    assert cut > 0.9 * alone


def test_updates_that_need_the_device_are_not_offloaded() -> None:
    row = PlanRow(dp=8, gbs=8, sharding="z1")
    plan = expand(row, DENSE, 2048)
    away = replace(plan.strategies[0], offload=Offload(optimizer=1.0))
    workload = Workload(seq_len=2048, global_batch=8, optimizer="muon")
    with pytest.raises(UnsupportedError, match="muon updates on the device"):
        estimate_plan(replace(plan, strategies=(away,)), DENSE, resolve_gpus("8xH100"), workload)


def test_weights_in_8_bits_leave_embedding_head_and_norms_in_16() -> None:
    found = estimated(DENSE, ALONE, recipe="fp8-block", gpus="1xGB300", weight_dtype="fp8")
    weights = max(dict(stage.memory_bytes)["weights"] for stage in found.stages)
    assert weights == pytest.approx((1 + 4 / 128) * MATRICES + 2 * (VECTORS + TABLES))


def test_what_was_understood_of_the_optimizer_is_shown() -> None:
    inputs = job_inputs(JobFields(model="llama-3-8b", gpus="8xH100", optimizer="galore:rank=64"))
    shown = {one.name: one.value for one in inputs.assumptions}
    assert shown["optimizer"].startswith("galore (rank 64, every 200): two moments of a projected gradient")
    usual = job_inputs(JobFields(model="llama-3-8b", gpus="8xH100"))
    assert {one.name: one.value for one in usual.assumptions}["optimizer"] == "adam"


def test_a_search_finds_what_its_plans_cost() -> None:
    """The bound and the memory that a search looks at first hold for states of matrices, too."""
    for name in ("galore", "muon"):
        found = mw.plan("llama-3-8b", gpus="2xH200", global_batch=4, optimizer=name, pin="pp=1")
        best = found.plans[0]
        again = mw.estimate("llama-3-8b", plan=best.row.format(), gpus="2xH200", global_batch=4, optimizer=name)
        assert np.isclose(again.plans[0].estimate.step_time_s, best.estimate.step_time_s)
        assert best.estimate.peak_memory_bytes < 140 * GIB


def test_first_and_last_layers_in_16_bits_take_longer_and_keep_no_8_bit_copies() -> None:
    """Two of twelve: their products at half the rate, their inputs in 2 bytes, their weights without two copies."""
    narrow = estimated(DENSE, ALONE, recipe="fp8", gpus="1xGB300")
    wide = estimated(DENSE.with_wide_ends(1, 1), ALONE, recipe="fp8", gpus="1xGB300")
    bf16 = estimated(DENSE, ALONE, gpus="1xGB300")
    compute = [dict(one.breakdown_s)["compute"] for one in (narrow, wide, bf16)]
    assert compute[0] < compute[1] < compute[2]
    weights = [dict(one.stages[0].memory_bytes)["weights"] for one in (narrow, wide)]
    assert weights[0] - weights[1] == pytest.approx(2.0 * MATRICES / LAYERS * 2)
    kept = [dict(one.stages[0].memory_bytes)["activations"] for one in (narrow, wide, bf16)]
    assert kept[0] < kept[1] < kept[2]


def test_wide_ends_are_stated_for_recipes_below_16_bits_and_some_layers() -> None:
    asked = JobFields(model="llama-3-8b", gpus="8xH100", dtype="fp8", bf16_first=1, bf16_last=2)
    found = job_inputs(asked)
    assert [layer.wide for layer in found.model.layers()].count(True) == 3
    shown = {one.name: one.value for one in found.assumptions}
    assert shown["dtype of layers"] == "3 of 32 layers compute in bf16"
    with pytest.raises(InputError, match="all layers compute in bf16"):
        job_inputs(replace(asked, dtype="bf16"))
    with pytest.raises(InputError, match="must leave some of the 32 layers"):
        job_inputs(replace(asked, bf16_first=31))


def test_variants_and_searches_leave_out_what_an_optimizer_cannot_do() -> None:
    """A row with the update on the host is not legal, and says why."""
    row = PlanRow(dp=2, gbs=2, sharding="z1", offload="o")
    workload = Workload(seq_len=2048, global_batch=2, optimizer="muon")
    tried = Pricer(DENSE, resolve_gpus("2xH100"), workload, 2).price(row)
    assert "muon updates on the device" in [problem.why for problem in tried.problems]
    with pytest.raises(InputError, match="muon updates on the device"):
        mw.plan("gpt2", gpus="2xH100", global_batch=8, optimizer="muon", pin="offload=o")


@pytest.mark.parametrize(
    ("name", "offload", "tensors"), [("z0", 0.0, 10.0), ("z1", 0.0, 2.5), ("z1", 0.5, 1.25), ("z3", 0.0, 10.0)]
)
def test_tensors_are_dealt_out_where_weights_stay_whole(name: str, offload: float, tensors: float) -> None:
    """Four ranks: a quarter each of the tensors where they share states alone, a piece of each where weights too."""
    workload = Workload(seq_len=2048, global_batch=4)
    hardware = hardware_of(resolve_gpus("4xH100").groups[0], workload)
    choice = sharding(name, 4, offload=offload)
    found = tensor_updates_s(np.array([4.0]), np.array([6.0]), choice, hardware, workload)
    assert found.tolist() == pytest.approx([tensors * hardware.software.tensor_s])
    assert not tensor_updates_s(np.array([4.0]), np.array([6.0]), choice, hardware, replace(workload, training=False))


def test_an_operator_on_grace_takes_as_much_longer_to_issue_as_an_update_of_a_tensor() -> None:
    workload = Workload(seq_len=2048, global_batch=4)
    xeon, grace = (hardware_of(resolve_gpus(f"4x{name}").groups[0], workload).software for name in ("B200", "GB200"))
    assert grace.tensor_s / xeon.tensor_s == pytest.approx(grace.operator_s / xeon.operator_s)
    assert grace.tensor_s > 2 * xeon.tensor_s


def test_parameter_tensors_of_layers_and_edges() -> None:
    """Two norms, fused queries with keys and values, output, gate with up, down; the table; the final norm and head."""
    assert tensors_of("llama-3.1-8b", LayerStrategy()) == [(6, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize(("software", "each"), [("megatron-core", 16), ("megatron-core-graphs", 16), ("torchtitan", 1)])
def test_experts_of_a_rank_have_tensors_of_their_own_where_a_framework_keeps_them_apart(
    software: str, each: int
) -> None:
    """128 experts over 8 ranks; two norms, queries with keys and values and their norms, output, and the router."""
    # Whatever it computes of other ranks' experts, and in whatever chunks, a rank updates its own.
    for expert in (ExpertParallel(ep=8), ExpertParallel(ep=8, overlap_degree=4), ExpertParallel(ep=8, shadowed=2)):
        spread = LayerStrategy(data=DataParallel(replicate=8), expert=expert)
        assert tensors_of("qwen3-30b-a3b", spread, software)[0] == (6, 2 * each)


def tensors_of(name: str, strategy: LayerStrategy, software: str = "megatron-core") -> list[tuple[float, float]]:
    """Of a layer, the embedding and the head: dense ones and those of experts."""
    workload, model = Workload(seq_len=2048, global_batch=8, software=software), spec(name)
    hardware = hardware_of(resolve_gpus("8xH100").groups[0], workload)
    items = (Item("layer", model.kinds()[0], NONE), Item("embedding"), Item("head"))
    costs = item_costs(items, strategy_columns([strategy], 1, workload), model, hardware, workload)
    return list(zip(costs.dense_tensors[0].tolist(), costs.expert_tensors[0].tolist(), strict=True))


@pytest.mark.parametrize(("name", "offload", "expected"), [("z0", 0.0, 10.0), ("z1", 0.0, 2.5), ("z1", 0.5, 1.25)])
def test_an_update_is_dealt_out_to_the_ranks_that_share_states(name: str, offload: float, expected: float) -> None:
    shared = shared_update_s(np.array([4.0]), np.array([6.0]), sharding(name, 4, offload=offload))
    assert shared.tolist() == [expected]
