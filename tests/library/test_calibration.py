"""Devices and frameworks under one calibration or another."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.library.calibration import LIBRARY_VARIABLE, PACKAGED, calibration
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import device, published_efficiency
from meshwright.library.software import published_software, software
from meshwright.specs.calibration import NOTHING
from meshwright.units import MIB


def test_a_device_and_a_framework_are_of_the_calibration_they_are_asked_under() -> None:
    bare = resolve_gpus("8xH100", NOTHING).groups[0].device

    assert bare.efficiency == published_efficiency("hopper")
    assert software("megatron-core", NOTHING) == published_software("megatron-core")
    assert device("H100").efficiency.basis == "fitted"
    assert calibration().date in device("H100").efficiency.source
    assert device("H100", calibration=NOTHING) == bare


def test_a_users_own_file_takes_the_place_of_the_packaged_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "calibration.json").write_text(PACKAGED.read_text().replace(calibration().date, "2001-01-01"))
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path))

    assert calibration().date == "2001-01-01"
    assert calibration(PACKAGED).date != "2001-01-01"


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"schema": "something/1"}')

    with pytest.raises(InputError, match="is not a calibration of this version"):
        calibration(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("name", "mib"), [("A100", 2 * 8.125 + 4), ("L40S", 2 * 8.125 + 4), ("H100", 96), ("B200", 96)]
)
def test_matrix_libraries_are_given_more_scratch_memory_since_hopper(name: str, mib: float) -> None:
    assert device(name).efficiency.workspace_bytes == mib * MIB
