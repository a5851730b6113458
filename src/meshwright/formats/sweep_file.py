"""The Parquet file of a sweep: rows as designs end, valid whenever writing stops, and gone on with later.

    rows       some of each design; its column `design` says which, the other columns are those of the sweep
    metadata   under `meshwright.sweep`: what was asked, which designs are complete, what came of each

While a sweep runs its rows go to parts of the same form in a hidden folder beside the output (`sweep_parts`). They
become the output at the end; of a sweep that was killed they stay, and going on takes them in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.sweep_parts import PartsFolder, left_of
from meshwright.formats.writing import reason_of, remedy_of
from meshwright.interruptions import uninterrupted

METADATA = "meshwright.sweep"
ROWS_AT_ONCE = 1 << 16
"""Rows of a group of the file."""
FILE_CODE, EXTRA_CODE = "MW244", "MW409"


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
        raise UnsupportedError(what=what, why="it is an extra", fix=fix, field="sweep", code=EXTRA_CODE) from None
    return pyarrow, pyarrow.parquet


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """A design whose rows are all in the file."""

    design: int
    rows: int
    about: Mapping[str, Any]
    """Names of the design, what was found, and why it has no rows if it has none."""

    def to_dict(self) -> dict[str, Any]:
        """As data."""
        return {"design": self.design, "rows": self.rows, "about": dict(self.about)}


@dataclass(slots=True)
class SweepFile:
    """Writes one sweep's file: parts as designs end, and the file itself, complete or not, when it is closed."""

    path: Path
    schema: str
    """Schema of the answer, with its version."""
    columns: Callable[[], Any]
    """Makes the Arrow schema of the rows."""
    fingerprint: str
    """Fingerprint of the question: a file is only gone on with under the same."""
    complete: list[Complete] = field(default_factory=list)
    """Designs whose rows are on the disk or will be, those of earlier runs included."""
    _own: PartsFolder | None = None
    _left: list[PartsFolder] = field(default_factory=list)
    _earlier: list[tuple[Path, list[Complete]]] = field(default_factory=list)
    """Files of earlier runs, and the designs that are taken of each."""
    _writer: Any = None
    _ended: list[Complete] = field(default_factory=list)
    """Designs of the part that is begun."""
    _loose_rows: int = 0
    """Rows of a design that has not ended."""

    @property
    def place(self) -> Path:
        """Where the file is: what the path names, should it be a symbolic link."""
        return Path(os.path.realpath(self.path))

    def open(self, *, resume: bool) -> None:
        """Begin.

        Args:
            resume: go on with the file that is there, and with what a sweep that was killed left; both go otherwise.

        Raises:
            InputError: the file cannot be written; what is there is no sweep, corrupt, or asks something else.
        """
        parquet()
        try:
            self._left += left_of(self.place)
            if resume:
                whole = [self.place] if self.place.exists() else []
                for file in (*whole, *(part for left in self._left for part in left.parts)):
                    self._take_in(file)
            self._own = PartsFolder.make(self.place)
        except OSError as error:
            self.abandon()
            raise _unusable(self.path, reason_of(error), remedy_of(error)) from None
        except BaseException:
            self.abandon()
            raise

    def _take_in(self, file: Path) -> None:
        """Count the complete designs of an earlier run, which `close` copies."""
        pyarrow, module = parquet()
        try:
            with module.ParquetFile(str(file)) as old:
                seen = {one.design for one in self.complete}
                new = [one for one in self._designs_of(old) if one.design not in seen]
                for _ in old.iter_batches(batch_size=ROWS_AT_ONCE, columns=["design"]):
                    pass  # a file cut short says so here, before hours of work
        except InputError:
            raise
        except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
            reason = (
                f"it is corrupt or truncated: {str(error).splitlines()[0][:200]}" if str(error) else "it is corrupt"
            )
            raise _unusable(self.path, reason, _AGAIN) from None
        self._earlier.append((file, new))
        self.complete += new

    def add(self, rows: Any) -> int:
        """Rows of a design.

        Args:
            rows: an Arrow table of the columns.

        Returns:
            Rows added.
        """
        if rows.num_rows:
            with uninterrupted():
                self._begin().write_table(rows, row_group_size=ROWS_AT_ONCE)
                self._loose_rows += rows.num_rows
        return int(rows.num_rows)

    def end(self, design: int, rows: int, about: Mapping[str, Any]) -> None:
        """All rows of a design are added."""
        one = Complete(design=design, rows=rows, about=about)
        with uninterrupted():
            self.complete.append(one)
            self._ended.append(one)
            self._loose_rows = 0
            if self._folder.due:
                self._finish_part()

    def close(self) -> None:
        """Put all that is complete into the file, in one step; once only."""
        if self._own is None:
            return
        with uninterrupted():
            self._finish_part()
            self._replace(self._joined(self._folder.parts))
            self._own = None

    def abandon(self) -> None:
        """Leave what was in place before, and parts that are complete for a later run."""
        if self._writer is not None:
            with suppress(Exception):
                self._writer.close()
            self._writer = None
        for left in self._left:
            left.leave()
        if self._own is not None:
            self._own.begun.unlink(missing_ok=True)
            if self._own.parts:
                self._own.leave()
            else:
                self._own.remove()

    @property
    def _folder(self) -> PartsFolder:
        assert self._own is not None, "the file is open"
        return self._own

    def _begin(self) -> Any:
        """What writes the part that is begun."""
        if self._writer is None:
            _, module = parquet()
            self._writer = module.ParquetWriter(str(self._folder.begun), self.columns(), compression="zstd")
        return self._writer

    def _finish_part(self) -> None:
        writer = self._begin()
        writer.add_key_value_metadata({METADATA: self._metadata(self._ended)})
        writer.close()
        self._writer, self._ended = None, []
        self._folder.keep()

    def _metadata(self, designs: list[Complete]) -> str:
        ordered = sorted(designs, key=lambda one: one.design)
        data = {"schema": self.schema, "fingerprint": self.fingerprint, "designs": [one.to_dict() for one in ordered]}
        return json.dumps(data, sort_keys=True)

    def _joined(self, parts: list[Path]) -> Path:
        """One file of the complete designs of earlier files and of the parts of this run, in the order of the designs.

        Its bytes are those of the rows, whenever parts ended and in whatever order designs did.
        """
        _, module = parquet()
        with ExitStack() as opened:
            held: dict[int, _Held] = {}
            for path, designs in [*self._earlier, *((part, None) for part in parts)]:
                file = opened.enter_context(module.ParquetFile(str(path)))
                one = _Held(file)
                held |= {done.design: one for done in (self._designs_of(file) if designs is None else designs)}
            with module.ParquetWriter(str(self._folder.begun), self.columns(), compression="zstd") as writer:
                groups = _regrouped(
                    rows.cast(self.columns()) for design in sorted(held) for rows in held[design].rows_of(design)
                )
                for rows in groups:
                    writer.write_table(rows, row_group_size=ROWS_AT_ONCE)
                writer.add_key_value_metadata({METADATA: self._metadata(self.complete)})
        return self._folder.begun

    def _designs_of(self, file: Any) -> list[Complete]:
        """The complete designs of a file that asks the same."""
        path = self.path
        text = (file.schema_arrow.metadata or {}).get(METADATA.encode()) or (file.metadata.metadata or {}).get(
            METADATA.encode()
        )
        if text is None:
            raise _unusable(path, "it is a Parquet file, but no sweep of meshwright wrote it", _AGAIN)
        data = json.loads(text)
        if data.get("schema") != self.schema:
            why = f"its schema is {data.get('schema')!r}, and this sweep writes {self.schema!r}"
            raise _unusable(path, why, _AGAIN)
        if data["fingerprint"] != self.fingerprint:
            why = "it answers another question: other models, systems, processors, batches or options"
            raise _unusable(path, why, "repeat the first command and add --resume, or name another file")
        complete = [Complete(design=one["design"], rows=one["rows"], about=one["about"]) for one in data["designs"]]
        if sum(one.rows for one in complete) > file.metadata.num_rows:
            raise _unusable(path, "it is corrupt: it has fewer rows than it says", _AGAIN)
        return complete

    def _replace(self, file: Path) -> None:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
        file.replace(self.place)
        for folder in (*self._left, self._folder):
            folder.remove()


