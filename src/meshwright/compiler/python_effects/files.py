"""Files that the user's code writes while it is traced: what they hold then is of no step."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

from meshwright.compiler.source_line import is_users, place_in

_CHANGES = {
    "os.remove": "removes", "os.rename": "renames", "os.mkdir": "makes", "os.rmdir": "removes",
    "os.truncate": "cuts", "os.link": "links", "os.symlink": "links",
}  # fmt: skip
"""What Python tells of the files that it changes beside opening them, and words for it."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_THROUGH = ("numpy", "jax")
"""Libraries that write for whoever calls them."""
_OWN = ("importlib", "_frozen_importlib_external", "tempfile")
"""Modules of Python that write what no user asks for, such as compiled files of modules that a step imports."""

_SEEN: ContextVar[dict[str, str] | None] = ContextVar("files_seen", default=None)
_hooked: list[bool] = []


@contextmanager
def files_written() -> Iterator[dict[str, str]]:
    """While it is open, what the user's code does to files, by its line."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_note_change)
    seen: dict[str, str] = {}
    token = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(token)


def place_in_file(value: Any) -> int | None:
    """Where the next byte of an open file is written; None for what is none, or does not tell."""
    if not isinstance(value, io.IOBase) or value.closed or not value.writable():
        return None
    try:
        return value.tell()
    except OSError:
        return None


def _note_change(event: str, given: tuple[Any, ...]) -> None:
    if event != "open" and event not in _CHANGES:
        return
    seen = _SEEN.get()
    if seen is None or (event == "open" and not _opens_to_write(*given)):
        return
    if line := _line(sys._getframe(1)):
        seen.setdefault(line, f"{_CHANGES.get(event, 'writes')} {given[0]}")


def _opens_to_write(path: Any, mode: Any, flags: Any) -> bool:
    if path == os.devnull or isinstance(path, int):
        return False
    return any(sign in mode for sign in "wax+") if isinstance(mode, str) else bool((flags or 0) & _WRITES)


def _line(frame: FrameType | None) -> str:
    """The user's line behind a change, through the standard library at most; empty where a library does by itself."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return place_in(frame.f_code, frame.f_lineno)
        module = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if module in _OWN or (module not in sys.stdlib_module_names and module not in _THROUGH):
            return ""
        frame = frame.f_back
    return ""
