"""Clusters from bandwidth matrices."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.formats.clusters import read_cluster, read_description
from meshwright.library.devices import device
from meshwright.units import GIGA
from tests.formats.clusters.descriptions import DATA, groups, nested, refused, written


def matrix(cells: list[list[Any]], devices: list[str] | None = None, names: list[str] | None = None) -> str:
    """A matrix of nodes of 8."""
    names = names or [f"n{i}" for i in range(len(cells))]
    devices = devices or ["H100"] * len(cells)
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(["node", "device", "devices", *names])
    for name, kind, row in zip(names, devices, cells, strict=True):
        table.writerow([name, kind, 8, *row])
    return out.getvalue()


def test_nodes_joined_alike_become_groups() -> None:
    cluster = read_cluster(DATA / "nodes.csv", device)
    assert groups(cluster) == [("H100", 2, 8), ("H100", 2, 8), ("A100-80", 1, 8)]
    assert [nested(cluster, i) for i in range(3)] == [[(8, 380), (16, 45)], [(8, 379), (16, 44)], [(8, 235)]]
    assert [link.bandwidth_bytes_per_s / GIGA for link in cluster.links] == [24, 11, 11]
    assert {link.basis for link in cluster.links} == {"measured"}


def test_a_measured_speed_is_what_is_reached() -> None:
    cluster = read_cluster(DATA / "nodes.csv", device)
    assert [(domain.basis, domain.efficiency) for domain in cluster.groups[0].domains] == [("measured", 1.0)] * 2


def test_two_speeds_inside_a_node_are_two_domains() -> None:
    cluster = read_cluster(DATA / "gpus.csv", device)
    assert groups(cluster) == [("RTX-3090", 2, 4)]
    assert nested(cluster) == [(2, 50), (4, 20), (8, 1.2)]


def test_a_larger_tolerance_takes_two_speeds_as_one() -> None:
    table = read_description(DATA / "nodes.csv", device, tolerance=1.0).table
    assert [(group["nodes"], group.get("inter_gb_s")) for group in table["group"]] == [(4, 24), (1, None)]


@given(st.permutations(range(6)), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_the_order_of_rows_does_not_count(order: list[int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    cells = np.triu(draw.choice([10.0, 10.5, 11.2, 25.0, 40.0], (6, 6)))
    cells = np.maximum(cells, cells.T)
    kinds = draw.choice(["H100", "A100-80"], 6).tolist()
    names = [f"n{i}" for i in range(6)]

    def seen(places: list[int]) -> set[tuple[Any, ...]]:
        from meshwright.formats.clusters.base import ClusterText
        from meshwright.formats.clusters.matrix import FORMAT

        text = matrix(cells[np.ix_(places, places)].tolist(), [kinds[i] for i in places], [names[i] for i in places])
        table = FORMAT.read(ClusterText(text=text, lookup=device, tolerance=0.1)).table
        keys = ("device", "nodes", "intra_gb_s", "inter_gb_s")
        return {tuple(group.get(key) for key in keys) for group in table["group"]}

    assert seen(list(order)) == seen(list(range(6)))


def test_numbers_alone_need_only_the_device(tmp_path: Path) -> None:
    text = "# device = A100-80\n# devices_per_node = 4\n300 25 25\n25 300 25\n25 25 300\n"
    cluster = read_cluster(written(tmp_path, text), device)
    assert groups(cluster) == [("A100-80", 3, 4)]
    assert nested(cluster) == [(4, 300), (12, 25)]


def test_cells_for_whole_nodes_are_shared_by_their_devices(tmp_path: Path) -> None:
    text = "# per = node\n" + matrix([["", 400], [400, ""]])
    cluster = read_cluster(written(tmp_path, text), device)
    assert nested(cluster)[-1] == (16, 50)
    assert any("inside nodes was not measured" in note for note in cluster.notes)


def test_one_direction_is_enough_and_the_slower_of_two_counts(tmp_path: Path) -> None:
    cluster = read_cluster(written(tmp_path, matrix([[300, 40, 44], ["", 300, 40], [40, 40, 300]])), device)
    assert nested(cluster)[-1] == (24, 40)
    assert any("1 links were measured in one direction" in note for note in cluster.notes)
    assert any("differ by up to 10%" in note for note in cluster.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (matrix([[300, ""], ["", 300]]), "has holes: n0 - n1"),
        (matrix([[300, 40], [20, 300]]), "not symmetric: n0 - n1 (40 and 20 GB/s)"),
        (matrix([[300, -4], [20, 300]]), "n0 to n1 is '-4'"),
        (matrix([[300, 0], [0, 300]]), "nothing joins H100 and H100-2"),
        (matrix([[300, 40], [40, 300]], ["H100", "H1000"]), "'H1000' of n1"),
        ("node,n0,n1\nn0,300,40\nn1,40,300\n", "nothing says what the devices of n0 are"),
        ("node,device,n0,n1\nn0,H100,300,40\n", "column n1 has no row"),
        ("node,device,n0,n1\nn0,H100,300,40\nn1,H100,300\n", "row n1 has another number of cells"),
        ("node,device,n0,n0\nn0,H100,300,40\nn0,H100,40,300\n", "two rows are named n0"),
        ("# per = rack\nnode,device,n0\nn0,H100,300\n", "# per = 'rack'"),
    ],
)
def test_a_matrix_that_cannot_be_used_is_a_clear_error(text: str, said: str, tmp_path: Path) -> None:
    assert any(said in problem for problem in refused(tmp_path, text))


def test_all_faults_of_a_matrix_come_together(tmp_path: Path) -> None:
    problems = refused(tmp_path, matrix([[300, "", 40], ["", 300, 9], [40, 30, 300]], ["H100", "H100", "V1000"]))
    assert len([one for one in problems if "holes" in one or "symmetric" in one]) == 2
    assert any("V1000" in one for one in problems)
