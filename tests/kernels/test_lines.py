"""Lines that are kept for few groups are drawn once, and nobody can change them."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.kernels.collectives import all_gather_lines, all_reduce_lines
from meshwright.kernels.lines import FEW_GROUPS, LevelRates

RATES = (LevelRates(bandwidth_bytes_per_s=4e11, efficiency=0.8, latency_s=2e-6, base_latency_s=5e-6),)


@pytest.mark.parametrize("draw", [all_gather_lines, all_reduce_lines])
def test_what_is_kept_is_drawn_once_and_cannot_be_written(draw: object) -> None:
    assert callable(draw)
    few, many = np.full(3, 4.0), np.full(FEW_GROUPS + 1, 4.0)
    first = draw(inside=(few,), rates=RATES)
    assert draw(inside=(few.copy(),), rates=RATES) is first
    assert draw(inside=(many,), rates=RATES) is not draw(inside=(many,), rates=RATES)
    for kept in (first.latency_s, first.s_per_byte):
        with pytest.raises(ValueError, match="read-only"):
            kept[0] = 0.0
