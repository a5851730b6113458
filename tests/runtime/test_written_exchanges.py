"""Runs of plans send what their methods write: tokens to experts, keys and values or heads around the sequence.

A run whose compiler spread experts or tokens another way would end where one device ends, too.
"""

from __future__ import annotations

from functools import cache

import jax
import pytest

from meshwright.compiler.sharding.hlo_collectives import Collectives
from meshwright.runtime.training.run import Training
from meshwright.specs.layers.attention import Attention
from meshwright.specs.row_text import parse_row
from meshwright.zoo.experts import CAPACITY_FACTOR, capacity
from meshwright.zoo.tiny import TINY, scaled_model
from tests.runtime.priced_collectives import tensor_bytes

LAYERS, SAMPLES, LENGTH, HIDDEN, ELEMENT = 2, 16, 16, 64, 4
EXPERTS, TOP_K, WIDTH = 4, 2, 96


@cache
def sent(model: str, words: str) -> dict[str, Collectives]:
    """By executable of a step of one micro-batch."""
    row = parse_row(f"{words}.gbs{SAMPLES}", devices=8, global_batch=SAMPLES, schedules=())
    one = Training(
        spec=scaled_model(TINY[model], layers=LAYERS), row=row, stage_layers=(LAYERS,), seq_len=LENGTH, hidden=None
    )
    return one.step(jax.devices()[:8]).lower(one.initial(), one.batch(0)).collectives()


def of_tokens(words: str) -> tuple[float, float]:
    """All-to-alls of a forward and bytes of their results on a rank."""
    found = sent("moe-tiny", f"dp8.{words}.mbs2")["F0"]
    return found.of_arrays.get("all-to-all", 0), found.result_bytes.get("all-to-all", 0)


def test_tokens_go_to_their_experts_and_back_in_both_directions() -> None:
    room = capacity(LENGTH, EXPERTS, TOP_K, CAPACITY_FACTOR)
    priced = 2 * LAYERS * EXPERTS * 2 * room * HIDDEN * ELEMENT  # dispatch and combine of two samples
    assert of_tokens("ep4") == (2 * LAYERS, priced)
    backward = sent("moe-tiny", "dp8.ep4.mbs2")["B0"]
    assert (backward.of_arrays["all-to-all"], backward.result_bytes["all-to-all"]) == (2 * LAYERS, priced)


def test_pieces_and_levels_send_as_many_bytes_in_more_exchanges() -> None:
    count, size = of_tokens("ep4")
    assert of_tokens("ep4.epc2") == (2 * count, size)
    assert of_tokens("ep4.ep2h") == (2 * count, 2 * size)


def test_experts_that_move_come_to_the_tokens_instead() -> None:
    assert of_tokens("ep4.epmove") == (0, 0)
    gathered = sent("moe-tiny", "dp8.ep4.epmove.mbs2")["F0"].result_bytes["all-gather"]
    assert gathered >= LAYERS * EXPERTS * 3 * HIDDEN * WIDTH * ELEMENT


def test_weights_of_experts_are_summed_over_their_own_ranks_alone() -> None:
    """Of two layers and the ends; experts stand on two ranks each."""
    spec = scaled_model(TINY["moe-tiny"], layers=LAYERS)
    experts = LAYERS * EXPERTS * 3 * HIDDEN * WIDTH
    own = spec.parameters - experts + experts / 4
    assert sent("moe-tiny", "dp8.ep4.mbs2")["B0"].result_bytes["all-reduce"] == pytest.approx(own * ELEMENT, rel=0.01)


def shares() -> tuple[float, float]:
    """Elements of a rank's queries, and of its keys, in plans of two context ranks."""
    attention = TINY["llama-tiny"].last_layer().attention
    assert isinstance(attention, Attention)
    tokens = SAMPLES / 4 * LENGTH / 2
    return tokens * attention.heads * attention.head_dim, tokens * attention.kv_heads * attention.head_dim


def test_heads_are_exchanged_for_sequence_and_back() -> None:
    queries, keys = shares()
    found = sent("llama-tiny", "dp4.cp2-a2a.mbs4")["F0"]
    assert found.of_arrays["all-to-all"] == 4 * LAYERS
    assert found.result_bytes["all-to-all"] == LAYERS * (2 * queries + 2 * keys) * ELEMENT
    assert "all-gather" not in found.of_arrays


