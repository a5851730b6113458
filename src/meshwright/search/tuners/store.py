"""Trials in an SQLite file: every row is there before the next trial starts, so a killed study loses none.

The tables stand beside those that Optuna keeps in the same file, and bear names that Optuna does not use.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.search.tuners.base import STATUSES, Outcome, Trial

PREFIX = "sqlite:///"
TABLES = """
CREATE TABLE IF NOT EXISTS meshwright_study (
    id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL, space TEXT NOT NULL, tuner TEXT NOT NULL, signature TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS meshwright_trial (
    study INTEGER NOT NULL REFERENCES meshwright_study(id), number INTEGER NOT NULL, status TEXT NOT NULL, value REAL,
    reason TEXT NOT NULL, name TEXT NOT NULL, excess REAL NOT NULL, took_s REAL NOT NULL, at_s REAL NOT NULL,
    point TEXT NOT NULL, PRIMARY KEY (study, number)
);
"""


def storage_path(storage: str) -> Path:
    """The file that a storage names.

    Args:
        storage: `sqlite:///trials.db`, or just the file.

    Raises:
        InputError: another kind of storage, or a file that cannot be there.
    """
    text = storage.strip()
    if "://" in text and not text.startswith(PREFIX):
        why = "trials are kept in an SQLite file"
        problem = Problem(what=f"storage {text[:80]!r}", why=why, fix="write sqlite:///trials.db", field="storage")
        raise InputError(problem, code="MW250")
    path = Path(text.removeprefix(PREFIX))
    try:
        nameless = not text.removeprefix(PREFIX) or path.is_dir()
        homeless = not path.absolute().parent.is_dir()
    except (OSError, ValueError):  # a name that no file can have
        nameless = homeless = True
    if nameless or homeless:
        why = "it names no file" if nameless else "its folder does not exist"
        problem = Problem(what=f"storage {text[:80]!r}", why=why, fix="write sqlite:///trials.db", field="storage")
        raise InputError(problem, code="MW250")
    return path


@dataclass(slots=True)
class TrialStore:
    """The rows of one study in a file."""

    path: Path
    connection: sqlite3.Connection
    study: int

    @classmethod
    def open(
        cls, path: Path, *, key: str, space: str, tuner: str, signature: str, resume: bool
    ) -> tuple[TrialStore, list[Trial]]:
        """Open a study, new or to go on with.

        Args:
            path: the file.
            key: name of the study.
            space: what is tuned, for people.
            tuner: tuner, algorithm and seed, for people.
            signature: the signature of the space; a study goes on only in its own.
            resume: go on with the study if it is there.

        Returns:
            The store and the trials it holds.

        Raises:
            InputError: the file is no SQLite file or is damaged, or holds the study and `resume` is false, or holds it
                for another space.
        """
        try:
            connection = sqlite3.connect(path, timeout=30)
            connection.executescript(TABLES)
            row = connection.execute("SELECT id, signature FROM meshwright_study WHERE key = ?", (key,)).fetchone()
            if row is None:
                values = (key, space, tuner, signature)
                statement = "INSERT INTO meshwright_study (key, space, tuner, signature) VALUES (?, ?, ?, ?)"
                with connection:
                    number = connection.execute(statement, values).lastrowid or 0
                return cls(path, connection, number), []
            trials = _read(connection, int(row[0]))
        except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
            what = f"{str(path)[:200]!r} cannot be read as a file of trials"
            fix = "name another file; a damaged one cannot go on"
            raise InputError(what=what, why=str(error), fix=fix, field="storage", code="MW251") from None
        problem = None
        if row[1] != signature:
            why = "its axes or rules differ from those asked for now, so its trials mean something else"
            problem = Problem(
                what=f"the study {key!r} is of another space", why=why, fix="name another file", field="storage"
            )
        elif trials and not resume:
            what = f"{path.name} holds {len(trials)} trials of {key!r}"
            problem = Problem(what=what, fix="go on with --resume, or name another file", field="storage")
        if problem is not None:
            connection.close()
            raise InputError(problem, code="MW252")
        return cls(path, connection, int(row[0])), trials

    def append(self, trial: Trial) -> None:
        """Keep a row."""
        outcome = trial.outcome
        row = (
            *(self.study, trial.number, outcome.status, outcome.value, outcome.reason, outcome.name, outcome.excess),
            *(trial.took_s, trial.at_s, json.dumps(trial.point)),
        )
        with self.connection:
            self.connection.execute(f"INSERT INTO meshwright_trial VALUES ({', '.join('?' * len(row))})", row)

    def close(self) -> None:
        """Let the file go."""
        self.connection.close()


def read_studies(path: Path) -> list[tuple[str, str, list[Trial]]]:
    """Every study of a file that is only read: its space and tuner for people, and its trials.

    Args:
        path: the path that `TrialStore.open` made.

    Raises:
        InputError: it is no SQLite file, is damaged, or holds no table of studies.
    """
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
        try:
            rows = connection.execute("SELECT id, space, key FROM meshwright_study ORDER BY id").fetchall()
            return [
                (str(space), key.removeprefix(f"{space}, "), _read(connection, number)) for number, space, key in rows
            ]
        finally:
            connection.close()
    except (sqlite3.Error, ValueError, KeyError, TypeError, AttributeError) as error:
        what, fix = "the file holds no study of ours", "name the file of `tune --storage`"
        raise InputError(what=what, why=str(error), fix=fix, field="storage", code="MW251") from None


def _read(connection: sqlite3.Connection, study: int) -> list[Trial]:
    columns = "number, status, value, reason, name, excess, took_s, at_s, point"
    rows: Sequence[tuple[Any, ...]] = connection.execute(
        f"SELECT {columns} FROM meshwright_trial WHERE study = ? ORDER BY number", (study,)
    ).fetchall()
    return [_trial(*row) for row in rows]


def _trial(
    number: Any, status: Any, value: Any, reason: Any, name: Any, excess: Any, took_s: Any, at_s: Any, point: Any
) -> Trial:
    """A row as a trial; SQLite keeps whatever is written into a column.

    Raises:
        ValueError: it is none of ours.
    """
    settings = json.loads(point)
    numbers = (number, excess, took_s, at_s, *(() if value is None else (value,)))
    sound = (
        status in STATUSES
        and (status != "ok" or value is not None)
        and all(isinstance(one, int | float) and math.isfinite(one) for one in numbers)
        and isinstance(reason, str)
        and isinstance(name, str)
        and isinstance(settings, dict)
        and all(isinstance(one, int | str) for one in settings.values())
    )
    if not sound:
        raise ValueError(f"trial {str(number)[:20]} is damaged")
    outcome = Outcome(status=status, value=value, reason=reason, name=name, excess=excess)
    return Trial(number=number, point=settings, outcome=outcome, took_s=took_s, at_s=at_s)
