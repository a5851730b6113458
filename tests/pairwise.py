"""Few of many cases, so that every two levels of two factors that ever meet do meet."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations

import numpy as np


def pairwise(
    cases: Sequence[Mapping[str, Hashable]], factors: Sequence[str], costs: Sequence[float], alone: Sequence[str] = ()
) -> list[int]:
    """A cover of all pairs, greedily: the case with the most pairs that are still missing, for its cost, comes next.

    Args:
        cases: levels by factor; what cannot be is not among them.
        factors: whose pairs are covered.
        costs: of each case.
        alone: factors whose levels are all taken, with whatever else.

    Returns:
        Places of the chosen cases, in the order of choice.
    """
    wanted = [*combinations(factors, 2), *((factor,) for factor in alone)]
    columns = []
    first = 0
    for names in wanted:
        levels = [tuple(case[name] for name in names) for case in cases]
        numbers = {level: first + number for number, level in enumerate(dict.fromkeys(levels))}
        columns.append([numbers[level] for level in levels])
        first += len(numbers)
    pairs, missing = np.array(columns).T, np.ones(first, dtype=bool)
    chosen: list[int] = []
    while missing.any():
        best = int(np.argmax(missing[pairs].sum(axis=1) / np.asarray(costs)))
        chosen.append(best)
        missing[pairs[best]] = False
    return chosen
