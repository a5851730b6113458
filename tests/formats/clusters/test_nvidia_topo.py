"""Clusters from `nvidia-smi topo -m`."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.formats.clusters import read_cluster
from meshwright.library.devices import device
from tests.formats.clusters.descriptions import DATA, groups, nested, refused


def test_equal_links_between_all_are_a_switch() -> None:
    cluster = read_cluster(DATA / "topo-h100.txt", device)
    assert groups(cluster) == [("H100", 1, 4)]
    assert nested(cluster) == [(4, 450.0)]


def test_bridged_pairs_are_domains_and_labelled_lines_are_nodes() -> None:
    cluster = read_cluster(DATA / "topo-two-nodes.txt", device)
    assert groups(cluster) == [("RTX-3090", 2, 4)]
    assert [size for size, _ in nested(cluster)] == [2, 4, 8]
    assert nested(cluster)[0][1] == 56.25
    assert any("2 cross the CPU (PHB)" in note for note in cluster.notes)


def test_pairwise_links_add_up() -> None:
    cluster = read_cluster(DATA / "topo-cube-mesh.txt", device)
    assert groups(cluster) == [("V100-32", 2, 8)]
    assert nested(cluster)[0] == (8, 150.0)


def test_a_matrix_without_a_device_says_how_to_name_it(tmp_path: Path) -> None:
    text = (DATA / "topo-cube-mesh.txt").read_text()
    (problem,) = refused(tmp_path, text.replace("# device = V100-32", ""))
    assert "# device = H100" in problem


def test_all_faults_of_a_topology_come_together(tmp_path: Path) -> None:
    text = (DATA / "topo-two-nodes.txt").read_text()
    text = text.replace("RTX-3090", "RTX-3091").replace("gpu02: GPU3\tSYS", "gpu02: GPU3\tPHB")
    text = text.replace("gpu01: GPU1\tNV4\t X \tPHB\tSYS\t0-15\n", "")
    problems = refused(tmp_path, text)
    assert any("gpu01: row GPU1 has 0 cells" in one for one in problems)
    assert any("gpu02: the matrix is not symmetric at GPU0 - GPU3" in one for one in problems)
    assert any("'RTX-3091' of gpu01, gpu02" in one and "RTX-3090" in one for one in problems)


@pytest.mark.parametrize(("heading", "name"), [("", "node1"), ("===== rack7-a =====\n", "rack7-a")])
def test_a_matrix_is_called_by_the_line_above_it_or_by_its_number(tmp_path: Path, heading: str, name: str) -> None:
    problems = refused(tmp_path, f"{heading}\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n")
    assert any(f"what the devices of {name} are" in one for one in problems)
