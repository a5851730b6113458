"""Files of rows, one JSON object a line, read as they are needed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from meshwright.errors import InputError, Problem


@contextmanager
def rows_of(path: str) -> Iterator[Iterable[str]]:
    """The lines of a file, or of standard input for `-`; bytes that are no UTF-8 spoil their line only.

    Raises:
        InputError: the file cannot be read.
    """
    if path == "-":
        yield sys.stdin
        return
    try:
        stream = Path(path).expanduser().open(encoding="utf-8-sig", errors="replace")
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        problem = Problem(
            what=f"row file {path!r} cannot be read", why=why, fix="name a file of JSON lines", field="--batch"
        )
        raise InputError(problem, code="MW201") from None
    with stream:
        yield stream
