"""Context parallelism: bytes per step of a ring, of Ulysses' exchanges and of gathers; attention shared evenly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.estimate.rules.legality import row_problems
from meshwright.kernels.compute import score_pairs
from meshwright.library.models import spec
from meshwright.ops.layers import layer_work
from meshwright.specs import Attention, DenseMlp, LayerSpec
from meshwright.specs.operators import CoreAttention, StreamTokens
from meshwright.specs.row import PlanRow
from meshwright.strategies import CONTEXTS
from meshwright.strategies.base import Call, LocalAttention
from meshwright.strategies.context import shard_attention
from tests.strategies.columns import columns


def core(heads: int = 64, kv_heads: int = 64, head_dim: int = 128) -> CoreAttention:
    layer = LayerSpec(
        attention=Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim),
        mlp=DenseMlp(ffn_hidden=1, gated=False),
    )
    (found,) = (op for op in layer_work(layer, heads * head_dim, "flash").ops if isinstance(op, CoreAttention))
    return found


def share(op: CoreAttention, seq_len: int, *, materialised: bool = False, **how: int) -> LocalAttention:
    pairs = float(score_pairs(seq_len, seq_len))
    return shard_attention(op, columns(seq_len=seq_len, **how), pairs, 2.0, materialised=materialised)


def calls(local: LocalAttention, group: str, phase: str) -> list[Call]:
    return [call for call in local.calls if (call.group, call.phase) == (group, phase)]


def payload(call: Call) -> float:
    return float(np.asarray(call.payload_bytes)[0])


def test_ulysses_volume() -> None:
    """4 (P-1)/P^2 b s h e = 0.4698 GB for 64 heads, s = 65536, h = 8192 and 8 ranks."""
    (exchange,) = calls(share(core(), 65536, a2a=8), "cp_a2a", "forward")
    assert payload(exchange) * 7 / 8 / 1e9 == pytest.approx(0.4698, rel=1e-3)
    (back,) = calls(share(core(), 65536, a2a=8), "cp_a2a", "backward")
    assert payload(back) == payload(exchange)


def test_ulysses_sends_fewer_bytes_for_fewer_key_value_heads() -> None:
    (full,) = calls(share(core(), 65536, a2a=8), "cp_a2a", "forward")
    (grouped,) = calls(share(core(kv_heads=8), 65536, a2a=8), "cp_a2a", "forward")
    assert payload(grouped) / payload(full) == (2 + 2 * 8 / 64) / 4


def test_ring_volume() -> None:
    """Llama-3's 8 key-value heads at s = 131072 on 8 ranks: 67.1 MB a step, 470 MB forward."""
    op = core(heads=32, kv_heads=8)
    local = share(op, 131072, p2p=8)
    (ring,) = calls(local, "cp_p2p", "forward")
    assert payload(ring) / 1e6 == pytest.approx(67.1, rel=1e-3)
    assert payload(ring) * float(np.asarray(ring.repeats)[0]) / 1e6 == pytest.approx(470, rel=1e-3)
    (back,) = calls(local, "cp_p2p", "backward")
    assert payload(back) == 2 * payload(ring)


def test_gathered_keys_and_values() -> None:
    local = share(core(heads=32, kv_heads=8), 131072, ag=8)
    (gather,) = calls(local, "cp_ag", "forward")
    (scatter,) = calls(local, "cp_ag", "backward")
    assert (gather.kind, scatter.kind) == ("all_gather", "reduce_scatter")
    assert payload(gather) == payload(scatter) == 2 * 131072 * 1024 * 2
    assert gather.beside is None


def test_keys_and_values_repeated_for_all_heads() -> None:
    """32 heads instead of 8 forward; in backward they again, and their gradients in 32 bits."""
    op, how = core(heads=32, kv_heads=8), columns(seq_len=131072, ag=8)
    local = shard_attention(op, how, 1.0, 2.0, materialised=False, repeated=True)
    (gather,) = calls(local, "cp_ag", "forward")
    (scatter,) = calls(local, "cp_ag", "backward")
    (once,) = calls(share(op, 131072, ag=8), "cp_ag", "forward")
    assert payload(gather) == 4 * payload(once)
    assert payload(scatter) == 3 * payload(gather)


def test_heads_that_are_fewer_than_ranks_go_to_each_that_needs_them() -> None:
    """8 key-value heads over 16 ranks: each of the 16 receives one, so that 16 are sent and not 8."""
    (few,) = calls(share(core(kv_heads=8), 65536, a2a=8), "cp_a2a", "forward")
    (many,) = calls(share(core(kv_heads=8), 65536, a2a=16), "cp_a2a", "forward")
    heads = core().heads
    assert payload(many) / payload(few) == pytest.approx((2 * heads + 2 * 16) / (2 * heads + 2 * 8) / 2)


