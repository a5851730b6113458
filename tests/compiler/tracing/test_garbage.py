"""Programs are read without searches for garbage, and Python searches for it afterwards as before."""

from __future__ import annotations

import gc

import pytest

from meshwright.compiler.tracing.garbage import garbage_left


def test_garbage_is_left_while_a_step_is_read_and_no_longer() -> None:
    def read() -> None:
        with garbage_left():
            assert not gc.isenabled()
            raise ValueError("a step that cannot be read")

    with pytest.raises(ValueError, match="a step"):
        read()
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_so() -> None:
    gc.disable()
    try:
        with garbage_left():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
