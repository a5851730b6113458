"""Devices of two vendors share no communicator: they train together only over a link that is stated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import plan
from meshwright.library.clusters import resolve_gpus
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.mixed.joinable import joinable
from meshwright.specs.cluster import ClusterSpec


def parts(cluster: ClusterSpec) -> list[IslandPart]:
    return [IslandPart(number, group.devices) for number, group in enumerate(cluster.groups)]


def sets(cluster: ClusterSpec) -> list[set[str]]:
    return [{cluster.groups[part.group].name for part in one} for one in joinable(cluster, parts(cluster))]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ("8xH100,8xA100-80", [{"H100", "A100-80"}]),
        ("8xH100,8xMI300X", [{"H100"}, {"MI300X"}]),
        ("8xH100,8xMI300X,8xA100-80", [{"H100", "A100-80"}, {"MI300X"}]),
        ("8xMI250X,8xMI300X,8xTPU-v5p", [{"MI250X", "MI300X"}, {"TPU-v5p"}]),
    ],
)
def test_kinds_of_one_vendor_talk_to_each_other(gpus: str, expected: list[set[str]]) -> None:
    assert sorted(map(sorted, sets(resolve_gpus(gpus)))) == sorted(map(sorted, expected))


def test_a_stated_link_joins_two_vendors() -> None:
    cluster = resolve_gpus("8xH100,8xMI300X,8xA100-80")
    links = tuple(
        replace(link, basis="measured") if set(link.between) == {"A100-80", "MI300X"} else link
        for link in cluster.links
    )
    assert sets(replace(cluster, links=links)) == [{"H100", "MI300X", "A100-80"}]


def test_devices_of_another_vendor_stay_idle_and_the_answer_says_why() -> None:
    found = plan("llama-3.2-1b", gpus="8xH100,8xMI300X", global_batch=64, top=1)
    assert len({stage.group for stage in found.best.estimate.stages}) == 1
    assert "cannot train together" in str(found)
    assert any("share no communicator" in line for line in found.warnings)


def test_over_a_stated_link_they_are_planned_together(tmp_path: Path) -> None:
    file = tmp_path / "both.toml"
    file.write_text(
        "\n".join(
            [
                '[[group]]\ndevice = "H100"\nnodes = 1',
                '[[group]]\ndevice = "MI300X"\nnodes = 1',
                '[[link]]\nbetween = ["H100", "MI300X"]\ngb_s = 25\nlatency_us = 20\n',
            ]
        ),
        "utf-8",
    )
    found = plan("llama-3.1-8b", cluster=str(file), global_batch=256, top=1)
    assert len({stage.group for stage in found.best.estimate.stages}) == 2
