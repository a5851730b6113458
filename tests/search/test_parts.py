"""Rows in parts: each once, in this thread where they are few, in several where several are worth it."""

from __future__ import annotations

import threading

import pytest

from meshwright.search import parts
from meshwright.search.parts import in_parts


def threads_and_rows(count: int) -> tuple[set[str], list[int]]:
    """Threads that were called in, and the rows that they were given."""
    called: list[tuple[str, list[int]]] = []
    in_parts(count, lambda part: called.append((threading.current_thread().name, list(range(count)[part]))))
    return {name for name, _ in called}, sorted(row for _, rows in called for row in rows)


@pytest.mark.parametrize(("count", "available", "here"), [(0, 4, True), (10, 4, True), (11, 4, False), (95, 1, True)])
def test_every_row_is_in_one_part_and_two_parts_are_worth_a_second_thread(
    count: int, available: int, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 10)
    monkeypatch.setattr(parts, "threads", lambda: available)
    own = threading.current_thread().name
    names, rows = threads_and_rows(count)
    assert rows == list(range(count))
    assert names <= {own} if here else own not in names
