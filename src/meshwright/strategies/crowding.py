"""How full the fullest rank of each strategy is under a load of experts, per row."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from meshwright.kernels.expert_load import counted_shares, fullest_over_mean, rank_shares, zipf_shares
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.expert_load import ExpertLoad

_SAME_DRAWS = 3
"""Digits of the number of drawn tokens that are told apart."""


class Crowding:
    """Fullest rank over the mean by ranks, drawn tokens, and what is done about hot experts; each worked out once."""

    def __init__(self, load: ExpertLoad) -> None:
        """Work out nothing yet.

        Args:
            load: the load of a model's experts.
        """
        self.drawn = load.zipf is not None
        self.shares = (
            counted_shares(load.counts) if load.zipf is None else zipf_shares(load.experts, load.zipf, load.visited)
        )
        self._known: dict[tuple[int, float, int, bool], tuple[float, float]] = {}

    def rows(
        self,
        ranks: Int[np.ndarray, "rows"],
        pairs: Float[np.ndarray, "rows"],
        shadowed: Int[np.ndarray, "rows"] | None,
        placed: Bool[np.ndarray, "rows"] | None,
    ) -> tuple[Float[np.ndarray, "rows"], Float[np.ndarray, "rows"]]:
        """What arrives at the fullest rank over the network, and what it computes, both over the mean of all tokens.

        Args:
            ranks: the ranks that share out the experts.
            pairs: (token, expert) pairs of all of them in a micro-batch.
            shadowed: hottest experts that every rank holds, None for none.
            placed: experts are placed by load, None where none are.
        """
        none = np.zeros(len(ranks), dtype=np.int64)
        hot = none if shadowed is None else shadowed
        even = none if placed is None else placed
        digits = 10.0 ** (np.floor(np.log10(np.maximum(pairs, 1.0))) - _SAME_DRAWS + 1)
        drawn = np.round(pairs / digits) * digits if self.drawn else np.zeros(len(ranks))
        keys, where = np.unique(np.stack([ranks, drawn, hot, even]), axis=1, return_inverse=True)
        found = [self._one(int(r), float(n), int(s), bool(p)) for r, n, s, p in keys.T.tolist()]
        both = np.array(found).reshape(-1, 2)[where.reshape(-1)]
        return both[:, 0], both[:, 1]

    def _one(self, ranks: int, pairs: float, shadowed: int, placed: bool) -> tuple[float, float]:
        key = ranks, pairs, shadowed, placed
        if key not in self._known:
            drawn = pairs if self.drawn else np.inf
            both = rank_shares(self.shares, ranks, shadowed=shadowed, placed=placed)
            arriving, computed = (fullest_over_mean(one, drawn=drawn) for one in both)
            self._known[key] = arriving, computed
        return self._known[key]


@lru_cache(maxsize=16)
def crowding_of(load: ExpertLoad) -> Crowding:
    """The crowding of a load, with all that was worked out of it."""
    return Crowding(load)
