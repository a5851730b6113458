"""Entries of JAX's disk cache: who is killed in the middle of one leaves none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jax._src.lru_cache import LRUCache

from meshwright.runtime.compilation_cache import write_whole_entries

PROGRAM = b"program" * 1000


def test_an_entry_cut_short_is_not_there_and_can_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole_entries()
    entries = LRUCache(str(tmp_path), max_size=-1)

    def cut_short(place: Any, value: bytes) -> None:
        with open(place, "wb") as stream:
            stream.write(value[: len(value) // 2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(entries.path), "write_bytes", cut_short)
        with pytest.raises(KeyboardInterrupt):
            entries.put("step", PROGRAM)
    assert entries.get("step") is None
    entries.put("step", PROGRAM)
    assert entries.get("step") == PROGRAM


def test_what_is_there_stays_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_whole_entries()
    entries = LRUCache(str(tmp_path), max_size=-1)
    entries.put("step", PROGRAM)
    entries.put("step", b"another")
    assert entries.get("step") == PROGRAM
    assert [path.name for path in tmp_path.iterdir()] == ["step-cache"]


def test_a_cache_with_a_limit_drops_what_was_used_longest_ago(tmp_path: Path) -> None:
    pytest.importorskip("filelock")
    write_whole_entries()
    entries = LRUCache(str(tmp_path), max_size=2 * len(PROGRAM))
    for key in ("first", "second", "third"):
        entries.put(key, PROGRAM)
    assert [entries.get(key) for key in ("first", "second", "third")] == [None, PROGRAM, PROGRAM]
