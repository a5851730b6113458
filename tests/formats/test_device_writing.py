"""Device files written from devices read as the same devices."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from meshwright.formats.device_file import check_record, device_spec
from meshwright.formats.device_writing import device_text
from meshwright.library.devices import devices, kernel_efficiency
from meshwright.specs.device import DeviceSpec


@pytest.mark.parametrize("spec", devices(), ids=lambda spec: spec.name)
def test_every_device_comes_back(spec: DeviceSpec) -> None:
    record = check_record(tomllib.loads(device_text(spec)), noun="a device")
    back = device_spec(record, kernel_efficiency)
    assert spec.efficiency.source in back.efficiency.source
    said = replace(back.efficiency, source=spec.efficiency.source)
    assert replace(back, efficiency=said) == spec
