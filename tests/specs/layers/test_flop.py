"""FLOP of mixers against closed forms of the papers, per token, forward."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layers.work import price_work
from meshwright.estimate.layout import token_flop
from meshwright.estimate.sequences import attended_pairs
from meshwright.kernels.compute import entry_pairs
from meshwright.library.clusters import resolve_gpus
from meshwright.ops.layers import layer_work
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.base import LayerPart
from meshwright.specs.layers.delta_net import DeltaNet
from meshwright.specs.layers.indexer import Indexer
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.layers.linear_attention import LinearAttention
from meshwright.specs.layers.mamba import Mamba
from meshwright.specs.layers.mamba2 import Mamba2
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.layers.short_convolution import ShortConvolution
from meshwright.specs.operators import CoreAttention
from meshwright.specs.workload import Workload
from tests.specs.layers.kinds import layer_of
from tests.strategies.columns import columns

SEQ = 4096
H = 1024


def per_token(part: LayerPart) -> float:
    workload = Workload(seq_len=SEQ, global_batch=8)
    hardware = hardware_of(resolve_gpus("8xH100").groups[0], workload)
    priced = price_work(layer_work(layer_of(part), H, "flash"), columns(seq_len=SEQ), hardware, workload)
    return float(priced.forward.flop[0]) / SEQ


def test_mamba2_computes_chunks_of_scores_values_and_states() -> None:
    """2 per weight; 2 C N per group, and 2 C P + 4 N P per head (arXiv 2405.21060, section 6)."""
    mixer = Mamba2(heads=32, head_dim=64, groups=4, state=128, chunk=256)
    weights = H * (2 * 2048 + 2 * 4 * 128 + 32) + 2048 * H
    scan = 4 * 2 * 256 * 128 + 32 * (2 * 256 * 64 + 4 * 128 * 64)
    assert per_token(mixer) == pytest.approx(2 * weights + scan)


def test_the_delta_rule_also_inverts_a_triangle_and_corrects_the_state() -> None:
    """6 C N + 4 C P + 6 N P + C C / 3 per head (arXiv 2406.06484, section 3.2)."""
    mixer = DeltaNet(heads=16, key_heads=8, key_dim=64, value_dim=128, chunk=64)
    weights = H * (2 * 8 * 64 + 2 * 16 * 128 + 2 * 16) + 16 * 128 * H
    scan = 16 * (6 * 64 * 64 + 4 * 64 * 128 + 6 * 64 * 128 + 64 * 64 / 3)
    assert per_token(mixer) == pytest.approx(2 * weights + scan)


def test_linear_attention_and_mamba() -> None:
    heads = 8 * (2 * 256 * 64 + 2 * 256 * 64 + 4 * 64 * 64)
    assert per_token(LinearAttention(heads=8, head_dim=64)) == pytest.approx(2 * H * 5 * 512 + heads)
    mamba = Mamba(width=2048, state=16, step_rank=64)
    weights = H * 3 * 2048 + 2048 * (64 + 32) + 64 * 2048
    assert per_token(mamba) == pytest.approx(2 * weights + 7 * 2048 * 16)
    assert per_token(ShortConvolution(width=H)) == pytest.approx(2 * 4 * H * H)


def test_a_model_asks_for_the_recurrence_whatever_chunks_a_kernel_takes() -> None:
    works = [
        layer_work(layer_of(LinearAttention(heads=8, head_dim=64, chunk=chunk)), H, "flash") for chunk in (64, 256)
    ]
    asked = [token_flop(work, SEQ) for work in works]
    assert asked[0] == asked[1] == pytest.approx(2 * H * 5 * 512 + 8 * 4 * 64 * 64)


def test_queries_see_the_keys_of_their_chunk_alone() -> None:
    op = CoreAttention(
        name="", module="", heads=1, kv_heads=1, head_dim=1, value_dim=1, window=None, causal=True, chunk=1000
    )
    assert attended_pairs(op, SEQ) == 4 * 1000 * 1001 / 2 + 96 * 97 / 2
    attention = Attention(heads=8, kv_heads=8, head_dim=64, chunk=1024)
    weights = 4 * H * 512
    assert per_token(attention) == pytest.approx(2 * weights + 2 * 8 * 128 * 1025 / 2)


def test_an_indexer_scores_all_pairs_and_attention_those_it_picks() -> None:
    """All keys by 4 heads of 32, then 512 keys by 8 heads of the latent, 64 + 16 wide to score and 64 to add up."""
    mixer = LatentAttention(
        heads=8,
        q_rank=96,
        kv_rank=64,
        nope_dim=32,
        rope_dim=16,
        value_dim=32,
        indexer=Indexer(heads=4, dim=32, top_k=512),
    )
    weights = mixer.parameters(H) - (96 + 64) - 2 * 32
    scores = 2 * 4 * 32 * (SEQ + 1) / 2
    picked = (512 * 513 / 2 + (SEQ - 512) * 512) / SEQ
    assert per_token(mixer) == pytest.approx(2 * weights + scores + 2 * 8 * (64 + 16 + 64) * picked)


def test_entries_stand_for_whole_groups_of_tokens() -> None:
    """Query i sees min(i // 4, most) of them: 0 0 0 1 1 1 1 2 2 2 of ten tokens."""
    assert entry_pairs(10, 4) == 4 * 1 + 3 * 2
    assert entry_pairs(10, 4, 1.0) == 7
    assert entry_pairs(3, 4) == 0
    for tokens, entry, most in ((4096, 4, 512.0), (4097, 128, np.inf), (100, 1, np.inf), (100, 7, 3.0)):
        assert entry_pairs(tokens, entry, most) == sum(min(i // entry, most) for i in range(1, tokens + 1))


def test_experts_in_a_latent_and_choices_that_compute_nothing() -> None:
    """Down to 256 and up again once per token; 4 of 16 choices, a quarter of which compute nothing."""
    latent = MoeMlp(experts=16, top_k=2, ffn_hidden=128, gated=False, latent=256)
    assert per_token(latent) == pytest.approx(2 * (H * 16 + 2 * H * 256 + 2 * 2 * 256 * 128))
    null = MoeMlp(experts=12, top_k=4, ffn_hidden=128, gated=True, null_experts=4)
    assert null.visited_experts == 3
    assert per_token(null) == pytest.approx(2 * (H * 16 + 3 * 3 * H * 128))
