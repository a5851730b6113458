"""Descriptions of clusters that users have: matrices, nvidia-smi, Slurm, Kubernetes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError, MeshwrightError, UnsupportedError
from meshwright.formats.cluster import assumptions
from meshwright.formats.cluster_file import cluster_from_table
from meshwright.formats.clusters import FORMATS, read_cluster, read_description
from meshwright.formats.clusters.slurm import hosts
from meshwright.formats.clusters.write import cluster_file
from meshwright.library.devices import device
from meshwright.specs.cluster import ClusterSpec
from meshwright.units import GIGA

DATA = Path(__file__).parents[1] / "data" / "clusters"
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


def groups(cluster: ClusterSpec) -> list[tuple[str, int, int]]:
    return [(group.device.name, group.nodes, group.devices_per_node) for group in cluster.groups]


def nested(cluster: ClusterSpec, group: int = 0) -> list[tuple[int, float]]:
    return [(domain.size, domain.bandwidth_bytes_per_s / GIGA) for domain in cluster.groups[group].domains]


def written(folder: Path, text: str, name: str = "given") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> list[str]:
    """All problems of a description, as sentences."""
    with pytest.raises(MeshwrightError) as caught:
        read_cluster(written(folder, text), device)
    return [" ".join((problem.what, problem.why, problem.fix)) for problem in caught.value.problems]


# --- all kinds


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


# --- nvidia-smi topo -m


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


# --- Slurm


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


# --- Kubernetes


def kubernetes(**change: Any) -> dict[str, Any]:
    """One node; `labels` and what else is given replaced."""
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.memory": "81559",
    }
    labels |= change.pop("labels", {})
    node = {"kind": "Node", "metadata": {"name": "n1", "labels": labels}, "spec": {}, "status": {}}
    return node | change


def test_node_pools_become_groups_with_zones() -> None:
    cluster = read_cluster(DATA / "nodes.json", device)
    assert groups(cluster) == [("H100", 4, 8), ("A100-40", 2, 8)]
    assert [group.zone for group in cluster.groups] == ["us-east-1a", "us-east-1b"]
    assert "left out: 1 node not ready" in cluster.notes
    assert cluster.links[0].basis == "assumed"


def test_memory_of_another_variant_is_taken_from_the_label(tmp_path: Path) -> None:
    node = kubernetes(labels={"nvidia.com/gpu.memory": "65536"})
    cluster = read_cluster(written(tmp_path, json.dumps(node)), device)
    assert cluster.groups[0].device.memory_bytes == 64 * 2**30


def test_a_clique_is_an_nvlink_domain_of_nodes(tmp_path: Path) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-GB200", "nvidia.com/gpu.count": "4"}
    labels |= {"nvidia.com/gpu.memory": "189471"}
    items = [kubernetes(labels=labels | {"nvidia.com/gpu.clique": f"6f1a-{i // 3}.1"}) for i in range(6)]
    cluster = read_cluster(written(tmp_path, json.dumps({"kind": "List", "items": items})), device)
    assert groups(cluster) == [("GB200", 6, 4)]
    assert [size for size, _ in nested(cluster)] == [12, 24]


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (kubernetes(labels={"nvidia.com/gpu.product": "NVIDIA-H1000"}), "of n1"),
        (kubernetes(labels={"nvidia.com/gpu.product": "NVIDIA-A10-SHARED"}), "shared"),
        (kubernetes(labels={"nvidia.com/gpu.product": ""}), "no label nvidia.com/gpu.product"),
        (kubernetes(labels={"nvidia.com/gpu.count": "eight"}), "no label nvidia.com/gpu.count"),
        (kubernetes(spec={"unschedulable": True}), "1 node cordoned"),
        ({"kind": "NodeList", "items": "none"}, "no node has a usable GPU"),
    ],
)
def test_what_kubernetes_leaves_open_is_a_clear_error(node: dict[str, Any], said: str, tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, json.dumps(node))
    assert said in problem


def test_an_unknown_device_alone_has_the_exit_code_of_one(tmp_path: Path) -> None:
    node = kubernetes(labels={"nvidia.com/gpu.product": "NVIDIA-H1000"})
    with pytest.raises(UnsupportedError):
        read_cluster(written(tmp_path, json.dumps(node)), device)


# --- bandwidth matrices


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
    assert any("inside nodes were not measured" in note for note in cluster.notes)


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
