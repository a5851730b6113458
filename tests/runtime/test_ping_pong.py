"""The lists that the runtime is timed with do what they are said to do."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from benchmarks.channels import runtime_lines, summary
from benchmarks.ping_pong import PER_HOP, Backend, Spread, ping_pong, still
from meshwright.compiler.instructions import Op
from meshwright.compiler.instructions.verify import verify_lists
from meshwright.runtime.local import LocalRuntime

HOPS = 6


def meshes() -> list[Mesh]:
    return [Mesh(np.array([device]), ("d",)) for device in jax.devices()[:2]]


def test_every_hop_adds_one_and_has_four_instructions() -> None:
    program = ping_pong(64, HOPS)
    verify_lists(program)
    assert sum(len(own) for own in program.lists) == PER_HOP * HOPS
    assert sum(one.op is Op.SEND for own in program.lists for one in own) == HOPS
    (made,) = LocalRuntime(program, meshes()).step([np.zeros(64, np.uint8)], 1)
    np.testing.assert_array_equal(np.asarray(made), HOPS)


def test_still_workers_keep_what_they_have() -> None:
    program = still(4)
    verify_lists(program)
    given = [np.full(16, one, np.float32) for one in range(4)]
    for made, value in zip(LocalRuntime(program, meshes()).step(given, 1), given, strict=True):
        np.testing.assert_array_equal(np.asarray(made), value)


def test_what_is_summed_up() -> None:
    hops = {"64 B": Spread(40e-6, 50e-6), "1 MB": Spread(3e-4, 4e-4)}
    launches = {2: Spread(9e-4, 1e-3), 450: Spread(1.5e-3, 2e-3)}
    ray = Backend(hops=hops, launches=launches, null=Spread(5e-4, 6e-4))
    found = summary({"ray": ray}, 10e-6)
    assert {name: one.median_s for name, one in found.items()} == pytest.approx(
        {"instruction (ray)": 10e-6, "1 MB (ray)": 4e-4, "launch, 2 arrays": 4e-4, "launch, 450 arrays": 1.4e-3}
    )
    assert found["instruction (ray)"].least_s == pytest.approx(7.5e-6)
    here = Backend(hops=hops, launches=launches, null=None)
    assert list(summary({"processes": here}, 0.0)) == ["instruction (processes)", "1 MB (processes)"]


def test_without_jax_the_lines_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.channels.find_spec", lambda name: None)
    lines = runtime_lines()
    assert [line.found for line in lines] == [None] * 3
    assert all("needs JAX" in line.note for line in lines)
