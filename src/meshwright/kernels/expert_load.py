"""How full the fullest rank of an exchange is, for a popularity of experts: in blocks, placed by load, shadowed.

Shares are of all (token, expert) pairs of a group of ranks, a row per layer (or per draw of which experts are popular).
The fullest rank of a layer sets the time of its dispatch, of its products and of its combine.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil

import numpy as np

from meshwright.shapes import Float, Int

DRAWS = 64
"""Orders of the experts, and draws of tokens, that stand for all: the mean fullest rank is then known to about 2%."""

Shares = Float[np.ndarray, "layers experts"]
RankShares = Float[np.ndarray, "layers ranks"]


@lru_cache(maxsize=32)
def zipf_shares(experts: int, exponent: float, visited: float = 1.0) -> Shares:
    """Shares n^-S / sum of a layer, none above 1 / visited, the popular experts anywhere.

    Args:
        experts: the number of experts of a layer.
        exponent: S, at least 0.
        visited: experts that a token visits, none twice: what the law gives an expert beyond all tokens goes to the
            others in proportion.

    Returns:
        `DRAWS` orders of them, the same on every call.

    Source: Zipf's law; measured for MoE layers by He et al. 2022 (FasterMoE, PPoPP), section 2.3.
    """
    law = np.arange(1, experts + 1, dtype=float) ** -exponent
    law = _no_more_than(1.0 / visited, law / law.sum())
    random = np.random.default_rng(20220402)
    return np.stack([law[random.permutation(experts)] for _ in range(DRAWS)])


def _no_more_than(most: float, law: Float[np.ndarray, "experts"]) -> Float[np.ndarray, "experts"]:
    """Falling shares cut off at a largest one; the rest keep their proportions and add up to what is left."""
    if law[0] <= most:
        return law
    if law.size * most <= 1.0:
        return np.full(law.size, 1.0 / law.size)
    for full in range(law.size):
        rest = law[full:] * (1.0 - full * most) / law[full:].sum()
        if rest[0] <= most * (1 + 1e-12):
            return np.concatenate([np.full(full, most), rest])
    return law


def counted_shares(counts: tuple[tuple[float, ...], ...]) -> Shares:
    """Counted tokens as shares of their layer."""
    tokens = np.asarray(counts, dtype=float)
    return np.asarray(tokens / tokens.sum(axis=1, keepdims=True))


def placed_by_load(loads: Shares, ranks: int) -> Int[np.ndarray, "layers experts"]:
    """Rank of each expert: the most loaded first, each to the least loaded rank with a free slot (LPT with slots).

    Args:
        loads: the loads of experts, per layer.
        ranks: the number of ranks of equal slots, experts / ranks of them each; the number divides that of experts.

    Returns:
        Ranks per layer and expert, in blocks where that leaves the fullest rank less full.

    Source: Zhai et al. 2023 (SmartMoE, ATC), section 5; Graham 1969 for the bound of LPT.
    """
    layers, experts = loads.shape
    slots, rows = ceil(experts / ranks), np.arange(layers)
    held, filled = np.zeros((layers, ranks)), np.zeros((layers, ranks), dtype=int)
    found = np.zeros((layers, experts), dtype=int)
    for expert in np.argsort(-loads, axis=1, kind="stable").T:
        rank = np.where(filled < slots, held, np.inf).argmin(axis=1)
        held[rows, rank] += loads[rows, expert]
        filled[rows, rank] += 1
        found[rows, expert] = rank
    blocks = np.arange(experts) // slots
    in_blocks = np.pad(loads, ((0, 0), (0, ranks * slots - experts))).reshape(layers, ranks, slots).sum(axis=2)
    worse = held.max(axis=1) > in_blocks.max(axis=1)
    return np.where(worse[:, None], blocks, found)


@lru_cache(maxsize=8)
def _noise(ranks: int) -> Float[np.ndarray, "draws ranks"]:
    return np.random.default_rng(20220403).standard_normal((DRAWS, ranks))


def rank_shares(
    shares: Shares, ranks: int, *, shadowed: int = 0, placed: bool = False
) -> tuple[RankShares, RankShares]:
    """Shares that arrive at each rank over the network, and that each rank computes.

    Args:
        shares: the shares of experts, per layer.
        ranks: the number of ranks in blocks of equally many experts, the last one of what is left.
        shadowed: hottest experts of each layer that every rank holds and computes for its own tokens.
        placed: experts are placed by load instead of in blocks.

    Returns:
        Both per layer and rank; the first sums to what is not shadowed, the second to 1.
    """
    layers, experts = shares.shape
    hot = np.zeros_like(shares, dtype=bool)
    if shadowed:
        hottest = np.argsort(-shares, axis=1, kind="stable")[:, : min(shadowed, experts)]
        np.put_along_axis(hot, hottest, True, axis=1)
    cold = np.where(hot, 0.0, shares)
    if placed:
        arriving = np.zeros((layers, ranks))
        np.add.at(arriving, (np.arange(layers)[:, None], placed_by_load(shares, ranks)), cold)
    else:
        arriving = np.pad(cold, ((0, 0), (0, -experts % ranks))).reshape(layers, ranks, -1).sum(axis=2)
    return arriving, arriving + (shares - cold).sum(axis=1, keepdims=True) / ranks


def fullest_over_mean(shares: Shares, *, drawn: float = np.inf) -> float:
    """Mean over layers of the fullest rank's share over 1 / ranks; tokens are counted, or drawn from the shares.

    Args:
        shares: the shares per layer and rank.
        drawn: (token, expert) pairs that are drawn from the shares, infinite where they are counted. A rank's number is
            then about normal with variance N p (1 - p), and the expected maximum is taken over `DRAWS` draws.

    Returns:
        A ratio at least as large as the shares alone give.
    """
    ranks = shares.shape[1]
    still = float(shares.max(axis=1).mean())
    if not np.isfinite(drawn):
        return still * ranks
    spread = np.sqrt(shares * (1 - np.minimum(shares, 1.0)) / max(drawn, 1.0))
    layers = np.resize(np.arange(len(shares)), max(DRAWS, len(shares)))
    noise = np.resize(_noise(ranks), (len(layers), ranks))
    return max(float((shares[layers] + spread[layers] * noise).max(axis=1).mean()), still) * ranks


def dropped_share(shares: Shares, capacity_factor: float) -> float:
    """Mean share of (token, expert) pairs beyond the room of their expert: sum of max(0, p - c / E).

    Args:
        shares: the shares of experts, per layer.
        capacity_factor: c: an expert takes c times its balanced share.

    Source: Lepikhin et al. 2020 (GShard), section 2.2; Fedus et al. 2021 (Switch Transformers), equation 3.
    """
    return float(np.maximum(shares - capacity_factor / shares.shape[1], 0.0).sum(axis=1).mean())


def capacity(tokens: int, experts: int, top_k: int, factor: float, *, form: str = "gshard") -> int:
    """Tokens that an expert has room for, as gates count them.

    Args:
        tokens: the number of tokens of a group.
        experts: the number of experts of the layer.
        top_k: experts of a token.
        factor: c, at least 0.
        form: `gshard` and `switch`: ceil(c k T / E) (Megatron-Core and DeepSpeed count likewise); `fastmoe-gshard`:
            ceil(c T) k // E; `fastmoe-switch`: ceil(c T / E); `expert-choice`: the c k T / E tokens that an expert
            picks, which drops none for want of room and may leave tokens without experts.

    Source: NVIDIA/Megatron-LM moe_utils.py; deepspeed sharded_moe.py; laekov/fastmoe gates; Zhou et al. 2022 (Expert
        Choice, arXiv 2202.09368), section 3.2.
    """
    if form == "fastmoe-gshard":
        return ceil(factor * tokens) * top_k // experts
    if form == "fastmoe-switch":
        return ceil(factor * tokens / experts)
    return ceil(factor * top_k * tokens / experts)
