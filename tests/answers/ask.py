"""Asks meshwright one question as a user types it, and reduces the answer to its numbers.

    python -m tests.answers.ask "plan gpt2 --gpus 4xH100 --gbs 16"

Only the command's words, its JSON and the files it writes are used, so that nothing here depends on how the package is
built inside.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.answers.questions import MADE
from tests.answers.reduce import Columns, columns_of, columns_of_file, documents
from tests.answers.schemas import faults
from tests.virtual_devices import eight_devices

TESTS = Path(__file__).parents[1]
GIVEN = (
    *sorted((TESTS / "answers" / "files").iterdir()),
    *sorted((TESTS / "data" / "clusters").iterdir()),
    TESTS / "data" / "profiles",
    TESTS / "app" / "data" / "measured_sample.csv",
)
"""Files that every question finds in its folder."""

FAILED = "meshwright.error/"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question came to."""

    exit_code: int
    columns: Columns


def ask(line: str, folder: Path) -> Answer:
    """The answer to one line, `NAME=value` before the verb as in a shell, held against its published schema.

    Args:
        line: a command line without `--json`.
        folder: where files that meshwright makes for questions are kept from one question to the next.
    """
    for name in _files_named(line):
        _make(name, folder)
    with _place(folder) as place:
        given = set(place.iterdir())
        code, out, err = _run(line, place)
        document = documents(out)
        if isinstance(document, dict) and "schema" in document:
            found = faults(document)
            assert not found, f"{line}: not as docs/schemas says: {found[:5]}"
        if code != 0 and FAILED in out + err:
            return Answer(code, {"code": columns_of(documents(out or err))["code"]})
        columns = columns_of(document)
        for path in _written(place, given):
            within = path.relative_to(place)
            columns |= {f"{within}: {name}": column for name, column in columns_of_file(path).items()}
        return Answer(code, columns)


def printed(line: str, folder: Path) -> Iterator[Mapping[str, Any]]:
    """Whole documents that a line prints, those of a batch apart; arguments as `ask` takes them."""
    for name in _files_named(line):
        _make(name, folder)
    with _place(folder) as place:
        _, out, _ = _run(line, place)
    found = documents(out)
    if isinstance(found, dict) and "schema" in found:
        yield found


def _make(name: str, folder: Path) -> None:
    """Have meshwright write a file that questions read."""
    if (folder / name).exists():
        return
    for needed in _files_named(MADE[name]):
        if needed != name:
            _make(needed, folder)
    with _place(folder) as place:
        code, _, err = _run(MADE[name], place)
        if code != 0:
            raise RuntimeError(f"{MADE[name]}: exit {code}\n{err}")
        shutil.move(place / name, folder / name)


@contextlib.contextmanager
def _place(folder: Path) -> Iterator[Path]:
    """A new folder with links to all files; its name is always the same, as it may become part of an answer."""
    with tempfile.TemporaryDirectory(dir=folder) as outer:
        place = Path(outer) / "here"
        place.mkdir()
        made = (folder / name for name in MADE)
        for source in (*GIVEN, *(path for path in made if path.exists())):
            (place / source.name).symlink_to(source)
        yield place


def _files_named(line: str) -> list[str]:
    """Files of MADE that a line mentions, as `plans.json`, `plans.json#2`, `launch/train.sh` or `LIBRARY=library`."""
    words = (word.split("=")[-1].split("#")[0].split("/")[0] for word in line.split())
    return list(dict.fromkeys(word for word in words if word in MADE))


def _written(place: Path, given: set[Path]) -> list[Path]:
    """Files that were not there before."""
    new = (path for path in place.iterdir() if path not in given)
    return sorted(file for path in new for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def _run(line: str, place: Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a line with `--json`, run in a folder."""
    eight_devices()
    from meshwright.cli import main

    words = line.split()
    settings = {}
    while "=" in words[0]:
        name, value = words.pop(0).split("=", 1)
        settings[name] = str(place / value)
    out, err = io.StringIO(), io.StringIO()
    with _settings(settings), contextlib.chdir(place), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*words, "--json"])
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def _settings(settings: dict[str, str]) -> Iterator[None]:
    """The process's environment with these, and without what a user may have set for meshwright."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("MESHWRIGHT_")]:
        del os.environ[name]
    os.environ |= settings
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def _show(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for line in lines:
            answer = ask(line, Path(folder))
            print(f"{line}\nexit {answer.exit_code}")
            for path, column in answer.columns.items():
                print(f"  {path}: {' '.join(map(str, column))}")


if __name__ == "__main__":
    _show(sys.argv[1:])
