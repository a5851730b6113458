"""Reading a program without searching it for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_left() -> Iterator[None]:
    """While a step is read and cut, Python looks for no cycles of objects; what nobody refers to is freed as ever.

    Programs are hundreds of thousands of small objects that all live until the end. Each search walks through all of
    them, so that its share grows with the depth of a model: a third of the time of 64 layers.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
