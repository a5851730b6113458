"""Layers of experts beside tensor ranks: steps end where one device ends, and send what is priced."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import jax
import pytest

from meshwright.compiler.grid import Ranks
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.model_grid import model_grid
from meshwright.runtime.parity import parity_of, run_alone, run_parallel
from meshwright.runtime.step_collectives import step_collectives
from meshwright.runtime.training.run import Training
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec
from meshwright.specs.row_text import parse_row
from meshwright.zoo.experts import CAPACITY_FACTOR
from meshwright.zoo.splits import block_split
from meshwright.zoo.tiny import TINY
from tests.runtime.priced_collectives import context_bytes, expert_bytes, tensor_bytes

ROUTED = MoeMlp(experts=4, top_k=2, ffn_hidden=64, gated=True)
SHARED = replace(ROUTED, shared_ffn_hidden=256, shared_gate=True)
RESIDUAL = MoeMlp(experts=4, top_k=1, ffn_hidden=64, gated=False, bias=True, shared_ffn_hidden=64, residual=True)


def of(mlp: MoeMlp, hidden: int) -> ModelSpec:
    layer = LayerSpec(attention=Attention(heads=4, kv_heads=4, head_dim=hidden // 4), mlp=mlp)
    return replace(TINY["moe-tiny"], hidden=hidden, vocab=64, runs=(LayerRun(layers=(layer,), repeats=1),))


def training(plan: str, mlp: MoeMlp, *, hidden: int = 16, seq_len: int = 16) -> Training:
    row = parse_row(plan, devices=8, global_batch=0, schedules=())
    row = replace(row, gbs=row.gbs or row.dp * row.mbs)
    return Training(spec=of(mlp, hidden), row=row, stage_layers=(1,), seq_len=seq_len)


def sent(one: Training) -> dict[str, Any]:
    compiled: Any = one.step(jax.devices()).lower(one.initial(), one.batch(0))
    return step_collectives(compiled.runtime)


@pytest.mark.parametrize("mlp", [ROUTED, SHARED], ids=["routed", "shared"])
@pytest.mark.parametrize(
    "plan",
    [
        "tp2.dp2.ep2.mbs2",
        "tp4.dp1.ep4.mbs2",
        "tp4.dp1.etp2.ep2.mbs2",
        "tp2.nosp.dp2.ep2.epdtd.mbs2",
        "tp2.dp4.ep2.mbs2",
    ],
)
def test_ranks_send_what_is_priced(plan: str, mlp: MoeMlp) -> None:
    """Embedding, attention, router, experts, shared expert and head; sums of a few numbers a token are beside."""
    one = training(plan, mlp, hidden=256, seq_len=128)
    assert one.spec is not None
    found = sent(one)
    for program, phase in (("F0", "forward"), ("B0", "backward")):
        priced = tensor_bytes(one.spec, one.row, one.seq_len, phase, 4.0)
        priced += expert_bytes(one.spec, one.row, one.seq_len, phase, 4.0, CAPACITY_FACTOR)
        assert found[program].sent_bytes == pytest.approx(priced, rel=0.01)


@pytest.mark.parametrize("plan", ["dp4.ep4.mbs1", "dp8.ep4.mbs1", "dp8.ep2.mbs1"])
def test_experts_on_data_ranks_alone_send_what_is_priced(plan: str) -> None:
    """Of the small model itself: every rank gives its own tokens places, nothing is gathered for that."""
    row = parse_row(plan, devices=8, global_batch=0, schedules=())
    spec = TINY["moe-tiny"]
    one = Training(spec=spec, row=replace(row, gbs=row.dp), stage_layers=(spec.num_layers,), seq_len=64)
    found = sent(one)
    forward, backward = (
        expert_bytes(spec, row, one.seq_len, phase, 4.0, CAPACITY_FACTOR) for phase in ("forward", "backward")
    )
    assert found["F0"].sent_bytes == pytest.approx(forward, rel=0.001)
    assert found["B0"].sent_bytes == pytest.approx(backward + summed_bytes(one), rel=0.001)


def summed_bytes(one: Training) -> float:
    """Bytes out of one rank for gradients: of experts over all ranks that hold them, of the rest over data and context
    ranks."""
    row, grid = one.row, model_grid(one.row, one.plain_model(), one.seq_len)
    assert grid is not None
    sent = 0.0
    for path, leaf in jax.tree_util.tree_leaves_with_path(one.initial()["weights"]):
        ranks = block_split(grid, jax.tree_util.keystr(path, simple=True, separator="."))
        held = leaf.nbytes / prod(grid.size(grid.along(kind)) for kind in ranks.values())
        alike = row.devices // (row.ep * row.etp) if Ranks.EXPERT in ranks.values() else row.dp * row.cp_degree
        sent += 2 * (alike - 1) / alike * held
    return sent


@pytest.mark.parametrize(
    "plan", ["tp2.dp2.mbs1", "tp4.dp1.mbs1", "tp2.cp2.dp2.mbs1", "cp4-ag.dp2.ep2.mbs1", "tp2.cp2.dp2.ep4.mbs1"]
)
def test_gradients_are_summed_once_a_step_over_all_ranks_that_hold_a_weight(plan: str) -> None:
    """Of two micro-batches; those of norms and routers are summed over tensor ranks with every one."""
    one = training(plan, ROUTED, hidden=256, seq_len=128)
    one = replace(one, row=replace(one.row, gbs=2 * one.row.gbs))
    assert one.spec is not None
    found = sent(one)
    assert found["gradients0"].sent_bytes == pytest.approx(summed_bytes(one), rel=0.01)
    for programs, phase in ((("F0",), "forward"), (("B0", "B0+"), "backward")):
        priced = sum(part(one.spec, one.row, one.seq_len, phase, 4.0) for part in (tensor_bytes, context_bytes))
        priced += expert_bytes(one.spec, one.row, one.seq_len, phase, 4.0, CAPACITY_FACTOR)
        if phase == "backward":
            priced += 2 * (one.row.tp - 1) / one.row.tp * (3 + ROUTED.experts) * one.spec.hidden * 4.0
        assert sum(found[name].sent_bytes for name in programs) == pytest.approx(2 * priced, rel=0.01)


@pytest.mark.parametrize(
    ("plan", "mlp"),
    [
        ("tp2.dp2.mbs2.gbs8", ROUTED),
        ("tp2.dp2.cp2.z1.mbs1.gbs8", SHARED),
        ("tp2.dp2.z2.mbs1.gbs8", ROUTED),
        ("cp4.dp2.ep2.z3.mbs1.gbs4", RESIDUAL),
        ("tp2.dp4.z3.ep2.mbs1.gbs8", SHARED),
        ("tp2.dp2.cp2.ep8.mbs1.gbs4.rc-full", replace(ROUTED, experts=8)),
        ("tp4.dp2.etp2.ep2.mbs1.gbs4.rc-sel-moe_act", RESIDUAL),
        ("tp2.nosp.dp2.epdtd.mbs2.gbs4", SHARED),
        ("tp2.nosp.dp2.etp2.ep2.epdtd.z1.mbs2.gbs8", ROUTED),
        ("tp2.dp4.ep4.epdedup.mbs1.gbs4", ROUTED),
        ("tp2.dp2.ep2.epag.mbs2.gbs4", SHARED),
        ("tp2.dp4.ep4.ep2h.epc2.mbs1.gbs4", ROUTED),
        ("tp2.dp2.ep2.epmove.mbs2.gbs4", ROUTED),
        ("tp2.dp2.ep2.epshadow1.mbs2.gbs4", ROUTED),
        ("tp2.dp2.ep2.mbs2.gbs8.tpov-halves", SHARED),
        ("dp4.ep4.mbs2.gbs16", ROUTED),
        ("dp4.ep2.z3.mbs2.gbs16.rc-full", ROUTED),
        ("dp4.etp2.ep2.z2.mbs2.gbs8", RESIDUAL),
        ("dp4.ep4.epdedup.mbs2.gbs16", SHARED),
        ("dp4.ep2.epshadow1.mbs2.gbs8", ROUTED),
    ],
)
def test_steps_equal_one_device(plan: str, mlp: MoeMlp) -> None:
    """Ranks give places of experts to their own tokens, and so does one device."""
    with jax_precision("fp64"):
        one = training(plan, mlp)
        state = one.initial()
        parity = parity_of(run_parallel(one, jax.devices(), 3, state), run_alone(one, 3, state), "fp64", None)
    assert parity.holds
    assert parity.tolerance <= 1e-9
