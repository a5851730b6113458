"""What methods may be asked for."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import InputError


@pytest.mark.parametrize("method", [mw.DataParallel, mw.Zero3Parallel, mw.ShardParallel, mw.Auto, mw.LocalPipeline])
@pytest.mark.parametrize("devices", [2, "cpu"])
def test_devices_are_a_sequence_of_devices(method: Any, devices: Any) -> None:
    with pytest.raises(InputError, match=r"devices=jax\.devices\(\)\[:2\]"):
        method(devices=devices)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as refused:
        mw.DataParallel(devices=1, num_micro_batches=0)
    assert [problem.field for problem in refused.value.problems] == ["num_micro_batches", "devices"]


def test_an_array_of_devices_is_a_sequence_of_them() -> None:
    devices: Any = np.array(jax.devices())
    assert mw.DataParallel(devices=devices).devices is devices
