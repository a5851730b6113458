"""`--watch`: a command is answered again whenever a file that it read changes, until it is interrupted.

Every answer is a process of its own, so that nothing of the last one is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from meshwright.cli.commands import WATCH
from meshwright.cli.output import INTERRUPTED
from meshwright.errors import InputError

ANSWERING = "meshwright.cli.seen"
LOOK_S = 0.25
QUIET = ("-q", "--quiet")


def watch(words: Sequence[str]) -> int:
    """Answer until interrupted.

    Args:
        words: the words after the command's name, as typed.

    Returns:
        The exit code: 0 when it is interrupted.

    Raises:
        InputError: it reads no file, or its standard input.
    """
    own = [word for word in words if word != WATCH]
    if "-" in own:
        raise _nothing("standard input is read once")
    speaks = not any(word in QUIET for word in own)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        while True:
            seen = _answered(own, Path(folder) / "seen.json")
            if not seen:
                raise _nothing("the answer depends on no file")
            if speaks:
                _tell(f"watching {', '.join(sorted(map(os.path.relpath, seen)))}; Ctrl+C ends it")
            changed = _changed(seen)
            if speaks:
                _tell(f"{time.strftime('%H:%M:%S')} {os.path.relpath(changed)} changed\n")
    return 0


def _answered(words: Sequence[str], note: Path) -> dict[str, list[int] | None]:
    """Answer once: the files that were read, with their stamps.

    Raises:
        KeyboardInterrupt: the answer was interrupted, or its process ended before it.
    """
    note.unlink(missing_ok=True)
    # -P: a file beside the user's own is no module of ours.
    command = [sys.executable, "-P", "-m", ANSWERING, str(note), str(os.getpid()), *words]
    code = subprocess.run(command, check=False).returncode
    if code == INTERRUPTED or not note.exists():
        raise KeyboardInterrupt
    found: dict[str, list[int] | None] = json.loads(note.read_text(encoding="utf-8"))
    return found


def _tell(text: str) -> None:
    print(f"\n{text}", file=sys.stderr, flush=True)


def _changed(stamps: dict[str, list[int] | None]) -> str:
    """The first file that differs from its stamp, as soon as one does and can be read."""
    while True:
        for path, before in stamps.items():
            now = stamp(path)
            if now is not None and now != before:
                return path
        time.sleep(LOOK_S)


def stamp(path: str) -> list[int] | None:
    """What changes with a file's content: time and size; None where there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_size]


def _nothing(why: str) -> InputError:
    fix = f"leave {WATCH} out, or name a launch script, a plan file, a config or a cluster file"
    return InputError(what="there is nothing to watch", why=why, fix=fix, field="watch", code="MW206")
