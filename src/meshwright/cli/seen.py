"""One answer of a command that is watched, in a process of its own: `python -m meshwright.cli.seen SEEN PARENT WORDS`.

Which files it read, and what they were like, is written to SEEN; it ends with the process PARENT.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from meshwright.cli.entry import main
from meshwright.cli.watch import stamp
from meshwright.interruptions import end_with


class Seen:
    """Files that this process reads, with their stamps from before."""

    def __init__(self) -> None:
        """Nothing read yet."""
        self.stamps: dict[str, list[int] | None] = {}
        package = Path(__file__).parents[1]
        places = (package, sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev", "/etc", "/usr")
        self._ours = tuple(os.path.join(os.path.realpath(place), "") for place in places)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """A hook of Python's own that is told of every file before it is opened."""
        if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        _, mode, flags = arguments
        if set(mode or "") & set("wax+") or (mode is None and flags & (os.O_WRONLY | os.O_RDWR)):
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if path.startswith(self._ours) or path in self.stamps or os.path.isdir(path):
            return
        self.stamps[path] = stamp(path)


def answer() -> int:
    """Answer the words, and write down what was read."""
    seen = Seen()
    sys.addaudithook(seen)
    end_with(int(sys.argv[2]))
    code = main(sys.argv[3:])
    found = dict(seen.stamps)
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(answer())
