"""SUMMA on a grid: what a product receives, what a rank holds, and which plans are legal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.estimate.rules.legality import row_problems
from meshwright.specs.operators import CoreAttention, Linear
from meshwright.specs.row_text import parse_row
from meshwright.specs.strategy import TensorNamed
from meshwright.strategies import TENSORS
from meshwright.strategies.context import shard_attention
from tests.estimate.cases import DENSE, MIXED, case, memory
from tests.strategies.columns import columns

TWO = TENSORS["2d"]
GEMM = Linear(name="up", module="mlp", split="column", inputs=((1, 64),), outputs=((1, 256),), gather=64)


def received(q: int, phase: str, rows: int = 64) -> float:
    """Elements that a rank receives for one product in a direction."""
    local = TWO.linear(GEMM, columns(tp=q * q, sp=True, seq_len=rows, tensor="2d"), 1.0)
    payloads = [np.asarray(call.payload_bytes).item() for call in local.calls if call.phase == phase]
    return sum(payload * (q - 1) / q for payload in payloads)


@pytest.mark.parametrize(("q", "forward", "backward"), [(2, 5120, 10240), (4, 3840, 7680), (8, 2240, 4480)])
def test_blocks_received(q: int, forward: float, backward: float) -> None:
    """(q-1)/q^2 (MK + KN) forward and twice that backward, counted on M = K = 64, N = 256."""
    assert received(q, "forward") == forward
    assert received(q, "backward") == backward


def test_a_rank_computes_and_holds_its_share() -> None:
    local = TWO.linear(GEMM, columns(tp=16, sp=True, seq_len=64, tensor="2d"), 2.0)
    whole = 64 * 64 * 256
    assert float((np.asarray(local.m) * local.n * local.k * local.groups).item()) == whole / 16
    assert float(np.asarray(local.parameters).item()) == 64 * 256 / 16


def test_attention_is_local() -> None:
    """Rows of the grid share sequences, columns share heads; nothing is sent."""
    op = CoreAttention(
        name="core", module="core_attn", heads=8, kv_heads=4, head_dim=64, value_dim=64, causal=True, window=None
    )
    local = shard_attention(op, columns(tp=4, sp=True, mbs=2, tensor="2d"), 1e6, 2.0, materialised=False)
    assert (float(local.batch[0]), float(local.heads[0]), float(local.kv_heads[0])) == (1, 4, 2)
    assert not any(np.any(call.payload_bytes) for call in local.calls)


def test_plans_name_it_and_are_checked() -> None:
    row = parse_row("tp4-2d.dp2.mbs2", devices=8, global_batch=4, schedules=())
    assert (row.tensor, row.tp, row.format()) == ("2d", 4, "tp2d2.dp2.mbs2.gbs4")
    assert row.strategy().tensor == TensorNamed(name="2d", degree=4)
    assert not row_problems(row, DENSE, 4096, 8)
    wrong = replace(row, mbs=1, tp=2, dp=4)
    fields = [problem.field for problem in row_problems(wrong, DENSE, 4096, 8)]
    assert fields == ["tp"]
    assert {p.field for p in row_problems(replace(row, mbs=1, gbs=2), DENSE, 4096, 8)} == {"mbs"}
    assert "tensor" in {p.field for p in row_problems(row, MIXED, 4096, 8)}
    (unknown,) = row_problems(replace(row, tensor="2f"), DENSE, 4096, 8)
    assert "'2f'" in unknown.what


def test_activations_and_weights_are_shared_by_the_whole_grid() -> None:
    """As 1D with sequence parallelism, which cuts everything by tp too; traffic differs."""
    one, two = (case(DENSE, "4xH100", tp=4, mbs=2, gbs=4, tensor=name).estimate() for name in ("1d", "2d"))
    for kind in ("weights", "activations"):
        assert memory(two.stages[0], kind) == pytest.approx(memory(one.stages[0], kind), rel=0.02)
    assert dict(two.breakdown_s)["tp"] != dict(one.breakdown_s)["tp"]
