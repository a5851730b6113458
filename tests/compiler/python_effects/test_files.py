"""Files that a step writes while it is traced: an error with the line, or no word where a cache writes once."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.compiler.tracing.trace import trace_step
from meshwright.errors import InputError

WEIGHTS, BATCH = jnp.ones((3, 2)), jnp.ones((8, 3))


def step_that(act: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        gradient = jax.grad(lambda w: (x @ w).mean())(w)
        act(w)  # here
        return w - gradient

    return step


def refused(act: Callable[[Any], Any]) -> str:
    with pytest.raises(InputError) as caught:
        trace_step(step_that(act), (WEIGHTS, BATCH))
    return str(caught.value)


def dumped(value: Any, path: Path) -> None:
    with path.open("w") as file:
        json.dump(value, file)


WRITERS: dict[str, Callable[[Path], Callable[[Any], Any]]] = {
    "text": lambda path: lambda w: path.write_text("a step"),
    "appended": lambda path: lambda w: open(path, "a").close(),
    "json": lambda path: lambda w: dumped({"shape": w.shape}, path),
    "array": lambda path: lambda w: np.save(path, np.zeros(w.shape)),
    "traced values as json": lambda path: lambda w: dumped({"weights": w}, path),
    "traced values as an array": lambda path: lambda w: np.save(path, w),
    "descriptor": lambda path: lambda w: os.close(os.open(path, os.O_WRONLY | os.O_CREAT)),
    "folder": lambda path: lambda w: (path.parent / f"more{len(list(path.parent.iterdir()))}").mkdir(),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_written_at_trace_time_is_refused_with_its_line(writer: str, tmp_path: Path) -> None:
    said = refused(WRITERS[writer](tmp_path / "log.npy"))
    assert "test_files.py:" in said
    assert ("makes" if writer == "folder" else "writes") in said
    assert str(tmp_path) in said
    assert "jax.debug.callback" in said


def test_a_file_that_is_open_already_is_told_from_one_that_is_only_read(tmp_path: Path) -> None:
    with (tmp_path / "log.csv").open("w") as log:
        assert "writes " in refused(lambda w: log.write(f"{w.shape}\n"))
        assert "writes " in refused(lambda w: print(w.shape, file=log))
    memory = io.StringIO()
    assert "writes memory" in refused(lambda w: memory.write("a step"))
    (tmp_path / "config.json").write_text('{"rate": 1.0}')
    with (tmp_path / "config.json").open() as held:
        trace_step(step_that(lambda w: (held.seek(0), json.load(held))), (WEIGHTS, BATCH))
    trace_step(step_that(lambda w: json.loads((tmp_path / "config.json").read_text())), (WEIGHTS, BATCH))


def test_a_cache_that_is_written_once_and_modules_that_are_compiled_are_no_effects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cached(w: Any) -> None:
        if not (tmp_path / "table.npy").exists():
            np.save(tmp_path / "table.npy", np.zeros(w.shape))

    trace_step(step_that(cached), (WEIGHTS, BATCH))
    (tmp_path / "late_module.py").write_text("VALUE = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)

    def imports(w: Any) -> None:
        sys.modules.pop("late_module", None)
        (pyc := tmp_path / "__pycache__").is_dir() and [one.rename(tmp_path / "old") for one in pyc.iterdir()]
        __import__("late_module")

    assert "renames" in refused(imports)
    trace_step(step_that(lambda w: (sys.modules.pop("late_module", None), __import__("late_module"))), (WEIGHTS, BATCH))


def test_what_loggers_and_devnull_are_told_is_no_file_of_the_step() -> None:
    trace_step(step_that(lambda w: logging.getLogger("mine").debug("shape %s", w.shape)), (WEIGHTS, BATCH))
    trace_step(step_that(lambda w: open(os.devnull, "w").close()), (WEIGHTS, BATCH))


def test_files_are_written_freely_once_the_step_is_read(tmp_path: Path) -> None:
    trace_step(step_that(lambda w: None), (WEIGHTS, BATCH))
    (tmp_path / "after.txt").write_text("free")
    assert (tmp_path / "after.txt").read_text() == "free"


def test_what_ends_a_trace_is_said_beside_the_file_that_it_writes(tmp_path: Path) -> None:
    def act(w: jax.Array) -> None:
        (tmp_path / "log.txt").write_text("a step")
        float(w.sum())

    said = refused(act)
    assert said.index("writes ") < said.index("needs the number behind a traced value")
    with (tmp_path / "log.csv").open("w") as log:
        assert "writes " in refused(lambda w: json.dump({"weights": w}, log))


def test_a_file_that_nobody_closes_is_said(tmp_path: Path) -> None:
    left: list[Any] = []

    def act(w: jax.Array) -> None:
        left.append((tmp_path / "log.json").open("w"))
        json.dump({"weights": w}, left[-1])

    said = refused(act)
    for file in left:
        file.close()
    assert "writes " in said.splitlines()[0]
