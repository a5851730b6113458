"""Which things are alike: complete linkage over distances, cut at any tolerance.

    distance of two clusters = the largest distance of a pair across them

so that in a cluster cut at a tolerance every two members are within it, and a larger tolerance only ever joins
clusters. Apart from islands: distances in, labels out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Float, Int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linkage:
    """All merges of n things, lowest first."""

    first: Int[np.ndarray, "merges"]
    """A member of the one cluster."""
    second: Int[np.ndarray, "merges"]
    """A member of the other."""
    height: Float[np.ndarray, "merges"]
    """Largest distance inside the cluster they make."""

    def labels(self, tolerance: float) -> Int[np.ndarray, "things"]:
        """Cluster of each thing at a tolerance: the number of its first member."""
        label = np.arange(len(self.height) + 1)
        below = self.height <= tolerance
        for one, other in zip(self.first[below], self.second[below], strict=True):
            low, high = sorted((label[one], label[other]))
            label[label == high] = low
        return label


def ratio_apart(columns: Sequence[Float[np.ndarray, "things"]]) -> Float[np.ndarray, "things things"]:
    """How far apart things are: the largest of (larger / smaller - 1) over columns.

    Args:
        columns: one per property, above 0.

    Returns:
        symmetric, 0 on the diagonal; infinite where a ratio is above the largest number.
    """
    apart = np.zeros((len(columns[0]), len(columns[0])))
    with np.errstate(over="ignore"):
        for column in columns:
            apart = np.maximum(apart, np.maximum.outer(column, column) / np.minimum.outer(column, column) - 1)
    return apart


def links_apart(bandwidth: Float[np.ndarray, "things things"]) -> Float[np.ndarray, "things things"]:
    """How much slower the link of two things is than the best link either has: max(best_i, best_j) / b_ij - 1.

    Args:
        bandwidth: symmetric, 0 or more; the diagonal does not count.

    Returns:
        symmetric, infinite where nothing joins two things, 0 on the diagonal.
    """
    between = bandwidth.astype(float).copy()
    np.fill_diagonal(between, 0.0)
    best = between.max(axis=1, initial=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.where(between > 0, np.maximum.outer(best, best) / between - 1, np.inf)
    np.fill_diagonal(apart, 0.0)
    return apart


def linkage(distance: Float[np.ndarray, "things things"]) -> Linkage:
    """Complete linkage by chains of nearest neighbours, n^2 operations on columns.

    Args:
        distance: symmetric, 0 or more, may be infinite. Of equally near neighbours the first is taken.

    Returns:
        n - 1 merges.

    Source: Murtagh, "A survey of recent advances in hierarchical clustering algorithms", The Computer Journal 1983
    (nearest-neighbour chains; complete linkage is reducible, so that chains give the greedy hierarchy).
    """
    number = len(distance)
    apart = distance.astype(float).copy()
    np.fill_diagonal(apart, np.nan)
    alive = np.ones(number, dtype=bool)
    merges: list[tuple[int, int, float]] = []
    chain: list[int] = []
    while len(merges) < number - 1:
        if not chain:
            chain.append(int(np.argmax(alive)))
        here = chain[-1]
        row = np.where(alive, apart[here], np.nan)
        row[here] = np.nan
        nearest = int(np.nanargmin(row))
        # The one before wins a tie, so that chains end.
        if len(chain) > 1 and row[chain[-2]] <= row[nearest]:
            nearest = chain[-2]
        if len(chain) == 1 or nearest != chain[-2]:
            chain.append(nearest)
            continue
        keep, gone = sorted((here, nearest))
        merges.append((keep, gone, float(row[nearest])))
        del chain[-2:]
        alive[gone] = False
        apart[keep] = np.maximum(apart[keep], apart[gone])
        apart[:, keep] = apart[keep]
        apart[keep, keep] = np.nan
    merges.sort(key=lambda merge: merge[2])
    return Linkage(
        first=np.array([merge[0] for merge in merges], dtype=np.int64),
        second=np.array([merge[1] for merge in merges], dtype=np.int64),
        height=np.array([merge[2] for merge in merges], dtype=np.float64),
    )
