"""An answer as its numbers: columns of values by path, without the words around them.

`{"plans": [{"name": "tp8", "step_time_s": 1.5}, {"name": "tp4", "step_time_s": 2.0}]}` becomes
`{"plans.*.name": ["tp8", "tp4"], "plans.*.step_time_s": [1.5, 2.0]}`. Sentences may be worded anew at any time, so only
numbers, yes and no, and names such as `tp8.pp4.z1` stay.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Value = float | str | bool | None
Columns = dict[str, list[Value]]

MOST = 500
"""Values of a column that are kept one by one."""

PROSE = {"assumptions", "detail", "fix", "identities", "loses_because", "notes", "source", "start", "text", "title"} | {
    *("warnings", "what", "why"),
}
"""Keys under which are words for people."""

VOLATILE = {
    "timing",  # seconds that a search, a study or a run itself took
    "hash",  # of a plan file, which changes with its format
    "plan_hash",
    "made_by",  # version, commit, calibration and command
    "made_with",  # hashes of what a plan rests on
    "fingerprint",
    "schema",  # version of a format
    "size_bytes",  # of a written file, comments and formatting included
    "date",  # of a calibration
    "core",  # packages that `doctor` found, and where it runs
    "optional",
    "platform",
    "python",
    "version",
}
"""Keys whose values change from run to run, from machine to machine, or with the form of a file."""

ECHOED = re.compile(r"\bplan\.(cluster|model|profile)\.|(^|\.)cluster\.groups\.\*\.device\.|^model\.runs\.")
"""What a plan file repeats of the question, in the form of files; `gpus show` and `models show` are asked for it."""

NAME = re.compile(r"[^\s]{1,100}")
"""Texts that say which one, not how it is put; words for people have spaces."""


def columns_of(document: object) -> Columns:
    """The columns of a JSON document."""
    found: Columns = {}
    for path, value in _leaves(document, ()):
        found.setdefault(".".join(path), []).append(value)
    kept = {path: column for path, column in found.items() if not ECHOED.search(path)}
    return {path: _short(column) for path, column in sorted(kept.items())}


def columns_of_file(path: Path) -> Columns:
    """The columns of a file that a question wrote; none for figures, databases and other forms that are not read.

    Args:
        path: JSON or such lines, gzipped or not; CSV; TOML; a shell script, read as its words without comments.
    """
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", "replace")
    ending = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if ending in (".json", ".jsonl"):
        return columns_of(documents(text))
    if ending == ".csv":
        return columns_of({"rows": [[_number(cell) for cell in row] for row in csv.reader(io.StringIO(text))]})
    if ending == ".toml":
        return columns_of(tomllib.loads(text))
    if ending == ".sh":
        return columns_of({"words": shlex.split(text, comments=True)})
    return {}


def documents(text: str) -> object:
    """One JSON document, or those of each line; None for no text."""
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def _leaves(document: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Value]]:
    if isinstance(document, dict):
        for key, inner in document.items():
            # A key with spaces is a phrase of a table, such as `shape: time bound above the best`.
            if key not in PROSE | VOLATILE and " " not in key:
                yield from _leaves(inner, (*path, key))
    elif isinstance(document, list):
        for inner in document:
            yield from _leaves(inner, (*path, "*"))
    elif not isinstance(document, str) or NAME.fullmatch(document):
        yield path, document


def _number(cell: str) -> Value:
    try:
        return float(cell)
    except ValueError:
        return cell


def _short(column: list[Value]) -> list[Value]:
    """A column of moderate length.

    Of more than MOST values: how many, the first, three sums over the numbers that any change moves and that rounding
    does not, and a digest of the names.
    """
    if len(column) <= MOST:
        return column
    numbers = [0.0 if value is None or isinstance(value, str) else float(value) for value in column]
    names = "\n".join(value for value in column if isinstance(value, str))
    return [
        *(len(column), *column[:20]),
        *(sum(numbers), sum(number * number for number in numbers)),
        sum(place * number for place, number in enumerate(numbers, start=1)),
        hashlib.sha256(names.encode()).hexdigest(),
    ]
