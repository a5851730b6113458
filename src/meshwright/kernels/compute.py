"""Compute on one device: seconds of matrix products, attention and memory-bound operations.

Each is a roofline, the larger of arithmetic and memory time, with the losses a kernel has whatever its author does:
tiles and waves that do not fill the device, prologue and epilogue of each tile. Apart from specs: columns, seconds.
"""

from __future__ import annotations

import numpy as np

from meshwright.shapes import Float, Int

Column = int | float | np.integer | Float[np.ndarray, "..."] | Int[np.ndarray, "..."]
"""A number per row, or one number for all rows; rows may have any shape that broadcasts."""

Amount = float | Float[np.ndarray, "..."]
"""What every function here returns, in the broadcast shape of its arguments."""


def gemm_s(
    m: Column,
    n: Column,
    k: Column,
    *,
    groups: Column = 1,
    peak_flop_per_s: Column,
    max_fraction: Column,
    tile_m: Column,
    tile_n: Column,
    units: Column,
    wave_loss: Column = 0.25,
    k_half: Column,
    input_bytes: Column,
    weight_bytes: Column,
    output_bytes: Column,
    memory_bytes_per_s: Column,
    launch_s: Column,
) -> Amount:
    """Seconds of `groups` products of [m, k] and [k, n] in one launch: max(compute, memory) + launch.

    Compute: every output tile costs 2 tile_m tile_n (k + k_half) FLOP at peak * max_fraction, edge tiles in full, and
    tiles run in waves of `units`: waves(tiles) * 2 tile_m tile_n (k + k_half) / (peak * max_fraction), with
    waves(t) = min(units * ceil(t / units), t + wave_loss units, 2 t). The first is the plain wave quantisation, the
    others what libraries do about it: with other tile shapes to choose from, or the last tiles split along k
    (stream-K), only a part of a wave is lost; and a grid smaller than the device is split until half of it idles.

    Memory: groups * (m k input_bytes + k n weight_bytes + m n output_bytes) / memory_bytes_per_s, each operand once.

    Never falls as m, n, k or groups grow.

    Args:
        m: rows, the tokens of one group; per row.
        n: columns, the output width; per row.
        k: contraction length; per row.
        groups: equal products in the launch (experts, or batches of attention products); per row.
        peak_flop_per_s: dense peak of the data type.
        max_fraction: of the peak that the best shapes reach, 0-1.
        tile_m: rows of the output tile of one unit.
        tile_n: columns of the output tile of one unit.
        units: tiles the device works on at once (multiprocessors).
        wave_loss: of a wave, what a grid that does not fill its last wave loses at most.
        k_half: contraction length that takes as long as the prologue and epilogue of a tile; half speed at k = k_half.
        input_bytes: per element of [m, k].
        weight_bytes: per element of [k, n].
        output_bytes: per element of [m, n].
        memory_bytes_per_s: achieved memory bandwidth.
        launch_s: start of a kernel that is not hidden.

    Returns:
        Seconds, per row.

    Source: Williams et al., "Roofline", CACM 2009; NVIDIA, "Matrix Multiplication Background User's Guide" (tile and
    wave quantisation); Osama et al., "Stream-K", PPoPP 2023.
    """
    tiles = groups * np.ceil(m / tile_m) * np.ceil(n / tile_n)
    whole_waves = np.ceil(tiles / units) * units
    paid_tiles = np.minimum(whole_waves, np.minimum(tiles + wave_loss * units, 2 * tiles))
    compute_s = paid_tiles * (k + k_half) * (2 * tile_m * tile_n / (peak_flop_per_s * max_fraction))
    traffic_bytes = groups * (k * (m * input_bytes + n * weight_bytes) + m * n * output_bytes)
    return np.maximum(compute_s, traffic_bytes / memory_bytes_per_s) + launch_s


