"""Clusters from what `nvidia-smi` lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.formats.clusters import read_cluster, read_description
from meshwright.formats.clusters.nvidia_smi import FORMAT
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import device
from tests.formats.clusters.descriptions import groups, refused

LISTED = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-3f0c)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-77aa)
"""
PRINTED = """| NVIDIA-SMI 535.104.12             Driver Version: 535.104.12   CUDA Version: 12.2     |
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA H100 80GB HBM3          On  | 00000000:18:00.0 Off |                    0 |
| N/A   32C    P0              73W / 700W |      4MiB / 81559MiB |      0%      Default |
|   1  NVIDIA H100 80GB HBM3          On  | 00000000:2A:00.0 Off |                    0 |
"""
CSV = """index, name, memory.total [MiB]
0, NVIDIA H100 80GB HBM3, 81559 MiB
1, NVIDIA H100 80GB HBM3, 81559 MiB
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "devices.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [LISTED, PRINTED, CSV], ids=["-L", "table", "csv"])
def test_every_form_lists_the_devices_of_a_node(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    assert read_description(path, device).kind == FORMAT.name
    assert groups(read_cluster(path, device)) == [("H100", 1, 2)]


@pytest.mark.parametrize(
    "text",
    [LISTED * 2, "# nodes = 2\n" + LISTED, "".join(f"n{i}: {line}\n" for i in (1, 2) for line in LISTED.splitlines())],
    ids=["again", "directive", "labels"],
)
def test_numbers_that_start_again_and_labels_are_nodes(tmp_path: Path, text: str) -> None:
    assert groups(read_cluster(written(tmp_path, text), device)) == [("H100", 2, 2)]


def test_devices_in_slices_are_left_out_and_counted(tmp_path: Path) -> None:
    text = LISTED + "  MIG 1g.10gb     Device  0: (UUID: MIG-11)\n  MIG 1g.10gb     Device  1: (UUID: MIG-12)\n"
    cluster = read_cluster(written(tmp_path, text), device)
    assert groups(cluster) == [("H100", 1, 1)]
    assert "left out: 1 device in MIG slices" in cluster.notes


def test_unlike_devices_of_one_host_are_joined_as_in_the_one_line_form(tmp_path: Path) -> None:
    text = CSV.replace("0, NVIDIA H100 80GB HBM3", "0, NVIDIA GeForce RTX 4090")
    text = text.replace("1, NVIDIA H100 80GB HBM3", "1, NVIDIA GeForce RTX 3090")
    (link,) = read_cluster(written(tmp_path, text), device).links
    (expected,) = resolve_gpus("1xRTX4090+1xRTX3090").links
    assert link.bandwidth_bytes_per_s == expected.bandwidth_bytes_per_s


def test_what_lists_no_whole_device_is_refused(tmp_path: Path) -> None:
    only = LISTED.splitlines()[0] + "\n  MIG 7g.80gb     Device  0: (UUID: MIG-11)\n"
    (problem,) = refused(tmp_path, only)
    assert "no whole device is listed" in problem
    (problem,) = refused(tmp_path, "# nodes = 3\n" + LISTED * 2)
    assert "# nodes = 3 beside 2 nodes" in problem
