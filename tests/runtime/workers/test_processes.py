"""Meshes in processes of their own compute what meshes of one process compute, and a lost worker is told."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.compiler.instructions import Op
from meshwright.errors import InputError, LostError
from meshwright.runtime.workers.processes import ProcessCrew
from meshwright.runtime.workers.remote_arrays import RemoteArray
from meshwright.runtime.workers.worker import BETWEEN
from tests.runtime.small import batch, initial, step

STEPS = 3
METHOD = mw.PipeshardParallel(num_stages=2, num_micro_batches=2)


def after(run: Any, state: Any, steps: int) -> tuple[Any, Any]:
    value = None
    for _ in range(steps):
        state, value = run(state, batch())
    return state, value


@pytest.fixture(scope="module")
def there() -> Iterator[Any]:
    run = mw.parallelize(step, method=METHOD, backend="processes", timeout_s=60.0)
    yield run
    run.close()


def test_the_numbers_are_those_of_one_process(there: Any) -> None:
    expected, expected_value = after(mw.parallelize(step, method=METHOD), initial(), STEPS)
    state, value = after(there, initial(), STEPS)
    assert all(isinstance(leaf, RemoteArray) for leaf in jax.tree.leaves(state))
    assert float(value) == pytest.approx(float(expected_value), abs=1e-7)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-6)
    assert int(state[2]) == STEPS
    assert {leaf.mesh for leaf in state[0]["layers"]} == {0, 1}


def test_state_may_come_back_as_arrays(there: Any) -> None:
    state, _ = after(there, initial(), 1)
    gathered = jax.tree.map(np.asarray, state)
    kept, value = after(there, state, 1)
    sent, again = after(there, gathered, 1)
    assert float(value) == float(again)
    np.testing.assert_array_equal(np.asarray(kept[0]["tied"]), np.asarray(sent[0]["tied"]))


def test_a_checkpoint_of_workers_is_read_by_one_process(there: Any, tmp_path: Path) -> None:
    state, _ = after(there, initial(), 1)
    mw.save_checkpoint(tmp_path / "state", state)
    read = mw.restore_checkpoint(tmp_path / "state", initial())
    for one, other in zip(jax.tree.leaves(read), jax.tree.leaves(state), strict=True):
        assert isinstance(one, jax.Array)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def crew_of(run: Any) -> ProcessCrew:
    crew = run.lower(initial(), batch()).runtime.crew
    assert isinstance(crew, ProcessCrew)
    return crew


def test_a_killed_worker_is_told_and_the_step_can_be_called_again(there: Any) -> None:
    state, value = after(there, initial(), 1)
    crew = crew_of(there)
    first = there.lower(initial(), batch()).program.lists[0]

    def kill_while_it_waits() -> None:
        while (place := crew.places()[0]) == BETWEEN or first[place].op is not Op.RECV:
            time.sleep(0.01)
        os.kill(crew.pids()[0], signal.SIGKILL)

    os.kill(crew.pids()[1], signal.SIGSTOP)
    killer = threading.Thread(target=kill_while_it_waits)
    killer.start()
    with pytest.raises(LostError, match=r"mesh 0 died at instruction .*, RECV ") as caught:
        there(state, batch())
    killer.join()
    assert len(caught.value.problems) == 1
    with pytest.raises(LostError, match="last checkpoint"):
        np.asarray(state[0]["tied"])
    _, again = after(there, initial(), 1)
    assert float(again) == float(value)


def test_a_worker_that_hangs_is_told(there: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = after(there, initial(), 2)
    runtime = there.lower(initial(), batch()).runtime
    monkeypatch.setattr(runtime._team, "timeout_s", 4.0)
    os.kill(crew_of(there).pids()[1], signal.SIGSTOP)
    with pytest.raises(
        LostError, match=r"mesh 1 hangs before its first instruction\n.*no worker has made progress for 4 s"
    ) as caught:
        there(state, batch())
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "process"}, "did you mean processes"),
        ({"backend": "processes", "ray": "auto"}, 'backend="ray"'),
        ({"timeout_s": 0.0}, "timeout_s"),
    ],
)
def test_places_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        mw.parallelize(step, **options)