def score_pairs(query_len: Column, key_len: Column, *, window: Column = np.inf, causal: bool = True) -> Amount:
    """Query-key pairs of one sequence and head that the mask leaves, counted exactly.

    The queries are the last of the `key_len` positions, with a = key_len - query_len keys before the first. Causal
    query i sees min(a + i + 1, window) keys: with c = clip(window - a, 0, query_len) queries that see all before them,
    c a + c (c + 1) / 2 + (query_len - c) window. Without a mask of order, query_len key_len; with a window, the same
    window again towards the end of the sequence. Materialised attention computes query_len key_len whatever the mask.

    Args:
        query_len: queries, per row; no more than key_len.
        key_len: keys, per row.
        window: keys a query sees backwards, itself included; infinite for no window; per row.
        causal: no query sees a later key.

    Returns:
        Pairs, per row.
    """
    window = np.minimum(window, key_len)
    backward = _pairs_backward(query_len, key_len - query_len, window)
    if causal:
        return backward
    # Seen from the end, the last query has no key after it, and each query's own key is in both counts.
    return backward + _pairs_backward(query_len, 0, window) - query_len


def flash_attention_s(
    *,
    pairs: Column,
    query_len: Column,
    key_len: Column,
    batch: Column,
    heads: Column,
    kv_heads: Column,
    qk_dim: Column,
    v_dim: Column,
    backward: bool,
    peak_flop_per_s: Column,
    max_fraction: Column,
    dim_half: Column,
    keys_half: Column,
    tile_query: Column,
    units: Column,
    element_bytes: Column,
    memory_bytes_per_s: Column,
    launch_s: Column,
) -> Amount:
    """Seconds of fused attention in one direction: max(compute, memory) + launch.

    Work: two products forward, qk_dim + v_dim multiply-adds per pair; five backward (scores again, dV, dP, dQ, dK),
    3 qk_dim + 2 v_dim, which is 2.5 times forward for equal dims. Compute, with d = (qk_dim + v_dim) / 2:
    2 batch heads (pairs + keys_half query_len) multiply_adds (1 + dim_half / d) / (peak * max_fraction), times
    what b blocks of `tile_query` queries lose on `units`: max(1, units / b), no block is split to fill an idle unit.
    Memory: queries, keys, values and output once forward, 2.5 times that backward.

    The exponentials cost each pair the same whatever d is: this is dim_half, in head dims. Each query pays for the
    start and end of its block and for the masked half of the tile on the diagonal: this is keys_half, in keys.

    Args:
        pairs: score pairs of one sequence and head (`score_pairs`, or this rank's share of them), per row.
        query_len: queries on this device, per row.
        key_len: keys they read, per row.
        batch: sequences, per row.
        heads: query heads on this device, per row.
        kv_heads: key-value heads on this device, per row.
        qk_dim: head dim of queries and keys, per row.
        v_dim: head dim of values, per row.
        backward: the backward pass instead of the forward.
        peak_flop_per_s: dense peak of the data type.
        max_fraction: of the peak in this direction for long sequences and wide heads, 0-1.
        dim_half: head dim at which half of that is reached.
        keys_half: keys per query at which half of that is reached.
        tile_query: queries in a block.
        units: blocks the device works on at once (multiprocessors).
        element_bytes: per element of queries, keys, values and output.
        memory_bytes_per_s: achieved memory bandwidth.
        launch_s: start of a kernel that is not hidden.

    Returns:
        Seconds, per row.

    Source: Dao, "FlashAttention-2", 2023 (five products backward, rates by head dim and length); Shah et al.,
    "FlashAttention-3", 2024, section 3.2 (exponentials take half as long as the products at head dim 128).
    """
    multiply_adds = 3 * qk_dim + 2 * v_dim if backward else qk_dim + v_dim
    softmax_factor = 1 + 2 * dim_half / (qk_dim + v_dim)
    blocks = batch * heads * query_len / tile_query
    sequences = batch * heads * np.maximum(1, units / blocks)
    work_flop = 2 * sequences * (pairs + keys_half * query_len) * (multiply_adds * softmax_factor)
    traffic_bytes = batch * (qk_dim + v_dim) * (heads * query_len + kv_heads * key_len) * element_bytes
    memory_s = traffic_bytes * ((2.5 if backward else 1) / memory_bytes_per_s)
    return np.maximum(work_flop / (peak_flop_per_s * max_fraction), memory_s) + launch_s