def test_keys_and_values_go_around_the_ring_or_are_gathered() -> None:
    _, keys = shares()
    ring = sent("llama-tiny", "dp4.cp2.mbs4")["F0"].result_bytes["collective-permute"]
    # Rotary positions and shifted tokens send a little, too.
    assert ring == pytest.approx(LAYERS * 2 * keys * ELEMENT, rel=0.01)
    gathered = sent("llama-tiny", "dp4.cp2-ag.mbs4")["F0"].result_bytes["all-gather"]
    assert gathered == pytest.approx(LAYERS * 2 * 2 * keys * ELEMENT, rel=0.01)


@pytest.mark.parametrize(
    ("words", "sharding"),
    [
        ("dp4.cp2.mbs2", "z0"),
        ("dp4.cp2-a2a.mbs2.rc-full", "z1"),
        ("tp2.dp2.cp2-ag.mbs2", "z1"),
        ("dp1.cp2.mbs4.rc-sel-mlp", "z0"),
    ],
)
def test_context_ranks_sum_gradients_once_a_step_with_data_ranks(words: str, sharding: str) -> None:
    """Micro-batches are added up on each rank by itself; one reduction over data and context ranks stands behind."""
    row = parse_row(f"{words}.gbs{SAMPLES}", devices=8, global_batch=SAMPLES, schedules=())
    ranks = row.dp * row.cp_degree
    own = scaled_model(TINY["llama-tiny"], layers=LAYERS).parameters * ELEMENT / row.tp
    found = sent("llama-tiny", f"{words}.{sharding}")
    once = own * (ranks - 1) / ranks
    wanted = {"gradients0": 2 * once} if sharding == "z0" else {"gradients0": once, "whole0": once}
    assert {name: found[name].sent_bytes for name in wanted} == pytest.approx(wanted, rel=0.01)
    # Tensor ranks that share the tokens of norms sum these with every micro-batch.
    of_norms = (2 * LAYERS + 1) * HIDDEN * ELEMENT * (row.tp > 1)
    for program, times in (("B0", 1), ("B0+", row.micro_batches - 1)):
        assert found[program].result_bytes.get("all-reduce", 0) == times * of_norms


@pytest.mark.parametrize(("words", "of_stream"), [("dp4.cp2.z3.mbs2", 0), ("tp2.dp2.cp2.z2.mbs4", LAYERS * 2 + 1)])
def test_context_ranks_scatter_shards_of_gradients_together_with_data_ranks(words: str, of_stream: int) -> None:
    row = parse_row(f"{words}.gbs{SAMPLES}", devices=8, global_batch=SAMPLES, schedules=())
    shards = scaled_model(TINY["llama-tiny"], layers=LAYERS).parameters * ELEMENT / row.devices
    part = row.mbs * LENGTH / row.cp_degree / row.tp * HIDDEN * ELEMENT
    backward = sent("llama-tiny", words)["B0"].result_bytes
    assert backward["reduce-scatter"] == pytest.approx(shards + of_stream * part, rel=0.01)


def test_tensor_ranks_gather_and_scatter_beside_experts() -> None:
    """Embedding and attentions scatter sums of the stream, which attentions and the head gather; experts add none."""
    found = sent("moe-tiny", "tp2.dp4.ep4.mbs4")
    stream = 4 * LENGTH * HIDDEN * ELEMENT
    for program, gathers in (("F0", LAYERS + 1), ("B0", 2 * LAYERS + 2)):
        assert found[program].count["reduce-scatter"] == LAYERS + 1
        assert found[program].result_bytes["reduce-scatter"] == (LAYERS + 1) * stream / 2
        assert found[program].result_bytes["all-gather"] == gathers * stream
    assert found["F0"].of_arrays["all-to-all"] == 2 * LAYERS


@pytest.mark.parametrize(("model", "words"), [("gpt-tiny", "tp4.nosp.dp2.mbs8"), ("llama-tiny", "tp2.nosp.dp4.mbs4")])
def test_tensor_ranks_sum_what_is_priced(model: str, words: str) -> None:
    """Once for queries, keys and values together, and once for gate and up, in either direction."""
    found, spec = sent(model, words), scaled_model(TINY[model], layers=LAYERS)
    row = parse_row(f"{words}.gbs{SAMPLES}", devices=8, global_batch=SAMPLES, schedules=())
    for program, phase in (("F0", "forward"), ("B0", "backward")):
        priced = tensor_bytes(spec, row, LENGTH, phase, float(ELEMENT))
        assert found[program].sent_bytes == pytest.approx(priced, rel=0.01)
