"""What the driver tells workers of the state that they keep: each value once, and little where steps are alike."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

from benchmarks.ping_pong import still
from meshwright.runtime.workers.remote import RemoteRuntime
from meshwright.runtime.workers.remote_arrays import RemoteArray
from meshwright.runtime.workers.worker import MeshWorker, Orders

ARRAYS = 4


class Here:
    """Workers in this process; what they are told is written and read as if they were elsewhere."""

    host = ""

    def __init__(self, devices: Sequence[int]) -> None:
        self.workers = [MeshWorker(mesh, lambda place: None) for mesh in range(len(devices))]
        self.found: dict[int, Any] = {}
        self.orders: list[Orders] = []

    def call(self, mesh: int, name: str, *arguments: Any) -> None:
        if name == "step":
            self.orders.append(arguments[0])
        called = name in ("load", "step", "fetch")
        if name == "load":
            self.workers[mesh]._wires = Apart()
        copied = pickle.loads(pickle.dumps(arguments)) if called else arguments
        self.found[mesh] = getattr(self.workers[mesh], name)(*copied) if called else None

    def answers(self, meshes: Sequence[int], limit_s: float) -> list[tuple[int, Any]]:
        return [(mesh, self.found[mesh]) for mesh in meshes]

    def places(self) -> list[int]:
        return [0] * len(self.workers)

    def close(self, *, kill: bool) -> None:
        self.workers = []

    def kept(self) -> int:
        return sum(len(made) for worker in self.workers for made in worker._kept.values())


class Apart:
    def channel(self, peer: int) -> None:
        """Nothing is sent between them."""


def runtime() -> RemoteRuntime:
    meshes = [Mesh(np.array([device]), ("d",)) for device in jax.devices()[:2]]
    return RemoteRuntime(still(ARRAYS), meshes, Here, 60.0)


def first() -> list[Any]:
    return [np.full(16, number, np.float32) for number in range(ARRAYS)]


def crew(run: RemoteRuntime) -> Here:
    assert isinstance(run.crew, Here)
    return run.crew


def test_steps_that_are_alike_are_told_in_the_number_of_the_last() -> None:
    run = runtime()
    state = first()
    for _ in range(5):
        state = run.step(state, 1)
    told = crew(run).orders
    assert [one.reading is None for one in told[::2]] == [False, False, True, True, True]
    assert [one.steps for one in told[::2]] == [[], [0], [1], [2], [3]]
    assert all(not one.fed for one in told[2:])
    assert [float(value[0]) for value in map(np.asarray, state)] == [0, 1, 2, 3]


def test_timed_instructions_may_leave_other_shardings_and_are_asked_again() -> None:
    run = runtime()
    state = run.step(run.step(run.step(first(), 1), 1), 1)
    state, _ = run.recorded(state, 1)
    state = run.step(state, 1)
    run.step(state, 1)
    assert [one.reading is None for one in crew(run).orders[::2]] == [False, False, True, True, False, False]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 7), min_size=ARRAYS, max_size=ARRAYS), min_size=1, max_size=8), st.booleans())
def test_every_value_arrives_and_no_more_are_kept_than_are_held(picks: list[list[int]], host: bool) -> None:
    """Each step reads any of the values of the last two, some of them as arrays of the host."""
    run = runtime()
    older, newer = first(), run.step(first(), 1)
    for pick in picks:
        # A buffer of one mesh takes values of that mesh: others would be sent between workers.
        held = [*older, *newer]
        given = [held[one - one % 2 + place % 2] for place, one in enumerate(pick)]
        given[0] = np.array(given[0]) if host else given[0]
        expected = [np.array(one) for one in given]
        older, newer = newer, run.step(given, 1)
        del held, given
        for one, other in zip(newer, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(one), other)
    older, newer = newer, run.step(newer, 1)
    alive = [one for one in (*older, *newer) if isinstance(one, RemoteArray)]
    told = crew(run)
    newest = run.step(newer, 1)
    assert told.kept() == len(alive) + len(newest)
