"""The host of a node as people write it."""

from __future__ import annotations

import pytest

from meshwright.formats.cluster_file import cluster_from_table
from meshwright.formats.host import Disks, disks_of, size_bytes, slot_bytes_per_s
from meshwright.library.devices import device
from meshwright.specs.cluster import HostSpec


@pytest.mark.parametrize(
    ("text", "size"),
    [("128GB", 128e9), ("120 GiB", 120 * 2**30), ("1.5tb", 1.5e12), ("64G", 64e9), ("128", None), ("-1GB", None)],
)
def test_sizes_have_a_unit(text: str, size: float | None) -> None:
    assert size_bytes(text) == size


def test_drives_have_a_speed_and_may_have_a_size() -> None:
    assert disks_of("7GB/s") == Disks(bytes_per_s=7e9)
    assert disks_of("2TB@7GB/s") == Disks(bytes_per_s=7e9, size_bytes=2e12)
    assert disks_of("2TB") is disks_of("2TB@") is disks_of("7@7GB/s") is disks_of("0GB/s") is None


def test_a_slot_gives_what_copies_reach() -> None:
    """24 GB/s on PCIe 4.0 x16 and half of it on 3.0, as device files have it."""
    assert slot_bytes_per_s("4x16") == pytest.approx(24e9, rel=0.01)
    assert slot_bytes_per_s("gen3 x16") == pytest.approx(12e9, rel=0.01)
    assert slot_bytes_per_s("12GB/s") == 12e9
    assert slot_bytes_per_s("9x16") is slot_bytes_per_s("4x3") is slot_bytes_per_s("fast") is None


def test_a_cluster_file_states_hosts() -> None:
    stated = {"ram_gb": 128.0, "ram_gb_s": 80.0, "pcie_gb_s": 12.0, "nvme_gb": 2000.0, "nvme_gb_s": 7.0}
    group = {"device": "RTX-4090", "nodes": 1, "devices_per_node": 2, "pcie_devices": 2, **stated}
    cluster = cluster_from_table({"group": [group]}, device)
    assert cluster.groups[0].host == HostSpec(
        memory_bytes=128e9,
        memory_bytes_per_s=80e9,
        link_bytes_per_s=12e9,
        link_devices=2,
        disk_bytes=2e12,
        disk_read_bytes_per_s=7e9,
    )