def materialised_attention_s(
    *,
    query_len: Column,
    key_len: Column,
    batch: Column,
    heads: Column,
    qk_dim: Column,
    v_dim: Column,
    backward: bool,
    peak_flop_per_s: Column,
    max_fraction: Column,
    softmax_passes: Column,
    score_bytes: Column,
    memory_bytes_per_s: Column,
    launch_s: Column,
) -> Amount:
    """Seconds of attention that writes its scores to memory, in one direction: max(products) + softmax + launch.

    Products on the full square, the mask saves nothing: 2 e (qk_dim + v_dim) FLOP forward for e = batch heads query_len
    key_len scores, twice that backward, against writing the scores and reading the probabilities: 2 e score_bytes
    forward, 4 e score_bytes backward (P for dV, dP, dS for dQ and for dK). Softmax, mask and dropout between the
    products: softmax_passes e score_bytes.

    Args:
        query_len: queries on this device, per row.
        key_len: keys they read, per row.
        batch: sequences, per row.
        heads: query heads on this device, per row.
        qk_dim: head dim of queries and keys, per row.
        v_dim: head dim of values, per row.
        backward: the backward pass instead of the forward.
        peak_flop_per_s: dense peak of the data type.
        max_fraction: of the peak that batched products reach, 0-1.
        softmax_passes: times the scores are read or written between the products in this direction. Fused scale,
            mask and softmax: 2 forward, 3 backward; dropout: 2.5 more each way, its mask has a byte per score.
        score_bytes: per score.
        memory_bytes_per_s: achieved memory bandwidth.
        launch_s: start of the kernels that is not hidden.

    Returns:
        Seconds, per row.

    Source: Dao et al., "FlashAttention", NeurIPS 2022, algorithm 0 and theorem 2; Korthikanti et al., "Reducing
    Activation Recomputation in Large Transformer Models", 2022, section 4 (what attention keeps and reads).
    """
    directions = 2 if backward else 1
    scores = batch * heads * query_len * key_len
    sweep_s = scores * (score_bytes / memory_bytes_per_s)
    products_s = scores * ((2 * directions) * (qk_dim + v_dim) / (peak_flop_per_s * max_fraction))
    return np.maximum(products_s, (2 * directions) * sweep_s) + softmax_passes * sweep_s + launch_s


def vector_s(traffic_bytes: Column, *, memory_bytes_per_s: Column, max_fraction: Column, launch_s: Column) -> Amount:
    """Seconds of an operation that only moves bytes: traffic / (bandwidth * max_fraction) + launch.

    Args:
        traffic_bytes: read plus written, per row.
        memory_bytes_per_s: nominal memory bandwidth.
        max_fraction: of the bandwidth that streaming kernels reach, 0-1.
        launch_s: start of the kernels that is not hidden; the number of kernels times that of one.

    Returns:
        Seconds, per row.

    Source: Ivanov et al., "Data Movement Is All You Need", MLSys 2021 (normalisation and elementwise operators of
    transformers are bound by memory).
    """
    return traffic_bytes / (memory_bytes_per_s * max_fraction) + launch_s


def _pairs_backward(query_len: Column, before: Column, window: Column) -> Amount:
    """Sum of min(before + i + 1, window) over i < query_len."""
    growing: Amount = np.clip(window - before, 0, query_len)
    return growing * before + growing * (growing + 1) / 2 + (query_len - growing) * window
