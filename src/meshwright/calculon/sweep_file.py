"""The Parquet file of a sweep: rows as designs end, valid whenever writing stops, and gone on with later.

    rows       one execution each: design, rank, whether on the front, its keys, all statistics
    metadata   under `meshwright.sweep`: what was asked, which designs are complete, their certificates or why not

While a sweep runs its rows go to a hidden file beside the output, which takes the output's place at the end.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from meshwright.calculon.executions import COUNTS, FLAGS, KEYS, ExecutionColumns
from meshwright.calculon.inputs import CHOICES
from meshwright.calculon.statistics import STATISTICS
from meshwright.errors import InputError, Problem, UnsupportedError

METADATA = "meshwright.sweep"
SCHEMA = "meshwright.calculon-sweep/1"
ROWS_AT_ONCE = 1 << 16
"""Rows of a group, and rows copied together."""
FILE_CODE, EXTRA_CODE = "MW244", "MW409"

DESIGN_COLUMNS = ("design", "app", "system", "batch", "number", "rank", "on_front")
"""Columns before the execution's keys: the design, the position in its space, rank by sample rate or null."""


def parquet() -> tuple[ModuleType, ModuleType]:
    """pyarrow and its Parquet module.

    Raises:
        UnsupportedError: it is not installed; says how to install it.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        what = "a sweep writes Parquet, and pyarrow is not installed"
        fix = "pip install 'meshwright[sweep]'"
        raise UnsupportedError(
            Problem(what=what, why="it is an extra", fix=fix, field="sweep"), code=EXTRA_CODE
        ) from None
    return pyarrow, pyarrow.parquet


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """A design whose rows are all in the file."""

    design: int
    rows: int
    about: Mapping[str, Any]
    """Its names, certificate, and why it has no rows if it has none."""

    def to_dict(self) -> dict[str, Any]:
        """As data."""
        return {"design": self.design, "rows": self.rows, "about": dict(self.about)}


@dataclass(slots=True)
class SweepFile:
    """Writes one sweep's file; `close` makes it valid, complete or not."""

    path: Path
    fingerprint: str
    complete: list[Complete] = field(default_factory=list)
    _writer: Any = None
    _held: dict[str, list[Any]] = field(default_factory=dict)
    _rows: int = 0

    @property
    def partial(self) -> Path:
        """Where rows go until the end."""
        return self.path.with_name(f".{self.path.name}.{os.getpid()}.part")

    def open(self) -> None:
        """Begin.

        Raises:
            InputError: the file cannot be written.
        """
        _, module = parquet()
        self._tidy()
        try:
            self._writer = module.ParquetWriter(str(self.partial), arrow_schema(), compression="zstd")
        except OSError as error:
            raise _unusable(
                self.path, error.strerror or str(error), "name a file in a folder you can write to"
            ) from None

    def _tidy(self) -> None:
        """Remove what sweeps that were killed left of this file."""
        for left in self.path.parent.glob(f".{glob.escape(self.path.name)}.*.part"):
            process = left.suffixes[-2].removeprefix(".")
            if process.isdigit() and not alive(int(process)):
                left.unlink(missing_ok=True)

    def add(self, design: Mapping[str, Any], numbers: np.ndarray, columns: ExecutionColumns, values: Mapping[str, Any],
            rank: Mapping[int, int], front: frozenset[int]) -> int:  # fmt: skip
        """Rows of a design.

        Args:
            design: `design`, `app`, `system` and `batch`.
            numbers: positions in the design's space.
            columns: the executions.
            values: statistics by name.
            rank: by position, of the best executions.
            front: positions on the front.

        Returns:
            Rows added.
        """
        rows = len(numbers)
        if rows:
            self._writer.write_table(
                table_of(design, numbers, columns, values, rank, front), row_group_size=ROWS_AT_ONCE
            )
        return rows

    def end(self, design: int, rows: int, about: Mapping[str, Any]) -> None:
        """All rows of a design are added."""
        self.complete.append(Complete(design=design, rows=rows, about=about))

    def close(self) -> None:
        """Make the file valid and put it in its place."""
        data = {
            "schema": SCHEMA,
            "fingerprint": self.fingerprint,
            "designs": [one.to_dict() for one in sorted(self.complete, key=lambda one: one.design)],
        }
        self._writer.add_key_value_metadata({METADATA: json.dumps(data, sort_keys=True)})
        self._writer.close()
        self.partial.replace(self.path)

    def abandon(self) -> None:
        """Leave nothing behind but what was in place before."""
        if self._writer is not None:
            with suppress(Exception):
                self._writer.close()
        self.partial.unlink(missing_ok=True)

    def go_on(self) -> None:
        """Take in the complete designs of the file that is there.

        Raises:
            InputError: it is no sweep, it is corrupt or truncated, or it asks something else.
        """
        pyarrow, module = parquet()
        try:
            with module.ParquetFile(str(self.path)) as old:
                self.complete = _read_metadata(self.path, old, self.fingerprint)
                kept = pyarrow.array([one.design for one in self.complete], type=pyarrow.int32())
                for batch in old.iter_batches(batch_size=ROWS_AT_ONCE):
                    wanted = pyarrow.compute.is_in(batch.column("design"), value_set=kept)
                    self._writer.write_batch(batch.filter(wanted).cast(arrow_schema()), row_group_size=ROWS_AT_ONCE)
        except InputError:
            raise
        except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
            reason = (
                f"it is corrupt or truncated: {str(error).splitlines()[0][:200]}" if str(error) else "it is corrupt"
            )
            raise _unusable(self.path, reason, _AGAIN) from None


