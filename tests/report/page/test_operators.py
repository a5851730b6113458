"""The operators' data: rows that sum to compute, ordered by time above the speed of light, each with a basis."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.report.page.views.operators import view_data
from tests.report.page.sources import NAMES, source


@pytest.mark.parametrize("name", NAMES)
def test_rows_sum_to_the_compute_of_the_stages_of_each_device(name: str) -> None:
    answer = source(name)
    plan = answer.plans[0]
    picture = plan.picture()
    for group in view_data(plan, answer)["groups"]:
        own = np.array([island == group["name"] for island in picture.islands])
        compute_s = (picture.parts_s["compute"] + picture.parts_s["recompute"])[own].mean()
        assert sum(row["seconds"] for row in group["operators"]) == pytest.approx(compute_s)
        above = [row["above_s"] for row in group["operators"]]
        assert above == sorted(above, reverse=True)
        assert {row["basis"] for row in group["operators"]} <= {"datasheet", "fitted", "literature", "measured"}


def test_experts_exchange_over_the_link_they_leave_their_domain_by() -> None:
    answer = source("experts")
    (group,) = view_data(answer.plans[0], answer)["groups"]
    exchanged = [row for row in group["messages"] if row["category"] == "ep"]
    assert exchanged
    assert {(row["ranks"], row["link"], row["collective"]) for row in exchanged} == {(64, 1, "all-to-all")}


def test_an_operator_is_as_sure_as_the_share_of_the_peak_that_kernels_reach() -> None:
    answer = source("dense")
    (group,) = view_data(answer.plans[0], answer)["groups"]
    said = next(one for one in answer.document["inputs"]["assumptions"] if one["name"] == "H100 kernels")
    assert {row["basis"] for row in group["operators"]} == {said["basis"]} == {"fitted"}
