from __future__ import annotations

from itertools import product

import pytest

from meshwright.planning.compose.sources.profiles.pipeline_set import (
    EqualPipelines,
    PipelineShape,
    ShapeSet,
    StageShape,
)
from meshwright.planning.compose.sources.profiles.rests import Rests, rests
from meshwright.planning.compose.sources.profiles.set_price import SetPricer
from meshwright.planning.compose.sources.profiles.shares import shares
from tests.planning.compose.sources.profiles.test_search import tiny_costs

SMALLER = [(4, 1.9), (2, 1.2), (1, 0.7)]


def table() -> Rests:
    return rests(8, 3.5, 0.5, SMALLER)


def test_a_rest_takes_the_cheapest_smaller_micro_batches() -> None:
    best = [0.0] + [float("inf")] * 7
    sizes = [*SMALLER, (8, 3.5)]
    for chosen in (c for n in range(1, 8) for c in product(sizes, repeat=min(n, 4))):
        sequences, seconds = sum(s for s, _ in chosen), sum(t for _, t in chosen)
        for rest in range(1, min(sequences, 7) + 1):
            best[rest] = min(best[rest], seconds)
    assert table().seconds == pytest.approx(best)


def test_what_is_done_by_a_time_is_the_most_whose_time_it_is() -> None:
    one = table()
    for end_s in (0.2, 0.5, 1.1, 1.3, 3.9, 4.0, 4.8, 11.1, 50.0):
        done, wait_s = one.by(end_s)
        assert one.time_s(done) <= end_s + 1e-9
        assert one.time_s(done + 1) > end_s
        assert one.by(end_s + wait_s + 1e-9)[0] > done


def test_sizes_are_the_micro_batches_of_the_time() -> None:
    one = table()
    each_s = dict(SMALLER) | {8: 3.5}
    for sequences in range(1, 30):
        sizes = one.sizes(sequences)
        assert sum(sizes) >= sequences > sum(sizes) - sizes[-1]
        assert one.time_s(sequences) == pytest.approx(0.5 + sum(each_s[size] for size in sizes))


@pytest.mark.parametrize("batch", [7, 23, 24, 61])
def test_all_pipelines_together_train_exactly_the_batch(batch: int) -> None:
    pricer = SetPricer(tiny_costs(2, 4), batch)
    quick = PipelineShape(4, (StageShape("Alpha-32", 1, 1, 6),))
    slow = PipelineShape(2, (StageShape("Beta-12", 1, 1, 3), StageShape("Beta-12", 1, 1, 3)))
    one_set = ShapeSet((EqualPipelines(quick, 2), EqualPipelines(slow, 2)))
    time = pricer.price(one_set)
    assert time is not None
    given = shares(one_set, time, pricer)
    assert sum(sum(sizes) for each in given for sizes in each) == batch
    ends = [pricer.rests(p.shape).time_s(sum(s)) for p, each in zip(one_set.parts, given, strict=True) for s in each]
    assert max(ends) <= time.pipeline_s * (1 + 1e-9)
