"""The recorded answers: one line a question, gzipped; and where an answer differs from the recorded one."""

from __future__ import annotations

import fnmatch
import gzip
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.answers.ask import Answer
from tests.answers.reduce import Columns, Value

FOLDER = Path(__file__).parent
RECORDED = FOLDER / "recorded.jsonl.gz"
CORRECTIONS = FOLDER / "corrections.toml"

RELATIVE = 1e-9
ABSOLUTE = 1e-12
"""Sums in another order leave residues of this size where terms cancel; no time or rate shown is as small."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A column that is not what was recorded."""

    path: str
    said: str

    def __str__(self) -> str:
        return f"{self.path}: {self.said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Numbers that were wrong when they were recorded, and have been put right since."""

    reason: str
    questions: tuple[str, ...]
    """Patterns of lines, as in a shell."""
    paths: tuple[str, ...]
    """Patterns of paths that may differ there."""

    def allows(self, line: str, path: str) -> bool:
        """Whether a path of a question may differ."""
        return _matches(line, self.questions) and _matches(path, self.paths)


def read_recording(path: Path = RECORDED) -> dict[str, Answer]:
    """The recorded answers by question."""
    if not path.exists():
        return {}
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    return {row["ask"]: Answer(row["exit"], row["columns"]) for row in rows}


def write_recording(answers: Mapping[str, Answer], path: Path = RECORDED) -> None:
    """Write answers; equal answers give equal bytes."""
    rows = (
        json.dumps({"ask": line, "exit": answer.exit_code, "columns": answer.columns}, ensure_ascii=False)
        for line, answer in answers.items()
    )
    path.write_bytes(gzip.compress("".join(f"{row}\n" for row in rows).encode(), mtime=0))


def read_corrections(path: Path = CORRECTIONS) -> list[Correction]:
    """The corrections since the recording."""
    rows = tomllib.loads(path.read_text("utf-8")).get("correction", [])
    return [
        Correction(reason=row["reason"], questions=tuple(row["questions"]), paths=tuple(row["paths"])) for row in rows
    ]


def unexplained(line: str, recorded: Answer, found: Answer, corrections: Sequence[Correction]) -> list[Difference]:
    """Where an answer differs from the recorded one and no correction says that it may."""
    return [
        difference
        for difference in differences(recorded, found)
        if not any(correction.allows(line, difference.path) for correction in corrections)
    ]


def differences(recorded: Answer, found: Answer) -> list[Difference]:
    """Where an answer differs from the recorded one, beyond rounding; it may say more than it did."""
    if recorded.exit_code != found.exit_code:
        code = found.columns.get("code", [""])[0]
        return [Difference("exit", f"{recorded.exit_code} -> {found.exit_code} {code or ''}".rstrip())]
    return [*_columns_differ(recorded.columns, found.columns)]


def _columns_differ(before: Columns, after: Columns) -> Iterator[Difference]:
    for path in before:
        if path not in after:
            yield Difference(path, f"is gone, was {_shown(before[path])}")
        elif len(before[path]) != len(after[path]):
            sizes = f"{len(before[path])} -> {len(after[path])} values"
            yield Difference(path, f"{sizes}: {_shown(before[path])} -> {_shown(after[path])}")
        else:
            pairs = list(enumerate(zip(before[path], after[path], strict=True)))
            changed = [(place, pair) for place, pair in pairs if not same(*pair)]
            if changed:
                place, (old, new) = changed[0]
                yield Difference(path, f"{len(changed)} of {len(pairs)} differ, first at {place}: {_change(old, new)}")


def same(old: Value, new: Value) -> bool:
    """Whether two values are equal, numbers up to rounding."""
    if _is_number(old) and _is_number(new):
        return math.isclose(float(old or 0), float(new or 0), rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return type(old) is type(new) and old == new


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _change(old: Value, new: Value) -> str:
    if _is_number(old) and _is_number(new) and old:
        return f"{old!r} -> {new!r} ({float(new or 0) / float(old) - 1:+.3g})"
    return f"{old!r} -> {new!r}"


def _shown(column: list[Value], most: int = 4) -> str:
    return f"[{', '.join(map(repr, column[:most]))}{', ...' if len(column) > most else ''}]"


def _matches(text: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)
