"""Bytes and bits are told apart by their case at every door where a speed or a size is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.fields.host import MemorySize, NvmeDrives, PcieSlot
from meshwright.formats.cluster_file import cluster_from_table
from meshwright.formats.measured import fold
from meshwright.library.devices import device
from meshwright.specs.cluster import NodeGroup
from meshwright.units import rate_bytes_per_s, size_bytes

PREFIXES = {"M": 1e6, "G": 1e9, "T": 1e12, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
UNITS = {"B/s": 1, "b/s": 8, "Bps": 1, "bps": 8, "bit/s": 8, "Bytes/s": 1, " B/s": 1}


def group_with(**keys: object) -> NodeGroup:
    table = {"device": "H100", "nodes": 2, "devices_per_node": 8, **keys}
    return cluster_from_table({"group": [table]}, device).groups[0]


def of_cluster(name: str, get: Callable[[NodeGroup], float | None]) -> Callable[[str], float | None]:
    def door(text: str) -> float | None:
        try:
            return get(group_with(**{name: text}, **({"nvme_gb_s": 7.0} if name == "nvme_write_gb_s" else {})))
        except InputError:
            return None

    return door


def option(read: Callable[[str], float]) -> Callable[[str], float | None]:
    def door(text: str) -> float | None:
        try:
            return read(text)
        except InputError:
            return None

    return door


def between_groups(text: str) -> float | None:
    groups = [{"name": name, "device": "H100", "nodes": 1, "devices_per_node": 8} for name in "ab"]
    try:
        return (
            cluster_from_table({"group": groups, "link": [{"between": ["a", "b"], "gb_s": text}]}, device)
            .links[0]
            .bandwidth_bytes_per_s
        )
    except InputError:
        return None


RATES: dict[str, Callable[[str], float | None]] = {
    "units": rate_bytes_per_s,
    "--pcie": option(lambda text: PcieSlot().read("--pcie", text)),
    "--nvme": option(lambda text: NvmeDrives().read("--nvme", text).bytes_per_s),
    "inter_gb_s": of_cluster("inter_gb_s", lambda group: group.domains[-1].bandwidth_bytes_per_s),
    "intra_gb_s": of_cluster("intra_gb_s", lambda group: group.domains[0].bandwidth_bytes_per_s),
    "pcie_gb_s": of_cluster("pcie_gb_s", lambda group: group.host.link_bytes_per_s),
    "ram_gb_s": of_cluster("ram_gb_s", lambda group: group.host.memory_bytes_per_s),
    "nvme_gb_s": of_cluster("nvme_gb_s", lambda group: group.host.disk_read_bytes_per_s),
    "nvme_write_gb_s": of_cluster("nvme_write_gb_s", lambda group: group.host.disk_write_bytes_per_s),
    "[[link]] gb_s": between_groups,
    "inter_link of a measured row": lambda text: fold.fabric_bytes_per_s(f"{text} per GPU", 8),
}
SIZES: dict[str, Callable[[str], float | None]] = {
    "units": size_bytes,
    "--host-ram": option(lambda text: MemorySize().read("--host-ram", text)),
    "--nvme": option(lambda text: NvmeDrives().read("--nvme", f"{text}@7GB/s").size_bytes),
    "ram_gb": of_cluster("ram_gb", lambda group: group.host.memory_bytes),
    "nvme_gb": of_cluster("nvme_gb", lambda group: group.host.disk_bytes),
}


@pytest.mark.parametrize("door", RATES)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("prefix", ["G", "Gi", "M"])
def test_every_door_reads_a_speed_by_its_case(door: str, unit: str, prefix: str) -> None:
    expected = 400 * PREFIXES[prefix] / UNITS[unit]
    assert RATES[door](f"400{prefix}{unit.strip()}") == pytest.approx(expected)


@pytest.mark.parametrize("door", [door for door in RATES if "measured" not in door])
@pytest.mark.parametrize("text", ["7gb/s", "7GBPS", "7gbps", "7", "7GB", "fast", "-7GB/s", "7Xb/s"])
def test_a_speed_that_its_case_does_not_tell_is_refused(door: str, text: str) -> None:
    assert RATES[door](text) is None


@pytest.mark.parametrize("door", SIZES)
def test_every_door_reads_a_size_in_bytes(door: str) -> None:
    read = SIZES[door]
    assert read("64GB") == read("64gb") == read("64G") == 64e9
    assert read("64GiB") == 64 * 2.0**30
    assert read("64Gb") is read("64Gib") is None


@given(
    number=st.integers(1, 9999),
    prefix=st.sampled_from(sorted(PREFIXES)),
    unit=st.sampled_from(sorted(UNITS)),
    gap=st.sampled_from(["", " "]),
)
def test_bits_are_an_eighth_of_bytes(number: int, prefix: str, unit: str, gap: str) -> None:
    found = rate_bytes_per_s(f"{number}{gap}{prefix}{unit.strip()}")
    assert found == pytest.approx(number * PREFIXES[prefix] / UNITS[unit])


def test_a_bare_number_of_gigabits_is_asked_about() -> None:
    with pytest.raises(InputError, match="400 Gb/s \\(bits\\)") as refused:
        group_with(inter_gb_s=400.0)
    assert 'inter_gb_s = "400Gb/s"' in refused.value.problems[0].fix
    assert group_with(inter_gb_s="400GB/s").domains[-1].bandwidth_bytes_per_s == 400e9
    assert group_with(inter_gb_s="400Gb/s").domains[-1].bandwidth_bytes_per_s == 50e9
    assert group_with(inter_gb_s=25.0).domains[-1].bandwidth_bytes_per_s == 25e9
