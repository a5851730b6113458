"""Compute: hand-computed rooflines, exact pair counts, and what must hold for any shape."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.kernels import compute
from meshwright.kernels.compute import entry_pairs

PEAK, MEMORY = 100e12, 1e12
GEMM: dict[str, Any] = {
    "peak_flop_per_s": PEAK,
    "max_fraction": 0.8,
    "tile_m": 128,
    "tile_n": 256,
    "units": 100,
    "k_half": 64,
    "wave_loss": 0.25,
    "input_bytes": 2,
    "output_bytes": 2,
    "memory_bytes_per_s": MEMORY,
    "launch_s": 3e-6,
}
PLAIN_ATTENTION: dict[str, Any] = {
    "batch": 1,
    "heads": 16,
    "kv_heads": 16,
    "qk_dim": 128,
    "v_dim": 128,
    "peak_flop_per_s": PEAK,
    "max_fraction": 1.0,
    "dim_half": 0,
    "keys_half": 0,
    "tail": 0,
    "tile_query": 128,
    "units": 16,
    "element_bytes": 2,
    "memory_bytes_per_s": MEMORY,
    "launch_s": 0.0,
}
MATERIALISED: dict[str, Any] = {
    "batch": 2,
    "heads": 16,
    "qk_dim": 128,
    "v_dim": 128,
    "peak_flop_per_s": PEAK,
    "max_fraction": 0.5,
    "score_bytes": 2,
    "memory_bytes_per_s": MEMORY,
    "launch_s": 1e-6,
}


def roof(**given: Any) -> compute.Roof:
    return compute.Roof(**{field.name: given[field.name] for field in fields(compute.Roof)})


def gemm_s(m: Any, n: Any, k: Any, *, groups: Any = 1, **given: Any) -> Any:
    tiles = {"m": given["tile_m"], "n": given["tile_n"], **{name: given[name] for name in ("units", "k_half")}}
    tiles |= {name: given[name] for name in ("wave_loss", "joint") if name in given}
    sizes = {name: given[name] for name in ("input_bytes", "output_bytes")}
    return compute.gemm_s(m, n, k, groups=groups, roof=roof(**given), tiles=compute.Tiles(**tiles), **sizes)


def attention(**given: Any) -> compute.AttentionShape:
    return compute.AttentionShape(**{field.name: given[field.name] for field in fields(compute.AttentionShape)})


# Matrix products -----------------------------------------------------------------------------------------------------


def test_gemm_of_whole_waves() -> None:
    # 80 by 20 tiles are 16 waves of 100.
    m, n, k = 80 * 128, 20 * 256, 4096
    assert gemm_s(m, n, k, **GEMM) == pytest.approx(2 * m * n * (k + 64) / 80e12 + 3e-6)


@pytest.mark.parametrize(
    ("tiles", "paid"),
    [
        (1, 2),  # split so that at most half the device idles
        (20, 40),
        (60, 85),
        (90, 100),  # one wave
        (100, 100),
        (101, 126),  # other tiles for the second wave
        (180, 200),
        (1601, 1626),
    ],
)
def test_gemm_pays_for_waves(tiles: int, paid: int) -> None:
    time_s = gemm_s(128, 256 * tiles, 2**20, **GEMM | {"memory_bytes_per_s": 1e30})
    assert time_s - 3e-6 == pytest.approx(paid * 2 * 128 * 256 * (2**20 + 64) / 80e12)


def test_thin_gemm_reads_its_weights() -> None:
    fast = GEMM | {"peak_flop_per_s": 10 * PEAK}
    assert gemm_s(1, 8192, 8192, **fast) == pytest.approx(2 * (8192**2 + 2 * 8192) / MEMORY + 3e-6)


def test_experts_in_one_launch() -> None:
    apart_s = 8 * (gemm_s(1280, 2560, 4096, **GEMM) - 3e-6)
    together_s = gemm_s(1280, 2560, 4096, groups=8, **GEMM) - 3e-6
    assert together_s == pytest.approx(apart_s)  # 100 tiles each: no tail to share
    apart_s = 8 * (gemm_s(128, 2560, 4096, **GEMM) - 3e-6)
    assert gemm_s(128, 2560, 4096, groups=8, **GEMM) - 3e-6 < apart_s


def test_products_at_the_ridge_take_longer_than_either_bound() -> None:
    m, n, k = 80 * 128, 20 * 256, 4096
    compute_s = gemm_s(m, n, k, **GEMM) - 3e-6
    ridge = GEMM | {"memory_bytes_per_s": 2 * (m * k + k * n + m * n) / compute_s, "launch_s": 0.0}
    assert gemm_s(m, n, k, **ridge) == pytest.approx(compute_s)
    assert gemm_s(m, n, k, joint=4.0, **ridge) == pytest.approx(2**0.25 * compute_s)
    assert gemm_s(m, n, k, joint=1.0, **ridge) == pytest.approx(2 * compute_s)


widths = st.integers(1, 40_000)


@given(widths, widths, widths, st.integers(1, 64), st.integers(1, 5000), st.floats(1, 10))
def test_gemm_never_falls_with_size_nor_rises_with_speed(
    m: int, n: int, k: int, groups: int, more: int, factor: float
) -> None:
    time_s = gemm_s(m, n, k, groups=groups, **GEMM)
    assert gemm_s(m + more, n, k, groups=groups, **GEMM) >= time_s
    assert gemm_s(m, n + more, k, groups=groups, **GEMM) >= time_s
    assert gemm_s(m, n, k + more, groups=groups, **GEMM) >= time_s
    assert gemm_s(m, n, k, groups=groups + more, **GEMM) >= time_s
    assert gemm_s(m, n, k, groups=groups, **GEMM | {"peak_flop_per_s": PEAK * factor}) <= time_s
    assert gemm_s(m, n, k, groups=groups, **GEMM | {"memory_bytes_per_s": MEMORY * factor}) <= time_s
    assert time_s >= max(2 * groups * m * n * k / 80e12, 2 * groups * k * n / MEMORY)


@given(st.lists(st.tuples(widths, widths, widths), min_size=1, max_size=6))
def test_gemm_rows_are_single_rows(shapes: list[tuple[int, int, int]]) -> None:
    m, n, k = np.array(shapes).T
    assert gemm_s(m, n, k, **GEMM).tolist() == [gemm_s(*shape, **GEMM) for shape in shapes]


# Score pairs ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(0, 12), st.integers(1, 30) | st.just(np.inf), st.booleans())
def test_pairs_are_those_of_the_mask(query_len: int, before: int, window: float, causal: bool) -> None:
    key_len = query_len + before
    queries, keys = np.mgrid[before:key_len, 0:key_len]
    seen = (keys > queries - window) & (keys < queries + window)
    if causal:
        seen &= keys <= queries
    assert compute.score_pairs(query_len, key_len, window=window, causal=causal) == seen.sum()


def test_pairs_of_whole_sequences() -> None:
    assert compute.score_pairs(4096, 4096) == 4096 * 4097 / 2
    assert compute.score_pairs(4096, 4096, causal=False) == 4096**2
    assert compute.score_pairs(8192, 8192, window=1) == 8192
    windows = np.array([np.inf, 1024])
    assert compute.score_pairs(8192, 8192, window=windows) == pytest.approx(
        [8192 * 8193 / 2, 1024 * 1025 / 2 + (8192 - 1024) * 1024]
    )


@given(st.integers(1, 4), st.integers(1, 64))
def test_shares_of_a_context_parallel_group_sum_to_the_whole(cp: int, chunk: int) -> None:
    # Zigzag: rank r holds chunks r and 2 cp - 1 - r, each query chunk against the keys up to its own end.
    ends = [(r + 1, 2 * cp - r) for r in range(cp)]
    shares = [sum(compute.score_pairs(chunk, end * chunk) for end in pair) for pair in ends]
    assert sum(shares) == compute.score_pairs(2 * cp * chunk, 2 * cp * chunk)
    assert max(shares) == min(shares)


# Attention -----------------------------------------------------------------------------------------------------------


def flash_s(query_len: Any, *, causal: bool = True, backward: bool = False, **changes: Any) -> Any:
    pairs = compute.score_pairs(query_len, query_len, causal=causal)
    options = PLAIN_ATTENTION | changes
    cut = {name: options[name] for name in ("units", "dim_half", "keys_half", "tail")}
    return compute.flash_attention_s(
        attention(pairs=pairs, query_len=query_len, key_len=query_len, **options),
        backward=backward,
        roof=roof(**options),
        blocks=compute.AttentionBlocks(queries=options["tile_query"], **cut),
        element_bytes=options["element_bytes"],
    )


def test_flash_work_is_two_products_forward_and_five_backward() -> None:
    forward_s = flash_s(8192, causal=False)
    assert forward_s == pytest.approx(4 * 8192**2 * 16 * 128 / PEAK)
    assert flash_s(8192, causal=False, backward=True) == pytest.approx(2.5 * forward_s)
    assert flash_s(8192) == pytest.approx(forward_s / 2, rel=1e-3)


def test_flash_dims_of_latent_attention() -> None:
    # Scores on 192, values on 128: forward 192 + 128, backward 3 * 192 + 2 * 128.
    ratio = flash_s(8192, qk_dim=192, backward=True) / flash_s(8192, qk_dim=192)
    assert ratio == pytest.approx((3 * 192 + 2 * 128) / (192 + 128))


def test_flash_ramps() -> None:
    plain_s = flash_s(8192, causal=False)
    assert flash_s(8192, causal=False, dim_half=128) == pytest.approx(2 * plain_s)
    assert flash_s(8192, causal=False, keys_half=8192) == pytest.approx(2 * plain_s)


def test_flash_short_of_bandwidth_reads_queries_of_all_heads_and_keys_of_few() -> None:
    # 24 heads share 3 pairs of keys and values; queries and output of 24 heads, keys and values of 3, once.
    grouped = {"heads": 24, "kv_heads": 3, "qk_dim": 192, "v_dim": 128, "batch": 5, "memory_bytes_per_s": 1e9}
    traffic_bytes = 5 * (24 * 1000 + 3 * 1000) * (192 + 128) * 2
    assert flash_s(1000, **grouped) == pytest.approx(traffic_bytes / 1e9)
    assert flash_s(1000, backward=True, **grouped) == pytest.approx(2.5 * traffic_bytes / 1e9)


def test_flash_waits_for_its_longest_block() -> None:
    # 96 units wait for half a block of 128 queries, whose last sees all 4096 keys.
    work = {"heads": 1, "units": 96}
    waited_s = flash_s(4096, tail=0.5, **work) - flash_s(4096, **work)
    assert waited_s == pytest.approx(0.5 * 96 * 128 * 4096 * 4 * 128 / PEAK)
    assert flash_s(4096, tail=0.5, **work | {"heads": 8}) - flash_s(4096, **work | {"heads": 8}) == pytest.approx(
        waited_s
    )


@given(
    st.integers(1, 20_000),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 2000),
    st.floats(1, 10),
    st.booleans(),
)
def test_flash_never_falls_with_size_nor_rises_with_speed(
    query_len: int, batch: int, heads: int, more: int, factor: float, backward: bool
) -> None:
    options: dict[str, Any] = {
        "heads": heads,
        "kv_heads": 1,
        "units": 132,
        "dim_half": 30,
        "keys_half": 200,
        "tail": 0.3,
    }

    def time_s(query_len: int = query_len, batch: int = batch, **changes: Any) -> Any:
        return flash_s(query_len, backward=backward, batch=batch, **options | changes) * (1 + 1e-12)

    now_s = flash_s(query_len, backward=backward, batch=batch, **options)
    assert time_s(batch=batch + more) >= now_s
    assert time_s(heads=heads + more) >= now_s
    assert time_s(query_len=query_len + more) >= now_s
    assert now_s * (1 + 1e-12) >= flash_s(
        query_len, backward=backward, batch=batch, **options | {"peak_flop_per_s": PEAK * factor}
    )
    assert now_s * (1 + 1e-12) >= flash_s(
        query_len, backward=backward, batch=batch, **options | {"memory_bytes_per_s": MEMORY * factor}
    )


def test_materialised_attention_reads_its_scores() -> None:
    scores = 2 * 16 * 4096**2
    products_s = scores * 4 * 128 / 50e12
    sweep_s = scores * 2 / MEMORY
    options = MATERIALISED | {"query_len": 4096, "key_len": 4096, "pairs": 4096**2, "kv_heads": 16}

    def time_s(passes: float, *, backward: bool = False, **changes: Any) -> Any:
        given = options | changes
        return compute.materialised_attention_s(
            attention(**given),
            backward=backward,
            roof=roof(**given),
            softmax_passes=passes,
            score_bytes=given["score_bytes"],
        )

    forward_s, backward_s = time_s(2), time_s(3, backward=True)
    assert products_s > 2 * sweep_s
    assert forward_s == pytest.approx(products_s + 2 * sweep_s + 1e-6)
    assert backward_s == pytest.approx(2 * products_s + 3 * sweep_s + 1e-6)
    narrow_s = time_s(2, v_dim=1, qk_dim=1)
    assert narrow_s == pytest.approx(4 * sweep_s + 1e-6)


def test_vector() -> None:
    times_s = compute.vector_s(
        np.array([0.0, 8e9]), memory_bytes_per_s=2e12, max_fraction=0.8, launch_s=np.array([0.0, 5e-6])
    )
    assert times_s == pytest.approx([0.0, 5e-3 + 5e-6])


# TFLOP/s of fused attention as its authors publish them: 16k tokens, 2048 wide, no mask. The efficiencies are solved
# from the head dims 64 and 128; 256 and the shorter sequences are then predictions.
# https://arxiv.org/abs/2407.08608 figures 5 and 6 (H100 SXM, FlashAttention-3).
FLASH_3: dict[str, Any] = {"peak_flop_per_s": 989e12, "max_fraction": 0.94, "dim_half": 55, "keys_half": 128}


@pytest.mark.parametrize(
    ("seq_len", "head_dim", "tflop_per_s"),
    [(1024, 128, 565), (4096, 128, 638), (16384, 64, 497), (16384, 128, 648), (16384, 256, 756), (4096, 256, 736)],
)
def test_published_attention_rates(seq_len: int, head_dim: int, tflop_per_s: float) -> None:
    batch, heads = 16384 // seq_len, 2048 // head_dim
    time_s = flash_s(
        seq_len,
        causal=False,
        batch=batch,
        heads=heads,
        kv_heads=heads,
        qk_dim=head_dim,
        v_dim=head_dim,
        memory_bytes_per_s=2.8e12,
        units=132,
        **FLASH_3,
    )
    assert 4 * batch * heads * head_dim * seq_len**2 / time_s / 1e12 == pytest.approx(tflop_per_s, rel=0.05)


def test_a_library_that_splits_no_tile_pays_whole_waves() -> None:
    """101 tiles on 100 units: two waves, or what a quarter or none of a wave costs."""
    shape = {"m": 128, "n": 256 * 101, "k": 4096}
    wave = gemm_s(**{**shape, "n": 256 * 100}, **{**GEMM, "launch_s": 0.0})
    for loss, waves in ((1.0, 2.0), (0.25, 1.26), (0.0, 1.01)):
        taken = gemm_s(**shape, **{**GEMM, "launch_s": 0.0, "wave_loss": loss})
        assert taken == pytest.approx(wave * waves)


@pytest.mark.parametrize("entry", [1, 2, 3, 7])
@pytest.mark.parametrize("most", [math.inf, 0.0, 1.0, 3.0, 100.0])
def test_pairs_of_queries_and_compressed_keys_are_those_that_counting_gives(entry: int, most: float) -> None:
    for tokens in range(40):
        counted = sum(min(query // entry, most) for query in range(1, tokens + 1))
        assert entry_pairs(tokens, entry, most) == counted
