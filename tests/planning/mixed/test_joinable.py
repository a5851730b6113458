"""Devices of two vendors share no communicator: they train together only by a transport that is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import plan
from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.clusters import read_cluster
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import device
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


def test_a_transport_joins_two_vendors_and_nobody_else() -> None:
    cluster = resolve_gpus("8xH100,8xMI300X,8xA100-80")
    links = tuple(
        replace(link, transport="ucx") if set(link.between) == {"A100-80", "MI300X"} else link for link in cluster.links
    )
    # Stages on H100 and MI300X might be neighbours in a pipeline over all three.
    assert sets(replace(cluster, links=links)) == [{"H100", "A100-80"}, {"MI300X", "A100-80"}]


def test_a_speed_alone_joins_nobody() -> None:
    cluster = resolve_gpus("8xH100,8xMI300X")
    measured = tuple(replace(link, basis="measured") for link in cluster.links)
    assert sets(replace(cluster, links=measured)) == [{"H100"}, {"MI300X"}]


def test_devices_of_another_vendor_stay_idle_and_the_answer_says_why() -> None:
    found = plan("llama-3.2-1b", gpus="8xH100,8xMI300X", global_batch=64, top=1)
    assert len({stage.group for stage in found.best.estimate.stages}) == 1
    assert "cannot train together" in str(found)
    assert any("share no communicator" in line for line in found.warnings)


def both(tmp_path: Path, link: str) -> str:
    file = tmp_path / "both.toml"
    groups = ['[[group]]\ndevice = "H100"\nnodes = 1', '[[group]]\ndevice = "MI300X"\nnodes = 1']
    file.write_text("\n".join([*groups, f'[[link]]\nbetween = ["H100", "MI300X"]\n{link}\n']), "utf-8")
    return str(file)


def test_by_a_transport_they_are_planned_together(tmp_path: Path) -> None:
    found = plan("llama-3.1-8b", cluster=both(tmp_path, 'gb_s = 25\ntransport = "ucx"'), global_batch=256, top=1)
    assert len({stage.group for stage in found.best.estimate.stages}) == 2
    assert found.mixing is not None
    assert all(
        "NCCL and RCCL share none; traffic between them goes by ucx" in why for _, why in found.mixing.frameworks
    )
    assert found.best.job.cluster.links[0].transport == "ucx"
    with pytest.raises(UnsupportedError, match="two collective libraries"):
        found.best.export("megatron")


def test_through_the_hosts_a_link_is_slower_than_the_fabric(tmp_path: Path) -> None:
    direct, staged = (
        read_cluster(both(tmp_path, f'transport = "{name}"'), device).links[0] for name in ("ucx", "gloo")
    )
    assert staged.bandwidth_bytes_per_s < direct.bandwidth_bytes_per_s / 2
    assert staged.latency_s > direct.latency_s


@pytest.mark.parametrize(
    ("groups", "name", "said"),
    [
        ("H100 MI300X", "ucxx", "did you mean ucx"),
        ("H100 TPU-v5p", "ucx", "name one that carries both: gloo"),
    ],
)
def test_a_transport_that_cannot_carry_both_is_refused(tmp_path: Path, groups: str, name: str, said: str) -> None:
    first, second = groups.split()
    file = tmp_path / "two.toml"
    tables = [f'[[group]]\ndevice = "{one}"\nnodes = 1\n' for one in (first, second)]
    file.write_text(
        "\n".join([*tables, f'[[link]]\nbetween = ["{first}", "{second}"]\ntransport = "{name}"\n']), "utf-8"
    )
    with pytest.raises(InputError, match="transport") as refused:
        read_cluster(file, device)
    assert said in str(refused.value)
