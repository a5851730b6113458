"""Interruptions: raised at once, or when what must not be cut is done."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from meshwright.interruptions import ending_politely, uninterrupted


def test_a_request_to_end_is_an_interruption() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ending_politely():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """Ctrl-C interrupts, which it does not where the tests run in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruptions_wait_for_what_must_not_be_cut(number: signal.Signals) -> None:
    done = []

    def body() -> None:
        with uninterrupted():
            signal.raise_signal(number)
            signal.raise_signal(number)
            done.append("all")
        done.append("more")

    with pytest.raises(KeyboardInterrupt), ending_politely():
        body()
    assert done == ["all"]


def test_ignored_signals_stay_ignored_and_failures_pass() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ValueError, match="own"), uninterrupted():
        raise ValueError("own")
    assert signal.getsignal(signal.SIGINT) == before


def test_other_threads_are_never_interrupted_and_change_no_handler() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def body() -> None:
        with uninterrupted(), ending_politely():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize(("parent", "code"), [("os.getppid()", 0), ("os.getpid()", 1)])
def test_a_process_ends_when_its_parent_is_another_one(parent: str, code: int) -> None:
    program = f"import os, time; from meshwright import interruptions as i; i.LOOK_S = 0.05; i.end_with({parent}); "
    assert subprocess.run([sys.executable, "-c", program + "time.sleep(0.5)"]).returncode == code
