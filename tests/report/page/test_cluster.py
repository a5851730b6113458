"""The cluster map: used devices in one stage each, groups that leave their domain counted, links as described."""

from __future__ import annotations

import pytest

from meshwright import estimate
from meshwright.app.page import source_of
from meshwright.report.page.views.cluster import view_data
from tests.report.page.sources import NAMES, source


@pytest.mark.parametrize("name", NAMES)
def test_every_device_works_for_one_stage_of_its_own_group(name: str) -> None:
    answer = source(name)
    data = view_data(answer.plans[0], answer)
    groups = {group["name"]: group for group in data["groups"]}
    seen: list[int] = []
    for stage in data["stages"]:
        own = [device for first, last in stage["devices"] for device in range(first, last + 1)]
        group = groups[stage["group"]]
        assert all(0 <= device - group["first"] < group["nodes"] * group["per_node"] for device in own)
        assert all(len(own) % (size * stride) == 0 for _, size, stride in stage["kinds"])
        seen += own
    assert len(seen) == len(set(seen)) == answer.plans[0].job.plan.devices


def test_expert_groups_larger_than_a_domain_leave_it_and_the_answer_says_so() -> None:
    answer = source("experts")
    (warning,) = view_data(answer.plans[0], answer)["warnings"]
    assert (warning["kind"], warning["size"], warning["domain_size"]) == ("ep", 64, 8)
    assert warning["groups"] == warning["of"] == 2048 // 64
    assert answer.document["rank_map"]["warnings"][0].startswith("ep64 leaves its ")


def test_tensor_groups_of_two_nodes_leave_the_domain_of_one() -> None:
    answer = source_of(estimate("llama-3-8b", "tp16.dp2.z1.mbs1.gbs64", gpus="32xH100"))
    (warning,) = view_data(answer.plans[0], answer)["warnings"]
    assert (warning["kind"], warning["groups"], warning["of"]) == ("tp", 2, 2)


def test_links_between_kinds_say_where_their_speed_is_from() -> None:
    answer = source("mixed")
    data = view_data(answer.plans[0], answer)
    (link,) = data["links"]
    assert link["basis"] == "assumed"
    assert {group["device"] for group in data["groups"]} == {"H100", "A100-80"}
