"""A tuner's study as it was kept: the SQLite file of `tune --storage`, or a table of trials in CSV or Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.app.tune import Judged
from meshwright.errors import InputError, Problem
from meshwright.search.tuners.base import STATUSES, Outcome, Trial
from meshwright.search.tuners.store import read_studies
from meshwright.search.tuners.study import Study

SQLITE, PARQUET = b"SQLite format 3\0", b"PAR1"
NUMBERS, VALUES, STATES = ("trial", "number"), ("value", "step_time_s", "sample_time_s"), ("status", "state")
"""Columns that say one thing, by ours and by the names that tuners have for them."""
OUTCOMES = ("name", "reason", "took_s", "at_s")
SETTING = "params_"
"""Prefix of a trial's settings, as Optuna writes its table."""
STATE_OF = {"complete": "ok", "pruned": "infeasible", "fail": "illegal"}
CODE = "MW251"


def studies_of_file(path: Path) -> dict[str, Any]:
    """Studies of a file beside each other, each with its trials.

    Args:
        path: SQLite, Parquet or CSV, told apart by what it holds.

    Raises:
        InputError: it holds no trials, or says of one what cannot be.
        UnsupportedError: it is Parquet, and pyarrow is not installed.
    """
    begin = path.read_bytes()[: len(SQLITE)]
    studies = _of_storage(path) if begin == SQLITE else [_of_table(path.stem, _rows(path, begin))]
    if not any(one.study.trials for one in studies):
        raise _no_study("it has no trials")
    spaces = list(dict.fromkeys(one.study.space for one in studies))
    return {
        "space": spaces[0] if len(spaces) == 1 else f"{len(spaces)} spaces",
        "objective": "step_time_s",
        "size": None,
        "budget": max(len(one.study.trials) for one in studies),
        "optimum": None,
        "studies": [one.to_dict(None, trials=True) for one in studies],
    }


def _of_storage(path: Path) -> list[Judged]:
    found = read_studies(path)
    alike = len({space for space, _, _ in found}) == 1
    return [
        Judged(label=tuner if alike else f"{space}: {tuner}", study=_study(space, tuner, trials))
        for space, tuner, trials in found
    ]


def _of_table(name: str, rows: Sequence[Mapping[str, Any]]) -> Judged:
    value = next((one for one in VALUES if rows and one in rows[0]), None)
    if value is None:
        raise _no_study(f"none of its columns is {' or '.join(VALUES)}")
    return Judged(label=name, study=_study(name, name, list(_trials(rows, value))))


def _study(space: str, tuner: str, trials: Sequence[Trial]) -> Study:
    return Study(
        space=space,
        objective="step_time_s",
        tuner=tuner,
        algorithm="",
        scheduler="none",
        seed=0,
        trials=tuple(trials),
        resumed=0,
    )


def _trials(rows: Sequence[Mapping[str, Any]], value: str) -> Iterator[Trial]:
    problems = []
    for place, row in enumerate(rows):
        found = _number(row[value])
        state = next((str(row[name]).lower() for name in STATES if row.get(name)), "ok" if found else "illegal")
        status = STATE_OF.get(state.removeprefix("trialstate."), state)
        if status not in STATUSES or (status == "ok" and not (found and found > 0)):
            what = f"trial {place}: {value} is {str(row[value])[:40]!r}, its status {state[:40]!r}"
            why = f"a trial is {', '.join(STATUSES)}, and one that is ok has a time above 0"
            problems.append(Problem(what=what, why=why, field=value))
            continue
        known = {value, *NUMBERS, *STATES, *OUTCOMES}
        point = {
            name.removeprefix(SETTING): _setting(cell)
            for name, cell in row.items()
            if name not in known and (name.startswith(SETTING) or not _of_optuna(name))
        }
        name, reason = (str(row.get(key) or "") for key in OUTCOMES[:2])
        outcome = Outcome(status=status, value=found, reason=reason, name=name)
        number = next((int(_number(row[one]) or 0) for one in NUMBERS if one in row), place)
        yield Trial(number=number, point=point, outcome=outcome, took_s=0.0, at_s=0.0)
    if problems:
        raise InputError(problems[:8], code=CODE)


def _of_optuna(name: str) -> bool:
    """Columns beside the settings in a table that Optuna wrote."""
    return name in ("datetime_start", "datetime_complete", "duration") or name.startswith(
        ("user_attrs_", "system_attrs_")
    )


def _rows(path: Path, begin: bytes) -> list[dict[str, Any]]:
    if begin.startswith(PARQUET):
        from meshwright.formats.sweep_file import parquet

        pyarrow, module = parquet()
        try:
            rows: list[dict[str, Any]] = module.read_table(path).to_pylist()
        except pyarrow.ArrowException as error:
            raise _no_study(str(error).partition("\n")[0][:160]) from None
        return rows
    try:
        text = path.read_text(encoding="utf-8-sig")
        return [
            {name: cell for name, cell in row.items() if isinstance(name, str)}
            for row in csv.DictReader(io.StringIO(text))
        ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise _no_study(f"it is no text of comma-separated values: {error}"[:160]) from None


def _number(cell: Any) -> float | None:
    try:
        found = float(cell)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _setting(cell: Any) -> Any:
    """A setting as a number where it is one, so that values are in order of size."""
    found = _number(cell)
    if found is None or isinstance(cell, bool):
        return cell if isinstance(cell, str) else json.dumps(cell, default=str)
    return int(found) if found == int(found) else found


def _no_study(why: str) -> InputError:
    what = "the file holds no study"
    fix = "drop the file of `tune --storage`, the answer of `tune --json`, or a table with the columns value and status"
    return InputError(what=what, why=why, fix=fix, field="study", code=CODE)
