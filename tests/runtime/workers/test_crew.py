"""What is said of a lost worker: which call it was in, and where in its list."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import LostError
from meshwright.runtime.workers.crew import run_together
from meshwright.runtime.workers.processes import ProcessCrew
from tests.runtime.small import batch, initial, step

METHOD = mw.PipeshardParallel(num_stages=2, num_micro_batches=2)
CALLS = {
    ("listen", 7): "while it opened an address for the others",
    ("connect", (), b""): "while it connected with the others",
    ("coordinator", "no such host"): "while it looked for a port where the hosts of its mesh meet",
    ("load", None): "while it started JAX and loaded its program",
    ("fetch", (0, 0)): "while it gave back a value that it keeps",
}


def test_a_call_that_fails_says_what_the_worker_was_at() -> None:
    crew = ProcessCrew([{}])
    try:
        for (name, *arguments), doing in CALLS.items():
            with pytest.raises(LostError) as caught:
                run_together(crew, {0: (name, *arguments)}, 60.0, ())
            assert caught.value.problems[0].what == f"the worker of mesh 0 failed {doing}"
            assert caught.value.workers == (0,)
    finally:
        crew.close(kill=True)


def test_a_worker_that_stops_while_it_connects_hangs_there_and_the_others_are_not_blamed() -> None:
    crew = ProcessCrew([{}, {}])
    try:
        addresses = run_together(crew, dict.fromkeys(range(2), ("listen", crew.host)), 60.0, ())
        os.kill(crew.pids()[1], signal.SIGKILL)
        connecting = ("connect", [addresses[one] for one in range(2)], b"0" * 16)
        with pytest.raises(LostError) as caught:
            run_together(crew, dict.fromkeys(range(2), connecting), 60.0, ())
        assert [one.what for one in caught.value.problems] == [
            "the worker of mesh 1 died while it connected with the others"
        ]
    finally:
        crew.close(kill=True)


def test_a_worker_that_is_gone_when_a_value_is_asked_for_did_not_die_in_a_set_up() -> None:
    run = mw.parallelize(step, method=METHOD, backend="processes", timeout_s=60.0)
    try:
        state: Any = run(initial(), batch())[0]
        leaf = state[0]["layers"][0]
        crew: Any = run.lower(initial(), batch()).runtime.crew
        os.kill(crew.pids()[leaf.mesh], signal.SIGKILL)
        with pytest.raises(LostError, match=f"mesh {leaf.mesh} died while it gave back a value that it keeps"):
            np.asarray(leaf)
    finally:
        run.close()
