"""Expert parallelism: who holds experts, how many tokens reach them and how many bytes carry them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.estimate.rules.legality import row_problems
from meshwright.kernels.exchange import Routing
from meshwright.library.models import spec
from meshwright.ops.layers import layer_work
from meshwright.specs import PlanRow
from meshwright.specs.dispatchers import dispatcher_code
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.operators import Exchange, Linear
from meshwright.strategies.base import Call
from meshwright.strategies.columns import StrategyColumns
from meshwright.strategies.expert import exchange_calls, shard_experts
from tests.strategies.columns import columns


def experts(name: str) -> tuple[Linear, Linear, MoeMlp]:
    model = spec(name)
    mlp = model.last_layer().mlp
    assert isinstance(mlp, MoeMlp)
    up, down = (
        op for op in layer_work(model.last_layer(), model.hidden, "flash").ops if isinstance(op, Linear) and op.experts
    )
    return up, down, mlp


def exchanged(how: StrategyColumns, *, width: int, top_k: int, element: float) -> dict[tuple[str, str, str], Call]:
    found = {}
    for direction in ("dispatch", "combine"):
        op = Exchange(name=direction, module="moe", width=width, direction=direction)
        for call in exchange_calls(op, how, Routing(copies=top_k), element):
            found[direction, call.phase, call.group] = call
    return found


def payload(call: Call) -> float:
    return float(np.asarray(call.payload_bytes)[0])


def test_bytes_of_dispatch_and_combine() -> None:
    """4096 tokens of width 7168 to 8 experts: 0.235 GB in 8 bits, 0.470 GB in 16, before the rank's own share."""
    for element, gigabytes in ((1.0, 0.235), (2.0, 0.470)):
        calls = exchanged(columns(ep=64), width=7168, top_k=8, element=element)
        for direction in ("dispatch", "combine"):
            for phase in ("forward", "backward"):
                assert payload(calls[direction, phase, "ep"]) / 1e9 == pytest.approx(gigabytes, rel=2e-3)
                assert payload(calls[direction, phase, "etp"]) == 0


def test_capacity_gives_every_expert_its_slots() -> None:
    """T = 4096, E = 64, k = 2, factor 1: ceil(T k / E) = 128 tokens per expert."""
    op = Linear(name="up", module="moe", inputs=((1, 8),), outputs=((16, 1),), split="expert-column", experts=64)
    for ep in (1, 8, 64):
        local = shard_experts(op, columns(ep=ep, capacity=1.0), 2)
        per_source = float(np.asarray(local.m)[0]) / ep
        assert per_source == 128
        assert float(np.asarray(local.groups)[0]) == 64 / ep
    wide = shard_experts(op, columns(ep=8, capacity=1.25, imbalance=3.0), 2)
    assert float(np.asarray(wide.m)[0]) == 8 * 160


def test_imbalance_fills_the_fullest_rank() -> None:
    op, _, mlp = experts("mixtral-8x7b")
    even, skewed = (shard_experts(op, columns(ep=8, imbalance=load), mlp.top_k) for load in (1.0, 1.5))
    assert np.asarray(skewed.m) == 1.5 * np.asarray(even.m)
    assert skewed.parameters == even.parameters


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "qwen3-235b-a22b", "gpt-oss-120b"])
def test_experts_are_split_by_ep_and_etp_and_nothing_else(name: str) -> None:
    up, down, mlp = experts(name)
    hidden = spec(name).hidden

    def held(**how: object) -> float:
        both = (shard_experts(op, columns(**how), mlp.top_k) for op in (up, down))
        return sum(float(np.asarray(local.parameters)[0]) for local in both)

    whole = mlp.experts * mlp.expert_parameters(hidden)
    assert held() == held(tp=8, sp=True) == held(p2p=4) == whole
    assert held(ep=4) == whole / 4
    biases = mlp.experts * hidden if mlp.bias else 0  # a row's bias is on each of its ranks
    assert held(etp=2) == (whole - biases) / 2 + biases
    assert held(ep=4, etp=2, tp=8, sp=True) == held(etp=2) / 4