def test_hierarchy_is_an_exchange_inside_and_a_ring_outside() -> None:
    local = share(core(heads=32, kv_heads=8), 131072, a2a=2, p2p=4)
    (ring,) = calls(local, "cp_p2p", "forward")
    # Blocks of two ranks' tokens, of half the heads.
    assert payload(ring) == 2 * (131072 / 4) * (1024 / 2) * 2
    assert float(np.asarray(ring.repeats)[0]) == 3
    (exchange,) = calls(local, "cp_a2a", "forward")
    assert payload(exchange) == (131072 / 8) * (2 * 4096 + 2 * 1024) * 2


levels = st.sampled_from([1, 2, 4])


@given(tp=levels, a2a=levels, p2p=levels, ag=levels, mbs=st.integers(1, 3), materialised=st.booleans())
def test_ranks_share_the_scores(tp: int, a2a: int, p2p: int, ag: int, mbs: int, materialised: bool) -> None:
    op = core(heads=64, kv_heads=16)
    local = share(op, 8192, tp=tp, a2a=a2a, p2p=p2p, ag=ag, mbs=mbs, materialised=materialised)
    one = share(op, 8192, mbs=mbs, materialised=materialised)

    def scores(part: LocalAttention) -> float:
        return float((np.asarray(part.batch) * np.asarray(part.heads) * np.asarray(part.pairs))[0])

    assert scores(local) * tp * a2a * p2p * ag == pytest.approx(scores(one), rel=1e-12)
    assert float(np.asarray(local.kv_heads)[0]) == max(16 / tp / a2a, 1)
    sent = {call.group for call in local.calls if payload(call) > 0}
    assert sent == {name for name, degree in (("cp_a2a", a2a), ("cp_p2p", p2p), ("cp_ag", ag)) if degree > 1}


def test_latent_attention_sends_its_expanded_heads() -> None:
    model = spec("deepseek-v3")
    (op,) = (o for o in layer_work(model.last_layer(), model.hidden, "flash").ops if isinstance(o, CoreAttention))
    (ring,) = calls(share(op, 32768, p2p=4), "cp_p2p", "forward")
    assert payload(ring) == 32768 / 4 * 128 * (192 + 128) * 2


def test_stripes_cut_a_sequence_that_halves_do_not() -> None:
    """1,004 tokens on 4 ranks: 251 each, which have no halves; a stripe is sent as a ring sends its block."""
    dense, seq_len = spec("llama-3.1-8b"), 1004
    legal = {kind: not row_problems(PlanRow(cp=((kind, 4),), dp=2, gbs=2), dense, seq_len, 8) for kind in CONTEXTS}
    assert legal == {"a2a": True, "p2p": False, "ag": False, "striped": True, "burst": False, "tree": False}
    for phase in ("forward", "backward"):
        (ring,) = calls(share(core(), 1024, p2p=4), "cp_p2p", phase)
        (stripes,) = calls(share(core(), 1024, striped=4), "cp_striped", phase)
        assert payload(ring) == payload(stripes)
    last = share(core(), 1024, striped=4)
    assert float(np.asarray(last.pairs)[0]) == 4 * 256 * 257 / 2


@pytest.mark.parametrize(("kv_heads", "times"), [(64, 3 / 4), (32, 3 / 2), (8, 6.0)])
def test_burst_returns_three_quarters_of_a_ring_where_heads_share_no_keys(kv_heads: int, times: float) -> None:
    """3 N d + 2 N against 4 N d (Sun et al. 2024, section 3); heads that share keys send these and not queries."""
    op = core(kv_heads=kv_heads)
    (ring,) = calls(share(op, 65536, p2p=8), "cp_p2p", "backward")
    (burst,) = calls(share(op, 65536, burst=8), "cp_burst", "backward")
    two_numbers = 2 * 4 / (128 * 2) / 4 * (64 / kv_heads)
    assert payload(burst) / payload(ring) == pytest.approx(times + two_numbers)
    forward = [calls(share(op, 65536, **{kind: 8}), f"cp_{kind}", "forward")[0] for kind in ("p2p", "burst")]
    assert payload(forward[0]) == payload(forward[1])


def test_gathered_queries_are_less_than_keys_where_few_see_many() -> None:
    """512 tokens of text that attend to 8,192 of an image, and a sequence that attends to itself."""
    own = core(heads=32, kv_heads=32)
    across = replace(own, keys=StreamTokens(sequences=1.0, length=8192, whole=False), causal=False)

    def received(op: CoreAttention, kind: str) -> float:
        """Bytes of both passes into one of 8 ranks."""
        local = shard_attention(op, columns(seq_len=512, **{kind: 8}), 1.0, 2.0, materialised=False)
        return sum(payload(call) * (2 if call.kind == "all_reduce" else 1) * 7 / 8 for call in local.calls)

    assert received(across, "tree") < received(across, "ag") / 4
    assert received(own, "tree") > received(own, "ag")
