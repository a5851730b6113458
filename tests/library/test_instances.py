"""Machine types of cloud providers are whole nodes of a device, with the network that leaves them."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import device
from meshwright.library.instances import Instance, instances


@pytest.mark.parametrize("one", instances(), ids=lambda one: one.name)
def test_every_machine_type_is_a_node_of_a_known_device(one: Instance) -> None:
    (group,) = resolve_gpus(f"2x{one.name}").groups
    assert (group.device.name, group.nodes, group.devices_per_node) == (one.device, 2, one.devices)
    assert group.domains[-1].bandwidth_bytes_per_s == pytest.approx(one.fabric_bytes_per_s)
    assert group.domains[-1].basis == "datasheet"


def test_the_network_of_a_node_is_shared_by_its_devices() -> None:
    assert device("p4d.24xlarge").node.fabric_bytes_per_s == 400e9 / 8 / 8
    assert device("standard_nd96isr_h100_v5") == device("ND96isr_H100_v5")


def test_a_machine_type_is_a_whole_node() -> None:
    with pytest.raises(InputError, match=r"8xp5\.48xlarge says so"):
        resolve_gpus("2x4xp5.48xlarge")


def test_the_nearest_machine_type_is_named() -> None:
    with pytest.raises(UnsupportedError, match="a3-megagpu-8g"):
        resolve_gpus("2xa3-mega-8g")
