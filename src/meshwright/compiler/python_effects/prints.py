"""Lines of the user's code that print while it is traced: what `print` shows then is no number of any step."""

from __future__ import annotations

import builtins
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from meshwright.compiler.source_line import is_users, place_in

_TRACED = re.compile(r"\w*Tracer<|Traced<|\w*Tracer\(")
"""A traced value as text."""
_TELLS_APART = ("warnings", "logging")
"""Modules that write for whoever calls them, once by intent: theirs counts where it shows traced values."""


@contextmanager
def prints_seen() -> Iterator[dict[str, str]]:
    """While it is open, what the user's code writes on the terminal, by line; it is still shown."""
    seen: dict[str, str] = {}
    terminals = sys.stdout, sys.stderr
    heard = _Heard(terminals[0], seen), _Heard(terminals[1], seen)
    sys.stdout, sys.stderr = heard
    try:
        yield seen
    finally:
        # What the step has put there itself stays.
        if sys.stdout is heard[0]:
            sys.stdout = terminals[0]
        if sys.stderr is heard[1]:
            sys.stderr = terminals[1]


class _Heard:
    """A terminal that notes who writes to it."""

    def __init__(self, terminal: Any, seen: dict[str, str]) -> None:
        self._terminal, self._seen, self._thread = terminal, seen, threading.get_ident()

    def write(self, text: str) -> Any:
        """Write, and note the line of the user that does.

        Args:
            text: the text as for a file.
        """
        if text.strip() and threading.get_ident() == self._thread:
            line = _writer(sys._getframe(1), traced=_TRACED.search(text) is not None)
            if line:
                self._seen[line] = f"{self._seen.get(line, '')} {text.strip()}".strip()
        return self._terminal.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._terminal, name)


def _writer(frame: FrameType | None, *, traced: bool) -> str:
    """The user's line that writes, through the standard library at most; empty where a library does by itself."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        # Another thread that traces has put its own terminal in front, or a library its own print, as Ray does.
        if module == __name__ or frame.f_code is getattr(builtins.print, "__code__", None):
            frame = frame.f_back
            continue
        if is_users(frame.f_code.co_filename):
            return place_in(frame.f_code, frame.f_lineno)
        if module.split(".")[0] not in sys.stdlib_module_names:
            return ""
        if module.split(".")[0] in _TELLS_APART and not traced:
            return ""
        frame = frame.f_back
    return ""
