"""1D tensor parallelism: what it divides, and the bytes that cross per layer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.library.models import spec
from meshwright.ops.edges import edge_work
from meshwright.ops.layers import layer_work
from meshwright.specs.operators import LayerWork, Linear, Vector
from meshwright.strategies.base import Call
from meshwright.strategies.columns import region_scale
from meshwright.strategies.tensor_1d import shard_linear, vector_calls
from tests.strategies.columns import columns

RECEIVED = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "all_to_all": 1}
"""Bytes received per rank of a ring, in units of (n - 1)/n S."""


def linears(work: LayerWork) -> dict[str, Linear]:
    return {op.name: op for op in work.ops if isinstance(op, Linear) and not op.experts}


def layer(name: str) -> LayerWork:
    model = spec(name)
    return layer_work(model.last_layer(), model.hidden, "flash")


def received(calls: list[Call], ranks: int) -> float:
    return sum(RECEIVED[call.kind] * float(np.asarray(call.payload_bytes)[0]) for call in calls) * (ranks - 1) / ranks


def layer_calls(name: str, **how: object) -> list[Call]:
    return [call for op in linears(layer(name)).values() for call in shard_linear(op, columns(**how), 2.0).calls]


@pytest.mark.parametrize(("ranks", "gigabytes"), [(4, 1.611), (16, 2.013), (64, 2.114)])
def test_volume_of_the_literature(ranks: int, gigabytes: float) -> None:
    """8 (P-1)/P b s h e per layer, at b = 8, s = 2048, h = 8192 in 16 bits."""
    calls = layer_calls("llama-3-70b", tp=ranks, mbs=8, seq_len=2048)
    assert received(calls, ranks) / 1e9 == pytest.approx(gigabytes, rel=1e-3)


@given(
    name=st.sampled_from(["llama-3-8b", "llama-3-70b", "gpt3-175b", "gemma-2-9b"]),
    tp=st.sampled_from([2, 4, 8]),
    mbs=st.integers(1, 4),
)
def test_volume_per_layer(name: str, tp: int, mbs: int) -> None:
    tensor = mbs * 4096 * spec(name).hidden * 2
    forward = [call for call in layer_calls(name, tp=tp, mbs=mbs) if call.phase == "forward"]
    backward = [call for call in layer_calls(name, tp=tp, mbs=mbs) if call.phase == "backward"]
    each = 4 * (tp - 1) / tp * tensor
    assert received(forward, tp) == pytest.approx(each)
    assert received(backward, tp) == pytest.approx(each)
    # Sequence parallelism sends the same, and gathers the input of both column products again in backward.
    sharded = layer_calls(name, tp=tp, mbs=mbs, sp=True)
    again = 2 * (tp - 1) / tp * tensor
    assert received([call for call in sharded if call.phase == "forward"], tp) == pytest.approx(each)
    assert received([call for call in sharded if call.phase == "backward"], tp) == pytest.approx(each + again)


def test_megatron_sequence_parallel_forward_of_a_long_sequence() -> None:
    """3.758 GB per layer at s = 65536, h = 8192, 8 ranks, 16 bits."""
    forward = [c for c in layer_calls("llama-3-70b", tp=8, sp=True, seq_len=65536) if c.phase == "forward"]
    assert received(forward, 8) / 1e9 == pytest.approx(3.758, rel=1e-3)


def test_one_rank_sends_nothing() -> None:
    for how in ({}, {"sp": True}, {"overlap": "ring"}):
        assert all(np.all(np.asarray(call.payload_bytes) == 0) for call in layer_calls("llama-3-8b", **how))


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16, 32])
def test_heads_are_split_and_key_value_heads_repeated_beyond_their_number(tp: int) -> None:
    qkv = shard_linear(linears(layer("llama-3-8b"))["qkv"], columns(tp=tp), 2.0)
    queries, keys = 32 // tp * 128, max(8 // tp, 1) * 2 * 128
    assert float(np.asarray(qkv.n)[0]) == queries + keys
    assert float(np.asarray(qkv.parameters)[0]) == 4096 * (queries + keys)


@pytest.mark.parametrize("tp", [2, 8])
def test_pairs_of_matrices_are_split_and_biases_of_rows_are_not(tp: int) -> None:
    found = linears(layer("gpt3-175b"))
    up, down = (shard_linear(found[name], columns(tp=tp), 2.0) for name in ("mlp up", "mlp down"))
    assert float(np.asarray(up.parameters)[0]) == (12288 + 1) * 4 * 12288 / tp
    assert float(np.asarray(down.parameters)[0]) == 12288 * 4 * 12288 / tp + 12288
    assert float(np.asarray(up.m)[0]) == float(np.asarray(down.m)[0]) == 4096


@pytest.mark.parametrize(("name", "operator"), [("mixtral-8x7b", "router"), ("deepseek-v3", "latent down")])
def test_replicated_products_keep_their_weights_and_share_tokens(name: str, operator: str) -> None:
    op = linears(layer(name))[operator]
    local = shard_linear(op, columns(tp=8, sp=True), 2.0)
    assert local.parameters == op.parameters
    assert float(np.asarray(local.m)[0]) == 4096 / 8
    assert local.calls == ()


def test_gated_up_and_down_fit_together() -> None:
    found = linears(layer("llama-3-8b"))
    for tp in (1, 2, 4, 8):
        up, down = (shard_linear(found[name], columns(tp=tp), 2.0) for name in ("mlp up", "mlp down"))
        assert float(np.asarray(up.n)[0]) == 2 * float(np.asarray(down.k)[0]) == 2 * 14336 / tp


def test_the_vocabulary_is_split_and_partial_sums_reduced() -> None:
    model = spec("llama-3-8b")
    (lookup,) = edge_work(model, "embedding").ops
    assert isinstance(lookup, Vector)
    one = vector_calls(lookup, columns(tp=8), 2.0)
    assert received([call for call in one if call.phase == "forward"], 8) == 2 * 7 / 8 * 4096 * 4096 * 2
    logits = linears(edge_work(model, "head"))["logits"]
    assert float(np.asarray(shard_linear(logits, columns(tp=8), 2.0).n)[0]) == 128256 / 8


def test_regions() -> None:
    how = columns(tp=4, sp=True, p2p=2, mbs=3, etp=2, ep=8)
    tokens = 3 * 4096 / 2
    assert float(region_scale("sequence", how, 2)[0]) == tokens / 4
    assert float(region_scale("tensor", how, 2)[0]) == tokens / 4
    assert float(region_scale("expert-in", how, 2)[0]) == tokens / 4 * 2 * 2
    assert float(region_scale("expert", how, 2)[0]) == tokens / 4 * 2
    without = columns(tp=4, p2p=2, mbs=3)
    assert float(region_scale("sequence", without, 2)[0]) == tokens


@pytest.mark.parametrize(("overlap", "exposed"), [("none", 1.0), ("bulk", 0.0), ("ring", 0.125)])
def test_overlap_says_what_of_the_backward_stays_exposed(overlap: str, exposed: float) -> None:
    qkv = shard_linear(linears(layer("llama-3-8b"))["qkv"], columns(tp=8, sp=True, overlap=overlap), 2.0)
    heads = {float(np.asarray(call.head_share)[0]) for call in qkv.calls if call.phase == "backward"}
    assert heads == {exposed}
    forward = {float(np.asarray(call.head_share)[0]) for call in qkv.calls if call.phase == "forward"}
    assert forward == {0.125 if overlap == "ring" else 1.0}


@pytest.mark.parametrize(("tp", "copies"), [(4, 1), (8, 1), (16, 2), (64, 8)])
def test_copies_of_key_value_heads_are_summed(tp: int, copies: int) -> None:
    """8 heads of keys and values, 128 wide: a rank's part is summed over those that hold the same."""
    local = shard_linear(linears(layer("llama-3-70b"))["qkv"], columns(tp=tp), 2.0)
    over_all = 2 * (tp - 1) / tp * float(np.asarray(local.replicated)[0])
    assert over_all == pytest.approx(2 * (copies - 1) / copies * 8192 * 2 * 128)
