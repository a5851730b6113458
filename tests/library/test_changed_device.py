"""Changed devices: what is stated is as stated, all else is the device's own, and its source is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.library.changed_device import changeable, changed_device
from meshwright.library.devices import device, devices

H100 = device("H100")


def changed(changes: dict[str, Any]) -> Any:
    return changed_device(H100, changes, name="next", source="a test")


@pytest.mark.parametrize("name", [one.name for one in devices()])
def test_without_changes_only_the_name_is_another(name: str) -> None:
    base = device(name)
    assert changed_device(base, {}, name="next", source="a test") == replace(base, name="next")


def test_each_number_is_as_stated_and_the_others_stay() -> None:
    found = changed({"memory_gib": 120, "bf16_tflops": 2000, "node": {"fabric_gb_s": 100}})
    assert found.memory_bytes == 120 * 2**30
    assert dict(found.peak_flop_per_s) == dict(H100.peak_flop_per_s) | {"bf16": 2e15}
    assert found.node.fabric_bytes_per_s == 100e9
    assert found.node.scaleup_bytes_per_s == H100.node.scaleup_bytes_per_s
    assert found.efficiency == H100.efficiency
    assert dict(found.provenance)["memory_bytes"].source == "a test"
    assert dict(found.provenance)["units"] == dict(H100.provenance)["units"]
    assert dict(found.node.provenance)["fabric_bytes_per_s"].basis == "assumed"


def test_a_larger_node_has_a_scale_up_domain_of_its_size_unless_it_says_otherwise() -> None:
    assert changed({"node": {"devices": 72}}).node.scaleup_domain == 72
    assert changed({"node": {"devices": 72, "scaleup_domain": 8}}).node.scaleup_domain == 8
    assert changed({"node": {"scaleup_domain": 16}}).node.devices_per_node == 8


@given(share=st.floats(0.01, 1))
def test_a_level_of_kernels_is_changed_alone(share: float) -> None:
    found = changed({"efficiency": {"gemm_fraction": share}})
    own = {"gemm_fraction", "burst_fraction", "basis", "source"}
    same = {name: getattr(H100.efficiency, name) for name in H100.efficiency.__dataclass_fields__ if name not in own}
    assert found.efficiency.gemm_fraction == share
    assert {name: getattr(found.efficiency, name) for name in same} == same


@pytest.mark.parametrize(
    "changes", [{"memory_gib": 0}, {"memory": 80}, {"node": {"devices": 0.5}}, {"bf16_tflops": "x"}]
)
def test_numbers_that_no_device_has_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="next"):
        changed(changes)


def test_names_are_no_numbers() -> None:
    assert changeable("memory_gib")
    assert changeable("node.scaleup_gb_s")
    assert changeable("efficiency.gemm_fraction")
    assert not any(map(changeable, ("name", "node.fabric_name", "aliases", "node", "source.default", "scaleup_gb_s")))
