"""Which paths through a pipeline bound its plans."""

from __future__ import annotations

import numpy as np

from meshwright.schedules import schedule_named
from meshwright.search.paths import longest_of


def test_the_longest_path_by_layers_stays_beside_the_longest_by_flop() -> None:
    bound = schedule_named("1f1b").path_bound(4, 32, 1)
    lengths = bound.once + 32 * bound.each
    flop, layers = np.array([[9.0], [8.0], [8.0], [12.0]]), np.array([[9.0], [8.0], [8.0], [1.0]])
    by_flop, by_both = longest_of(lengths, flop), longest_of(lengths, flop, layers)
    assert set(by_flop) < set(by_both)
    # Where every layer takes as long, whatever its FLOP, the last stage is idle and the first one is the slow one.
    seconds = np.stack([layers, 2 * layers, np.zeros_like(layers)])
    longest = (lengths * seconds).sum(axis=(1, 2, 3))
    assert longest[by_both].max() == longest.max() > 1.2 * longest[by_flop].max()
