"""Values of the JSON files that profilers write, every fault told."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from meshwright.errors import Problem
from meshwright.formats.files import read_text

MAX_BYTES = 256 * 1024**2


def read_json(path: Path, faults: list[Problem]) -> object:
    """What a file holds; an empty table where it cannot be read."""
    try:
        return json.loads(read_text(path, "file of profiles", max_bytes=MAX_BYTES))
    except (ValueError, RecursionError) as error:
        if hasattr(error, "problems"):
            raise
        faults.append(Problem(what=f"{path} is not JSON: {error}", why="profilers write JSON", fix="correct the file"))
        return {}


def items(data: object, where: str, faults: list[Problem]) -> list[tuple[str, object]]:
    """Names and values of a table."""
    if isinstance(data, Mapping):
        return [(str(key), value) for key, value in data.items()]
    faults.append(Problem(what=f"{where}: {str(data)[:40]!r} is where a table belongs", why="", fix=""))
    return []


def whole_number(text: str, where: str, faults: list[Problem]) -> int:
    """A whole number written as text; 0 where it is none."""
    try:
        return int(text)
    except ValueError:
        faults.append(Problem(what=f"{where}: {text[:40]!r} is not a whole number", why="", fix=""))
        return 0


def number_list(row: object, count: int, where: str, faults: list[Problem]) -> tuple[float, ...]:
    """A list of so many numbers; empty where it is not such a list."""
    if isinstance(row, list) and len(row) == count and all(isinstance(one, (int, float)) for one in row):
        numbers = tuple(float(one) for one in row)
        if all(map(math.isfinite, numbers)):
            return numbers
    faults.append(
        Problem(what=f"{where}: {str(row)[:60]}", why=f"must be {count} finite numbers", fix="profile it again")
    )
    return ()
