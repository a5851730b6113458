"""The cluster map: used devices in one stage each, groups that leave their domain counted, links as described."""

from __future__ import annotations

from itertools import combinations

import pytest

from meshwright import estimate
from meshwright.app.pages.source import source_of
from meshwright.report.page.shell import asset
from meshwright.report.page.views.cluster import view_data
from tests.report.page.chromium import chromium
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


def group(name: str, nodes: int, first: int) -> dict[str, object]:
    """A group of nodes of eight as the map takes it."""
    domain = {"name": "NVLink4", "size": 8, "bytes_per_s": 450e9, "basis": "datasheet"}
    return {"name": name, "device": name, "nodes": nodes, "per_node": 8, "first": first, "domains": [domain]}


def test_small_groups_stand_beside_each_other_and_large_ones_take_a_row() -> None:
    few, many = [group(f"K{at}", 1, 8 * at) for at in range(8)], group("H100", 24, 64)
    laid = """([text, groups, width, devices]) => {
      const { layout } = new Function(`${text.replaceAll("export ", "")}; return { layout };`)();
      const boxes = layout({ groups }, width, devices).boxes.filter(({ group }) => group);
      return boxes.map(({ x, y, wide, high }) => [x, y, wide, high]);
    }"""
    with chromium() as shown:
        eight = shown.evaluate(laid, [asset("boxes.js"), few, 880, 64])
        beside_large = shown.evaluate(laid, [asset("boxes.js"), [*few[:3], many], 880, 256])
        narrow = shown.evaluate(laid, [asset("boxes.js"), few, 300, 64])
    assert [sum(box[1] == y for box in eight) for y in sorted({box[1] for box in eight})] == [4, 4]
    assert max(x + wide for x, _, wide, _ in eight) <= 880
    assert len({y for _, y, _, _ in beside_large[:3]}) == 1
    assert beside_large[3][2] > 2 * beside_large[0][2]
    assert len({y for _, y, _, _ in narrow}) == 8
    for boxes in (eight, beside_large, narrow):
        for (x, y, wide, high), (left, top, _, _) in combinations(boxes, 2):
            assert left >= x + wide or top >= y + high or left < x
