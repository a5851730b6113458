"""Clusters from Slurm's nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.formats.clusters import read_cluster
from meshwright.formats.clusters.slurm import hosts
from meshwright.library.devices import device
from tests.formats.clusters.descriptions import DATA, groups, refused, written


def test_nodes_that_cannot_be_used_are_left_out_and_said() -> None:
    cluster = read_cluster(DATA / "scontrol.txt", device)
    assert groups(cluster) == [("H100", 2, 8), ("V100-16", 1, 4)]
    assert "left out: 1 node down*+drain" in cluster.notes


def test_partitions_that_share_nodes_count_them_once() -> None:
    cluster = read_cluster(DATA / "sinfo.txt", device)
    assert groups(cluster) == [("H100", 8, 8), ("A100-80", 4, 4)]


def test_one_record_a_line_reads_the_same(tmp_path: Path) -> None:
    text = (DATA / "scontrol.txt").read_text()
    records = [" ".join(record.split()) for record in text.split("\n\n")]
    cluster = read_cluster(written(tmp_path, "\n".join(records) + "\n"), device)
    assert groups(cluster) == groups(read_cluster(DATA / "scontrol.txt", device))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("PARTITION AVAIL TIMELIMIT NODES STATE NODELIST\ngpu* up infinite 2 idle n[1-2]\n", "no column GRES"),
        ("NODELIST GRES\nn[1-2] gpu:h1000:8\n", "'h1000' of n1, n2"),
        ("NODELIST GRES\nn[1-2] gpu:8\n", "n1, n2: Slurm does not say which GPU"),
        ("NODELIST GRES\nn[2-1] gpu:h100:8\n", "'2-1' is no range"),
        ("NODELIST GRES STATE\nn[1-2] gpu:h100:8 down\ncpu (null) idle\n", "no node has a usable GPU"),
    ],
)
def test_what_slurm_leaves_open_is_a_clear_error(text: str, said: str, tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, text)
    assert said in problem


def test_several_kinds_in_one_node_are_nodes_of_their_own(tmp_path: Path) -> None:
    cluster = read_cluster(written(tmp_path, "NODELIST GRES\nn1 gpu:a100:4,gpu:v100:2\n"), device)
    assert groups(cluster) == [("A100-80", 1, 4), ("V100-16", 1, 2)]
    assert any("several kinds" in note for note in cluster.notes)


def test_lists_of_hosts() -> None:
    assert hosts("gpu[08-10,12],login,r[1-2]n[3-4]") == [
        *("gpu08", "gpu09", "gpu10", "gpu12", "login", "r1n3", "r1n4", "r2n3", "r2n4")
    ]
    for wrong in ("n[1-]", "n[b]", "n[5-2]", "n[1-999999999]"):
        with pytest.raises(ValueError, match="range"):
            hosts(wrong)
