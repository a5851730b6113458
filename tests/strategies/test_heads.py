"""Head-wise attention: what ranks exchange, which weights they all hold, and what the sum of their gradients costs."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.errors import UnsupportedError
from meshwright.estimate.rules.legality import row_problems
from meshwright.ops.layers import layer_work
from meshwright.runtime.plan_method import check_runs
from meshwright.specs.operators import Linear
from meshwright.specs.row import PlanRow
from meshwright.specs.row_text import parse_row
from meshwright.strategies import TENSORS
from tests.estimate.cases import DENSE, case, memory, part
from tests.strategies.columns import columns

HEADS, ONE = TENSORS["heads"], TENSORS["1d"]
WORK = layer_work(DENSE.last_layer(), DENSE.hidden, "flash")
MATRICES = {op.name: op for op in WORK.ops if isinstance(op, Linear)}


def received(strategy: str, tp: int, phase: str) -> float:
    """Elements that a rank receives for the two projections around attention."""
    given = columns(tp=tp, sp=True, tensor=strategy)
    share = (tp - 1) / tp
    locals_ = [TENSORS[strategy].linear(MATRICES[name], given, 1.0) for name in ("qkv", "attention out")]
    return sum(
        np.asarray(call.payload_bytes).item() * share for one in locals_ for call in one.calls if call.phase == phase
    )


@pytest.mark.parametrize("tp", [2, 4])
def test_heads_move_instead_of_tokens(tp: int) -> None:
    """(t-1)/t^2 T (2 q + 2 kv) each way, against 2 (t-1)/t T h of gathers and sums forward."""
    attention, tokens = DENSE.last_layer().attention, 4096
    exchanged = (tp - 1) / tp**2 * tokens * (2 * attention.query_width + 2 * attention.kv_width)
    assert received("heads", tp, "forward") == received("heads", tp, "backward") == pytest.approx(exchanged)
    assert received("1d", tp, "forward") == pytest.approx(2 * (tp - 1) / tp * tokens * DENSE.hidden)


def test_weights_of_attention_are_whole_and_others_cut() -> None:
    given = columns(tp=4, sp=True, tensor="heads")
    for name, op in MATRICES.items():
        local = HEADS.linear(op, given, 2.0)
        held = np.asarray(local.parameters).item()
        whole = name in ("qkv", "attention out")
        assert held == pytest.approx(op.parameters if whole else op.parameters / 4)
        assert np.asarray(local.replicated).item() == (held if whole else 0)


def test_one_rank_is_the_plain_layer() -> None:
    for op in MATRICES.values():
        mine, plain = (strategy.linear(op, columns(tp=1, sp=True), 2.0) for strategy in (HEADS, ONE))
        for name in ("m", "n", "k", "parameters", "replicated"):
            assert np.all(np.asarray(getattr(mine, name)) == np.asarray(getattr(plain, name)))
        assert not any(np.any(call.payload_bytes) for call in mine.calls)


def test_gradients_of_whole_weights_are_summed_over_tensor_ranks() -> None:
    """Where one data rank sums nothing, the sum over tensor ranks is all there is; shards of it with ZeRO are less."""
    alone, one = (case(DENSE, "4xH100", tp=4, gbs=4, tensor=name).estimate() for name in ("heads", "1d"))
    assert part(one, "dp") == 0 < part(alone, "dp")
    assert memory(alone.stages[0], "weights") > memory(one.stages[0], "weights")


def test_plans_name_it_and_ask_for_sequence_parallelism() -> None:
    row = parse_row("tp4-heads.dp2.mbs1", devices=8, global_batch=4, schedules=())
    assert (row.tensor, row.format()) == ("heads", "tp4-heads.dp2.mbs1.gbs4")
    assert not row_problems(row, DENSE, 4096, 8)
    without = parse_row("tp4-heads.dp2.mbs1.nosp", devices=8, global_batch=4, schedules=())
    assert "sp" in {problem.field for problem in row_problems(without, DENSE, 4096, 8)}


def test_the_runtime_refuses_it() -> None:
    with pytest.raises(UnsupportedError, match="heads does not run here"):
        check_runs(PlanRow(tp=4, tensor="heads"))
