"""Descriptions of all kinds: recognised, written as cluster files, never an exception."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.app.clusters import show_cluster
from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.cluster import assumptions
from meshwright.formats.cluster_file import cluster_from_table
from meshwright.formats.clusters import FORMATS, read_cluster, read_description
from meshwright.formats.clusters.write import cluster_file
from meshwright.formats.gpus import parse_gpus
from meshwright.library.devices import device
from meshwright.specs.cluster import ClusterSpec
from tests.formats.clusters.descriptions import DATA, groups, refused, written

KINDS = {
    "nodes.csv": "bandwidth matrix",
    "gpus.csv": "bandwidth matrix",
    "topo-h100.txt": "nvidia-smi topo -m",
    "topo-two-nodes.txt": "nvidia-smi topo -m",
    "topo-cube-mesh.txt": "nvidia-smi topo -m",
    "scontrol.txt": "scontrol show node",
    "sinfo.txt": "sinfo",
    "nodes.json": "kubectl get nodes -o json",
}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_known_by_what_is_in_it(name: str, tmp_path: Path) -> None:
    text = (DATA / name).read_text()
    assert [form.name for form in FORMATS if form.holds(text)] == [KINDS[name]]
    without_ending = written(tmp_path, text)
    assert groups(read_cluster(without_ending, device)) == groups(read_cluster(DATA / name, device))


@pytest.mark.parametrize("name", KINDS)
def test_what_is_read_can_be_written_as_a_cluster_file_and_read_again(name: str, tmp_path: Path) -> None:
    description = read_description(DATA / name, device)
    cluster = cluster_from_table(description.table, device, notes=description.notes)
    again = read_cluster(written(tmp_path, cluster_file(description, cluster), "again.toml"), device)
    assert again.groups == cluster.groups
    assert again.links == cluster.links


def test_unlike_devices_of_one_host_are_joined_alike_however_they_are_said(tmp_path: Path) -> None:
    """By `+`, as nvidia-smi lists them, and as a file made of either."""
    listed = "GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-1)\nGPU 1: NVIDIA GeForce RTX 3090 (UUID: GPU-2)\n"
    shown, asked = read_cluster(written(tmp_path, listed), device), parse_gpus("1xRTX4090+1xRTX3090", device)

    def facts(cluster: ClusterSpec) -> list[object]:
        return [
            (group.device.name, group.devices_per_node, [domain.size for domain in group.domains])
            for group in cluster.groups
        ] + [
            (one.between, one.bandwidth_bytes_per_s, one.efficiency, round(one.latency_s, 12), one.basis)
            for one in cluster.links
        ]

    assert facts(shown) == facts(asked)
    assert any("the slower of both slots" in one.value for one in assumptions(shown))
    for text in (
        show_cluster("1xRTX4090+1xRTX3090").to_toml(),
        show_cluster(tmp_path / "given").to_toml(),
    ):
        again = read_cluster(written(tmp_path, text, "again.toml"), device)
        assert facts(again) == facts(asked)


@pytest.mark.parametrize("name", ["scontrol.txt", "nodes.json"])
def test_removing_the_marks_before_assumed_keys_changes_no_number(name: str, tmp_path: Path) -> None:
    description = read_description(DATA / name, device)
    cluster = cluster_from_table(description.table, device)
    keys = ("intra_gb_s", "host_gb_s", "inter_gb_s", "latency_us")
    lines = cluster_file(description, cluster).splitlines()
    stated = [line.removeprefix("# ") if line.startswith(tuple(f"# {key}" for key in keys)) else line for line in lines]
    assert stated != lines
    again = read_cluster(written(tmp_path, "\n".join(stated), "again.toml"), device)
    for group, was in zip(again.groups, cluster.groups, strict=True):
        assert [(d.size, d.bandwidth_bytes_per_s, d.efficiency, d.latency_s) for d in group.domains] == [
            (d.size, d.bandwidth_bytes_per_s, d.efficiency, d.latency_s) for d in was.domains
        ]


@pytest.mark.parametrize("name", KINDS)
def test_what_the_description_does_not_say_is_among_the_assumptions(name: str) -> None:
    cluster = read_cluster(DATA / name, device)
    assert cluster.notes
    assert set(cluster.notes) <= {one.value for one in assumptions(cluster)}


def test_a_file_of_no_known_kind_names_the_kinds(tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, "8 machines with H100\n")
    assert "nvidia-smi topo -m" in problem
    assert "sinfo" in problem


@given(st.text(max_size=200))
@settings(max_examples=60, deadline=None)
def test_no_text_breaks_a_reader(text: str) -> None:
    from meshwright.formats.clusters.base import ClusterText

    for form in FORMATS:
        if form.holds(text):
            try:
                form.read(ClusterText(text=text, lookup=device, tolerance=0.1))
            except (InputError, UnsupportedError):
                continue


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_damage_breaks_a_reader(data: st.DataObject) -> None:
    from meshwright.formats.clusters.base import ClusterText

    name = data.draw(st.sampled_from(sorted(KINDS)))
    text = (DATA / name).read_text()
    at, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    text = text[:at] + data.draw(st.text('0123,:[]{}()\t\n GPNVX"-', max_size=6)) + text[min(end, at + 40) :]
    for form in FORMATS:
        if form.holds(text):
            try:
                description = form.read(ClusterText(text=text, lookup=device, tolerance=0.1))
                cluster_from_table(description.table, device)
            except (InputError, UnsupportedError):
                continue
