"""A sweep's file depends on its rows: not on when parts end, in which order designs do, or how often it is cut."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from meshwright.formats import sweep_file, sweep_parts
from meshwright.formats.sweep_file import SweepFile, read_sweep

pyarrow = pytest.importorskip("pyarrow")

COLUMNS = pyarrow.schema([("design", pyarrow.int32()), ("number", pyarrow.int64()), ("word", pyarrow.string())])
DESIGNS = {design: Random(design).randrange(7) for design in range(40)}


def columns() -> Any:
    return COLUMNS


def rows_of(design: int, first: int, count: int) -> Any:
    numbers = list(range(first, first + count))
    words = [f"{design}/{number}" for number in numbers]
    return pyarrow.table({"design": [design] * count, "number": numbers, "word": words}, schema=COLUMNS)


def written(path: Path, order: list[int], *, resume: bool = False, cut: int | None = None) -> SweepFile:
    """Write designs in an order; what is cut is closed within the design of that place."""
    file = SweepFile(path=path, schema="test/1", columns=columns, fingerprint="same")
    file.open(resume=resume)
    for place, design in enumerate(one for one in order if one not in {done.design for done in file.complete}):
        count = DESIGNS[design]
        file.add(rows_of(design, 0, count // 2))
        if place == cut:
            break
        file.add(rows_of(design, count // 2, count - count // 2))
        file.end(design, count, {"found": count})
    file.close()
    return file


@pytest.fixture(params=[1 << 16, 16, 5])
def groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sweep_file, "ROWS_AT_ONCE", request.param)
    return int(request.param)


def test_the_bytes_are_those_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: int) -> None:
    written(tmp_path / "whole", list(DESIGNS))
    whole = (tmp_path / "whole").read_bytes()
    rows = list(read_sweep(tmp_path / "whole"))
    assert [(row["design"], row["number"]) for row in rows] == [
        (design, number) for design, count in DESIGNS.items() for number in range(count)
    ]
    with pyarrow.parquet.ParquetFile(tmp_path / "whole") as file:
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert sizes[:-1] == [groups] * (len(sizes) - 1)
    assert 0 < sizes[-1] <= groups
    chance = Random(groups)
    for name, part_s in (("seldom", 1e9), ("each", 0.0)):
        monkeypatch.setattr(sweep_parts, "PART_S", part_s)
        monkeypatch.setattr(sweep_parts, "PART_SHARE", 0.0)
        written(tmp_path / name, chance.sample(list(DESIGNS), len(DESIGNS)))
        assert (tmp_path / name).read_bytes() == whole, name


def test_a_file_that_was_cut_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: int
) -> None:
    written(tmp_path / "whole", list(DESIGNS))
    monkeypatch.setattr(sweep_parts, "PART_S", 0.0)
    chance = Random(groups)
    for at in (0, 3, 11):
        order = chance.sample(list(DESIGNS), len(DESIGNS))
        file = written(tmp_path / "cut", order, resume=at > 0, cut=at)
        done = {one.design for one in file.complete}
        assert {row["design"] for row in read_sweep(tmp_path / "cut")} <= done, "rows of designs that ended alone"
    written(tmp_path / "cut", list(DESIGNS), resume=True)
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_a_sweep_without_rows_is_a_file(tmp_path: Path) -> None:
    file = SweepFile(path=tmp_path / "none", schema="test/1", columns=columns, fingerprint="same")
    file.open(resume=False)
    file.end(0, 0, {"why_not": "none fits"})
    file.close()
    assert list(read_sweep(tmp_path / "none")) == []
    again = SweepFile(path=tmp_path / "none", schema="test/1", columns=columns, fingerprint="same")
    again.open(resume=True)
    assert [one.about for one in again.complete] == [{"why_not": "none fits"}]
    again.close()
