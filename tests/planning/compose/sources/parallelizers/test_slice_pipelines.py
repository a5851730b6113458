"""Which of two partial pipelines is kept, against the definition; a pipeline's time against its stages, one by one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.compose.sources.parallelizers.slice_pipelines import _joined, _no_worse

COSTS = list(itertools.product((0.0, 1.0), repeat=3))
TIMES = st.floats(0.0, 10.0)


@pytest.mark.parametrize("one", COSTS)
@pytest.mark.parametrize("other", COSTS)
def test_a_cost_is_no_worse_where_none_of_its_parts_is(one: tuple[float, ...], other: tuple[float, ...]) -> None:
    assert _no_worse(one, other) == (not any(own > its for own, its in zip(one, other, strict=True)))


@given(st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=5))
def test_stages_in_front_fill_the_pipeline_and_the_slowest_sets_its_pace(stages: list[tuple[float, ...]]) -> None:
    cost = (0.0, 0.0, 0.0)
    for number, (busy_s, sync_s, hop_s) in enumerate(stages, start=1):
        cost = _joined(cost, busy_s, sync_s, hop_s, number)
    fills = list(itertools.accumulate(busy_s + 2 * hop_s for busy_s, _, hop_s in stages))
    assert cost[0] == pytest.approx(fills[-1])
    # No micro-batch follows the last before it has come through, shared by as many as there are stages to hold them.
    rounds = [fill / number for number, fill in enumerate(fills, start=1)]
    assert cost[1] == pytest.approx(max(*rounds, *(busy_s for busy_s, _, _ in stages)))
    assert cost[2] == max(sync_s for _, sync_s, _ in stages)