@given(
    tp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    ep=st.sampled_from([1, 2, 4, 8]),
    etp=st.sampled_from([1, 2]),
    mbs=st.integers(1, 3),
)
def test_experts_compute_every_token_copy_once(tp: int, cp: int, ep: int, etp: int, mbs: int) -> None:
    """FLOP of all ranks of a stage = tokens x k x 2 x weights of one expert, whatever the folding."""
    up, _, mlp = experts("mixtral-8x7b")
    how = columns(tp=tp, sp=True, p2p=cp, ep=ep, etp=etp, mbs=mbs)
    local = shard_experts(up, how, mlp.top_k)
    flop = 2 * np.asarray(local.m) * local.n * local.k * local.groups
    ranks = tp * cp
    whole = mbs * 4096 * mlp.top_k * 2 * 4096 * 2 * 14336
    assert float(flop[0]) * ranks == pytest.approx(whole, rel=1e-12)


def test_expert_tensor_ranks_gather_before_and_scatter_behind() -> None:
    calls = exchanged(columns(ep=4, etp=2), width=4096, top_k=2, element=2.0)
    kinds = {(direction, phase): calls[direction, phase, "etp"].kind for direction, phase, _ in calls}
    assert kinds == {
        ("dispatch", "forward"): "all_gather",
        ("combine", "forward"): "reduce_scatter",
        ("dispatch", "backward"): "reduce_scatter",
        ("combine", "backward"): "all_gather",
    }
    crossing = payload(calls["dispatch", "forward", "ep"])
    assert crossing == 4096 * 2 * 4096 * 2
    assert payload(calls["dispatch", "forward", "etp"]) == 2 * crossing


def test_chunks_leave_one_piece_exposed() -> None:
    for chunks, exposed in ((1, 1.0), (4, 0.25)):
        calls = exchanged(columns(ep=4, chunks=chunks), width=4096, top_k=2, element=2.0)
        assert float(np.asarray(calls["dispatch", "forward", "ep"].head_share)[0]) == exposed


def test_folding() -> None:
    """TP 4, CP 2, DP 8, PP 4 on 256 devices: experts may span all 64 ranks of a stage, one copy of each."""
    model = spec("qwen3-235b-a22b")
    folded = PlanRow(tp=4, cp=(("p2p", 2),), pp=4, ep=64, dp=8, mbs=1, gbs=256)
    assert folded.devices == 256
    assert row_problems(folded, model, 4096, 256) == ()
    strategy = folded.strategy()
    assert strategy.devices // (strategy.expert.ep * strategy.expert.etp) == 1
    assert [p.field for p in row_problems(PlanRow(tp=4, pp=4, ep=128, dp=16, gbs=256), model, 4096, 256)] == ["ep"]


def test_dispatchers_of_rows() -> None:
    """One row sends all copies, one a copy into each domain, one gathers the tokens of all ranks."""
    ways = ("alltoall", "deduplicated", "allgather")
    rows = replace(columns(ep=[8, 8, 8]), dispatcher=np.array([dispatcher_code(way) for way in ways]))
    op = Exchange(name="dispatch", module="moe", width=1024, direction="dispatch")
    calls = exchange_calls(op, rows, Routing(copies=2), 2.0)
    sent, _, gathered = (call for call in calls if call.phase == "forward")
    whole = 4096 * 1024 * 2
    assert (sent.kind, np.asarray(sent.payload_bytes).tolist()) == ("all_to_all", [2.0 * whole, 2.0 * whole, 0.0])
    assert sent.once is not None
    assert sent.once.tolist() == [False, True, False]
    assert (gathered.kind, np.asarray(gathered.payload_bytes).tolist()) == ("all_gather", [0.0, 0.0, 8.0 * whole])
    alone = rows.take(np.array([0]))
    assert [call.once for call in exchange_calls(op, alone, Routing(copies=2), 2.0)] == [None] * 4


@pytest.mark.parametrize("load", [1.0, 64.0])
def test_tensor_ranks_of_experts_gather_what_came_once(load: float) -> None:
    """Of 8 copies for 2 ranks nearly all tokens enter both, so a quarter of the copies; never more than all tokens."""
    ways = ("alltoall", "deduplicated")
    codes = np.array([dispatcher_code(way) for way in ways])
    rows = replace(columns(ep=[2, 2], etp=4, imbalance=load), dispatcher=codes)
    op = Exchange(name="dispatch", module="moe", width=1024, direction="dispatch")
    routing = Routing(copies=8)
    gathered = next(call for call in exchange_calls(op, rows, routing, 2.0) if call.group == "etp")
    every, once = np.asarray(gathered.payload_bytes)
    whole = 2 * 4 * 4096 * 1024 * 2.0
    assert once == pytest.approx(min(every * float(np.asarray(routing.entered(2.0))) / 8, whole))
    assert once < 0.26 * every
