"""What a method plans for: stated, recognised or assumed, and always named."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from meshwright.compiler.methods.auto import Auto
from meshwright.compiler.methods.shard import ShardParallel
from meshwright.compiler.planned_devices import recognised_hosts, stated_hosts
from meshwright.compiler.stages.islands import Islands
from meshwright.errors import InputError, UnsupportedError
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import unknown_accelerator


@dataclass
class Device:
    """As much of a JAX device as planning reads."""

    device_kind: str
    process_index: int = 0


def test_devices_that_are_stated_have_the_rates_of_estimates() -> None:
    hosts = stated_hosts("2x8xH100")

    assert (hosts.hosts, hosts.devices_per_host) == (2, 8)
    assert hosts == stated_hosts(resolve_gpus("2x8xH100"))
    assert 0.5 * 989e12 < hosts.flop_per_s < 989e12
    assert hosts.source == "H100, bf16 [fitted]"
    assert isinstance(stated_hosts("8xH100,8xA100-80"), Islands)


def test_a_device_without_the_usual_format_is_planned_in_the_one_it_has() -> None:
    assert "fp16" in stated_hosts("8xV100-16").source


def test_the_kind_of_the_devices_is_recognised() -> None:
    found = recognised_hosts([Device("NVIDIA H100 80GB HBM3", process) for process in (0, 0, 1, 1)])

    assert (found.hosts, found.devices_per_host, found.source) == (2, 2, "H100, bf16 [fitted]")


def test_an_unknown_kind_is_the_assumed_device_of_the_library_by_name() -> None:
    found = recognised_hosts([Device("cpu")] * 4)

    assert found.flop_per_s == unknown_accelerator().flop_per_s
    assert "unknown accelerator [assumed]" in found.source


def test_numbers_of_the_method_stand_in_place_of_the_devices() -> None:
    devices = [Device("cpu")] * 4

    assert ShardParallel(flop_per_s=1e9).on(devices).source.startswith("stated, else unknown accelerator")
    stated = ShardParallel(hosts="4xH100", flop_per_s=1e9, link_bytes_per_s=1e9, link_latency_s=0.0).on(devices)
    assert (stated.flop_per_s, stated.inside_bytes_per_s, stated.source) == (1e9, 1e9, "stated")


def test_bad_devices_are_refused_when_they_are_stated() -> None:
    with pytest.raises(UnsupportedError, match="H1000"):
        Auto(hosts="8xH1000", devices=())
    with pytest.raises(InputError, match="hosts of several kinds"):
        ShardParallel(hosts="8xH100,8xA100-80")
