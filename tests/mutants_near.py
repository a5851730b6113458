"""The tests that a change of a source file is asked of first: what mirrors, names or imports its module."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "meshwright"
HOPS = 2
"""Importers of importers whose tests are asked at most."""


def tests_near(file: Path) -> Iterator[list[str]]:
    """Rings of tests around a source file: those that mirror or name it, then those of the modules that import it.

    Then those that import its package: what a catalogue loads by name, such as a schedule, they have without naming it.
    Where none does, the folder that mirrors its own.
    """
    seen: set[str] = set()
    ring = {file}
    for _ in range(HOPS + 1):
        tests = [name for one in sorted(ring) for name in _own_tests(one) if name not in seen]
        seen |= set(tests)
        if tests:
            yield list(dict.fromkeys(tests))
        ring = {other for one in ring for other in _importers(one)}
    if behind := [name for name in _own_tests(file.with_name("__init__.py")) if name not in seen]:
        seen |= set(behind)
        yield behind
    folder = Path("tests") / file.relative_to(PACKAGE).parent
    if not seen and (ROOT / folder).is_dir():
        yield [str(folder)]


@cache
def _own_tests(file: Path) -> list[str]:
    """The test file of the same name, then those of its room whose text names the module."""
    within = file.relative_to(PACKAGE)
    own = ROOT / "tests" / within.parent / f"test_{within.stem}.py"
    found = [own] if own.exists() else []
    room = ROOT / "tests" / within.parts[0]
    found += [test for test in sorted(room.rglob("test_*.py")) if test != own and _names(test, file)]
    return [str(test.relative_to(ROOT)) for test in found]


@cache
def _importers(file: Path) -> list[Path]:
    """Modules of the same room that import a source file."""
    room = PACKAGE / file.relative_to(PACKAGE).parts[0]
    return [other for other in sorted(room.rglob("*.py")) if other != file and _names(other, file)]


@cache
def _names(reader: Path, file: Path) -> bool:
    """Whether the text of a file imports a source file."""
    *room, stem = file.relative_to(PACKAGE).with_suffix("").parts
    if stem == "__init__":
        return re.search(rf"from {re.escape('.'.join(('meshwright', *room)))} import", text_of(reader)) is not None
    package = r"\.".join(("meshwright", *room))
    named = rf"{package}\.{stem}\b|from {package} import (?:\([^)]*\b{stem}\b|[^(\n]*\b{stem}\b)"
    return re.search(named, text_of(reader)) is not None


@cache
def text_of(file: Path) -> str:
    """The text of a file, read once."""
    return file.read_text(encoding="utf-8")