def alive(process: int) -> bool:
    """Whether there is such a process, of whatever user."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


_AGAIN = "sweep again without --resume, into another file or with --force"


def _read_metadata(path: Path, file: Any, fingerprint: str) -> list[Complete]:
    text = (file.schema_arrow.metadata or {}).get(METADATA.encode()) or (file.metadata.metadata or {}).get(
        METADATA.encode()
    )
    if text is None:
        raise _unusable(path, "it is a Parquet file, but no sweep of meshwright wrote it", _AGAIN)
    data = json.loads(text)
    if data.get("schema") != SCHEMA:
        raise _unusable(path, f"its schema is {data.get('schema')!r}, this version writes {SCHEMA!r}", _AGAIN)
    if data["fingerprint"] != fingerprint:
        why = "it answers another question: other models, systems, processors, batches or options"
        raise _unusable(path, why, "repeat the first command and add --resume, or name another file")
    complete = [Complete(design=one["design"], rows=one["rows"], about=one["about"]) for one in data["designs"]]
    if sum(one.rows for one in complete) > file.metadata.num_rows:
        raise _unusable(path, "it is corrupt: it has fewer rows than it says", _AGAIN)
    return complete


def arrow_schema() -> Any:
    """Columns and their types."""
    arrow, _ = parquet()
    names = arrow.dictionary(arrow.int32(), arrow.string())
    types = {"design": arrow.int32(), "app": names, "system": names, "batch": arrow.int64(), "number": arrow.int64(),
             "rank": arrow.int32(), "on_front": arrow.bool_()}  # fmt: skip
    for key in KEYS:
        types[key] = arrow.int32() if key in COUNTS else arrow.bool_() if key in FLAGS else names
    for name in STATISTICS:
        types[name] = arrow.float64()
    return arrow.schema([arrow.field(name, kind) for name, kind in types.items()])


def table_of(
    design: Mapping[str, Any],
    numbers: np.ndarray,
    columns: ExecutionColumns,
    values: Mapping[str, Any],
    rank: Mapping[int, int],
    front: frozenset[int],
) -> Any:
    """Rows as an Arrow table; the arguments are those of `SweepFile.add`."""
    arrow, _ = parquet()
    schema = arrow_schema()
    rows = len(numbers)

    def named(codes: np.ndarray, names: tuple[str, ...]) -> Any:
        return arrow.DictionaryArray.from_arrays(arrow.array(codes.astype(np.int32)), list(names))

    same = np.zeros(rows, dtype=np.int32)
    arrays: dict[str, Any] = {
        "design": np.full(rows, design["design"]),
        "app": named(same, (design["app"],)),
        "system": named(same, (design["system"],)),
        "batch": np.full(rows, design["batch"]),
        "number": numbers,
        "rank": [rank.get(number) for number in numbers.tolist()],
        "on_front": [number in front for number in numbers.tolist()],
    }
    for key in KEYS:
        column = getattr(columns, key)
        arrays[key] = named(column, CHOICES[key]) if key in CHOICES else column
    for name in STATISTICS:
        arrays[name] = arrow.array(values[name].astype(np.float64), from_pandas=True)
    fields = [
        array if isinstance(array, arrow.Array) else arrow.array(array, type=schema.field(name).type)
        for name, array in arrays.items()
    ]
    return arrow.table(fields, schema=schema)


def read_sweep(path: str | Path) -> Iterator[dict[str, Any]]:
    """Rows of a sweep's file, one dictionary each.

    Args:
        path: the file.

    Raises:
        InputError: it cannot be read.
    """
    arrow, module = parquet()
    try:
        with module.ParquetFile(str(path)) as file:
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                yield from batch.to_pylist()
    except (arrow.ArrowException, OSError) as error:
        raise _unusable(Path(path), f"it cannot be read: {str(error)[:200]}", "name the output of a sweep") from None


def _unusable(path: Path, why: str, fix: str) -> InputError:
    what = f"{str(path)[:200]!r} cannot be used for a sweep"
    return InputError(Problem(what=what, why=why, fix=fix, field="output"), code=FILE_CODE)
