"""What a search over one space takes from it before it looks at a plan."""

from __future__ import annotations

import pytest

from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.search.one_space import SpaceSearch
from meshwright.search.space import Space
from meshwright.specs.workload import Workload


def search_over(space: Space) -> SpaceSearch:
    workload = Workload(seq_len=2048, global_batch=64)
    return SpaceSearch(spec("llama-3-8b"), resolve_gpus("8xH100"), workload, space, 3, pareto=False)


def test_plans_leave_the_usual_reserve_but_where_they_may_fit_tightly() -> None:
    usual, tight = search_over(Space()), search_over(Space(tight=True))
    assert tight.limit_bytes == tight.hardware.memory_bytes
    assert usual.limit_bytes == pytest.approx((1.0 - TIGHT_SHARE) * tight.limit_bytes)


@pytest.mark.parametrize(
    ("pins", "only"),
    [
        ((), False),
        ((("schedule", ("zb-h1",)),), False),
        ((("pp", (1, 2)), ("schedule", ("zb-h1",))), False),
        ((("pp", (2, 4)), ("schedule", ("1f1b", "zb-h1"))), False),
        ((("pp", (2, 4)), ("schedule", ("zb-h1",))), True),
    ],
)
def test_plans_are_sketched_alone_where_all_have_several_workers_and_no_schedule_a_bound(
    pins: tuple[tuple[str, tuple[object, ...]], ...], only: bool
) -> None:
    assert search_over(Space(pins=pins)).sketched_only == only