@dataclass(slots=True)
class _Held:
    """A file whose rows are looked up by their design."""

    file: Any
    groups: dict[int, list[int]] = field(default_factory=dict)
    """Row groups with rows of each design."""
    last: tuple[int, Any] = (-1, None)
    """The group that was read last: neighbours often share one."""

    def __post_init__(self) -> None:
        for number in range(self.file.num_row_groups):
            for design in self.file.read_row_group(number, columns=["design"]).column("design").unique().to_pylist():
                self.groups.setdefault(design, []).append(number)

    def rows_of(self, design: int) -> Iterator[Any]:
        """Rows of a design, as tables."""
        pyarrow, _ = parquet()
        for number in self.groups.get(design, ()):
            if self.last[0] != number:
                self.last = number, self.file.read_row_group(number)
            rows = self.last[1]
            yield rows.filter(pyarrow.compute.equal(rows.column("design"), design))


def _regrouped(tables: Iterable[Any]) -> Iterator[Any]:
    """Tables of `ROWS_AT_ONCE` rows each, but for the last."""
    pyarrow, _ = parquet()
    waiting: list[Any] = []
    count = 0
    for table in tables:
        waiting.append(table)
        count += table.num_rows
        while count >= ROWS_AT_ONCE:
            whole = pyarrow.concat_tables(waiting)
            yield whole.slice(0, ROWS_AT_ONCE).combine_chunks()
            waiting, count = [whole.slice(ROWS_AT_ONCE)], count - ROWS_AT_ONCE
    if count:
        yield pyarrow.concat_tables(waiting).combine_chunks()


_AGAIN = "sweep again without --resume, into another file or with --force"


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
    return InputError(what=what, why=why, fix=fix, field="output", code=FILE_CODE)
