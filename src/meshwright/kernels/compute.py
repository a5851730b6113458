"""Compute on one device: seconds of matrix products, attention and memory-bound operations.

Each is a roofline, the larger of arithmetic and memory time, with the losses a kernel has whatever its author does:
tiles and waves that do not fill the device, prologue and epilogue of each tile. Apart from specs: columns, seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Column, Float

Amount = float | Float[np.ndarray, "..."]
"""What every function here returns, in the broadcast shape of its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """What bounds a kernel on a device, and what starting it takes."""

    peak_flop_per_s: Column
    """Dense peak of the data type."""
    max_fraction: Column
    """Share of the peak that the best shapes reach, 0-1."""
    memory_bytes_per_s: Column
    """Achieved memory bandwidth."""
    launch_s: Column
    """Start of the kernels that is not hidden."""

    @property
    def flop_per_s(self) -> Column:
        """Reached at best."""
        return self.peak_flop_per_s * self.max_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """How products are cut into tiles."""

    m: Column
    """Rows of the output tile of one unit."""
    n: Column
    """Columns of it."""
    units: Column
    """Tiles the device works on at once (multiprocessors)."""
    k_half: Column
    """Contraction length that takes as long as the prologue and epilogue of a tile; half speed at k = k_half."""
    wave_loss: Column = 0.1
    """Largest loss of a grid that does not fill its last wave, as a share of the wave."""
    joint: float = np.inf
    """Exponent with which compute and memory time join; infinite where one hides behind the other whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Shape of attention on one device, per row."""

    pairs: Column
    """Score pairs of one sequence and head (`score_pairs`, or this rank's share of them)."""
    query_len: Column
    key_len: Column
    """Keys that the queries read."""
    batch: Column
    """Sequences."""
    heads: Column
    """Query heads on this device."""
    kv_heads: Column
    """Key-value heads on this device."""
    qk_dim: Column
    """Head dim of queries and keys."""
    v_dim: Column
    """Head dim of values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBlocks:
    """How fused attention is cut into blocks of queries."""

    queries: Column
    """Queries in a block."""
    units: Column
    """Blocks the device works on at once (multiprocessors)."""
    dim_half: Column
    """Head dim at which half of the best rate is reached."""
    keys_half: Column
    """Keys per query at which half of it is reached."""
    tail: Column = 0.0
    """Share of the block with most keys that the device waits for at the end."""


def gemm_s(
    m: Column,
    n: Column,
    k: Column,
    *,
    groups: Column = 1,
    roof: Roof,
    tiles: Tiles,
    input_bytes: Column,
    output_bytes: Column,
) -> Amount:
    """Seconds of `groups` products of [m, k] and [k, n] in one launch: (compute^p + memory^p)^(1/p) + launch.

    Compute: every output tile of [tm, tn] costs 2 tm tn (k + k_half) FLOP at peak * max_fraction, edge tiles in full,
    and tiles run in waves of `units`: waves(tiles) * 2 tm tn (k + k_half) / (peak * max_fraction), with
    waves(t) = min(units * ceil(t / units), t + wave_loss units, 2 t). The first is the plain wave quantisation, the
    others what libraries do about it: with other tile shapes to choose from, or the last tiles split along k
    (stream-K), only a part of a wave is lost; and a grid smaller than the device is split until half of it idles.

    Memory: groups * ((m k + k n) input_bytes + m n output_bytes) / memory_bytes_per_s, each operand once. p is `joint`:
    measured products near the ridge take longer than the larger of the two, by 2^(1/p) where they are equal.

    Never falls as m, n, k or groups grow.

    Args:
        m: rows, the tokens of one group; per row.
        n: columns, the output width; per row.
        k: contraction length; per row.
        groups: equal products in the launch (experts, or batches of attention products); per row.
        roof: the roof of the device for this data type.
        tiles: how the device's libraries cut products.
        input_bytes: the bytes per element of [m, k] and [k, n].
        output_bytes: the bytes per element of [m, n].

    Returns:
        Seconds, per row.

    Source: Williams et al., "Roofline", CACM 2009; NVIDIA, "Matrix Multiplication Background User's Guide" (tile and
    wave quantisation); Osama et al., "Stream-K", PPoPP 2023.
    """
    count = groups * np.ceil(m / tiles.m) * np.ceil(n / tiles.n)
    whole_waves = np.ceil(count / tiles.units) * tiles.units
    paid_tiles = np.minimum(whole_waves, np.minimum(count + tiles.wave_loss * tiles.units, 2 * count))
    compute_s = paid_tiles * (k + tiles.k_half) * (2 * tiles.m * tiles.n / roof.flop_per_s)
    traffic_bytes = groups * (k * (m * input_bytes + n * input_bytes) + m * n * output_bytes)
    return joined_s(compute_s, traffic_bytes / roof.memory_bytes_per_s, tiles.joint) + roof.launch_s


def joined_s(one_s: Column, other_s: Column, joint: float) -> Amount:
    """Seconds of two uses of a device at the same time: (a^p + b^p)^(1/p), their maximum for p = inf, sum for p = 1.

    Args:
        one_s: the seconds of the one, per row, above 0.
        other_s: the seconds of the other, per row, above 0.
        joint: p, 1 or more.
    """
    longer = np.maximum(one_s, other_s)
    if np.isinf(joint):
        return longer
    shorter = np.minimum(one_s, other_s)
    return longer * (1 + (shorter / longer) ** joint) ** (1 / joint)


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


def entry_pairs(tokens: int, entry: int, most: float = np.inf) -> float:
    """Pairs of causal queries and keys that stand for `entry` tokens each, complete ones only.

    The sum over i = 1 ... tokens of min(i // entry, most).
    With t = tokens // e whole entries, i = 1 ... tokens: e times the sum of min(j, most) over j < t, and
    (tokens - e t + 1) times min(t, most).

    Args:
        tokens: the number of tokens of the sequence.
        entry: tokens that a key stands for.
        most: keys that a query sees.
    """
    whole = tokens // entry
    seen = min(float(max(whole - 1, 0)), most)
    before = seen * (seen + 1) / 2 + (max(whole - 1, 0) - seen) * (most if np.isfinite(most) else 0.0)
    return entry * before + (tokens - entry * whole + 1) * min(float(whole), most)


def flash_attention_s(
    shape: AttentionShape, *, backward: bool, roof: Roof, blocks: AttentionBlocks, element_bytes: Column
) -> Amount:
    """Seconds of fused attention in one direction: max(compute, memory) + launch.

    Work: two products forward, qk_dim + v_dim multiply-adds per pair; five backward (scores again, dV, dP, dQ, dK),
    3 qk_dim + 2 v_dim, which is 2.5 times forward for equal dims. Compute, with d = (qk_dim + v_dim) / 2:
    2 (batch heads (pairs + keys_half query_len) + tail units longest) multiply_adds (1 + dim_half / d) / (peak *
    max_fraction). The second is the wait for the last block of queries, whose longest have the keys of twice the mean
    query, and no more than there are: longest = min(queries, query_len) (min(2 pairs / query_len, key_len) +
    keys_half). Work handed out longest first ends within one such block of its mean.
    Memory: queries, keys, values and output once forward, 2.5 times that backward.

    The exponentials cost each pair the same whatever d is: this is dim_half, in head dims. Each query pays for the
    start and end of its block and for the masked half of the tile on the diagonal: this is keys_half, in keys.

    Args:
        shape: the shape of the queries, keys and heads.
        backward: the backward pass instead of the forward.
        roof: the roof of the device, in this direction, for long sequences and wide heads.
        blocks: how the kernel cuts queries.
        element_bytes: the bytes per element of queries, keys, values and output.

    Returns:
        Seconds, per row.

    Source: Dao, "FlashAttention-2", 2023 (five products backward, rates by head dim and length); Shah et al.,
    "FlashAttention-3", 2024, section 3.2 (exponentials take half as long as the products at head dim 128); Graham,
    "Bounds on multiprocessing timing anomalies", 1969 (the last block).
    """
    width, query_len = shape.qk_dim + shape.v_dim, shape.query_len
    multiply_adds = 3 * shape.qk_dim + 2 * shape.v_dim if backward else width
    softmax_factor = 1 + 2 * blocks.dim_half / width
    most_keys = np.minimum(2 * shape.pairs / query_len, shape.key_len) + blocks.keys_half
    waited = (blocks.tail * blocks.units) * np.minimum(blocks.queries, query_len) * most_keys
    pairs = shape.batch * shape.heads * (shape.pairs + blocks.keys_half * query_len) + waited
    work_flop = 2 * pairs * (multiply_adds * softmax_factor)
    rows = shape.heads * query_len + shape.kv_heads * shape.key_len
    traffic_bytes = shape.batch * width * rows * element_bytes
    memory_s = traffic_bytes * ((2.5 if backward else 1) / roof.memory_bytes_per_s)
    return np.maximum(work_flop / roof.flop_per_s, memory_s) + roof.launch_s


def materialised_attention_s(
    shape: AttentionShape, *, backward: bool, roof: Roof, softmax_passes: Column, score_bytes: Column
) -> Amount:
    """Seconds of attention that writes its scores to memory, in one direction: max(products) + softmax + launch.

    Products on the full square, the mask saves nothing: 2 e (qk_dim + v_dim) FLOP forward for e = batch heads query_len
    key_len scores, twice that backward, against writing the scores and reading the probabilities: 2 e score_bytes
    forward, 4 e score_bytes backward (P for dV, dP, dS for dQ and for dK). Softmax, mask and dropout between the
    products: softmax_passes e score_bytes.

    Args:
        shape: the shape of the queries, keys and heads; all pairs are computed whatever it says of them.
        backward: the backward pass instead of the forward.
        roof: the roof of the device for batched products.
        softmax_passes: times the scores are read or written between the products in this direction. Fused scale,
            mask and softmax: 2 forward, 3 backward; dropout: 2.5 more each way, its mask has a byte per score.
        score_bytes: the score bytes per score.

    Returns:
        Seconds, per row.

    Source: Dao et al., "FlashAttention", NeurIPS 2022, algorithm 0 and theorem 2; Korthikanti et al., "Reducing
    Activation Recomputation in Large Transformer Models", 2022, section 4 (what attention keeps and reads).
    """
    directions = 2 if backward else 1
    scores = shape.batch * shape.heads * shape.query_len * shape.key_len
    sweep_s = scores * (score_bytes / roof.memory_bytes_per_s)
    products_s = scores * ((2 * directions) * (shape.qk_dim + shape.v_dim) / roof.flop_per_s)
    return np.maximum(products_s, (2 * directions) * sweep_s) + softmax_passes * sweep_s + roof.launch_s


def vector_s(traffic_bytes: Column, *, memory_bytes_per_s: Column, max_fraction: Column, launch_s: Column) -> Amount:
    """Seconds of an operation that only moves bytes: traffic / (bandwidth * max_fraction) + launch.

    Args:
        traffic_bytes: read plus written, per row.
        memory_bytes_per_s: nominal memory bandwidth.
        max_fraction: the largest fraction of the bandwidth that streaming kernels reach, 0-1.
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
