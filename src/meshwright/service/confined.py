"""What keeps a worker from its machine: while a question is answered, only the package's files are read.

Only the worker's own folder is written; no program is started, no connection opened.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import meshwright

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_OPENED = frozenset(("open", "os.listdir", "os.scandir", "glob.glob", "os.readlink"))
_OF_TWO = frozenset(("os.rename", "os.link", "os.symlink"))
"""Changes of two places."""
_CHANGED = frozenset(("os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.utime")) | _OF_TWO
_STARTED = (
    *("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "socket.", "shutil."),
    *("sqlite3.", "os.kill", "os.killpg"),
)
_HARMLESS = ("/dev/null", "/dev/urandom")


class Confinement:
    """An audit hook of this process, for its whole life; it refuses only while `closed`."""

    def __init__(self, folder: Path) -> None:
        self.closed = False
        places = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
        library = os.environ.get("MESHWRIGHT_LIBRARY")
        own = [str(folder), str(Path(meshwright.__file__).parent), os.path.expanduser(library or "")]
        self._roots = tuple(f"{os.path.realpath(place)}{os.sep}" for place in (*places, *own) if place)
        self._folder = f"{os.path.realpath(folder)}{os.sep}"
        sys.addaudithook(self._audit)

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Refuse while the body runs."""
        self.closed = True
        try:
            yield
        finally:
            self.closed = False

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.closed:
            return
        if event in _OPENED:
            writes = event == "open" and bool(arguments[2] & _WRITES)
            self._check(arguments[0], (self._folder,) if writes else self._roots)
        elif event in _CHANGED:
            for place in arguments[: 2 if event in _OF_TWO else 1]:
                self._check(place, (self._folder,))
        elif event.startswith(_STARTED):
            raise PermissionError(f"a service does not {event}")

    def _check(self, place: Any, roots: tuple[str, ...]) -> None:
        """Refuse a place below none of the roots; what is open already has a number, not a path."""
        if isinstance(place, int):
            return
        path = os.path.realpath(os.fsdecode(place if place is not None else "."))
        if path not in _HARMLESS and not f"{path}{os.sep}".startswith(roots):
            raise PermissionError(13, "a service reads no file of its machine")
