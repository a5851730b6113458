"""Rows as text: files, reasons, and any text in any column."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.formats.measured import MeasuredRun, read_rows, read_run
from meshwright.library.devices import device
from tests.formats.measured.row import LLAMA, find, read


def test_all_reasons_come_together() -> None:
    reason = str(read(n_layers="", hidden="wide", n_heads="-3", gpu=""))
    for part in ("n_layers not stated", "hidden 'wide'", "n_heads '-3'", "gpu not stated"):
        assert part in reason
    assert "unknown device" in str(read(gpu="RTX-2080+RTX-3090"))


@given(
    column=st.sampled_from(sorted(LLAMA)),
    text=st.one_of(
        st.text(max_size=20), st.sampled_from(["0", "-1", "nan", "inf", "1e9", "1e300", "7", "True", "FSDP0"])
    ),
)
def test_any_text_in_any_column_gives_a_run_or_a_reason(column: str, text: str) -> None:
    found = read_run(LLAMA | {column: text}, device, find)
    assert isinstance(found, MeasuredRun) or found


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_rows(tmp_path / "absent.csv")
    other = tmp_path / "other.csv"
    other.write_text("id,gpus\na,b\n")
    with pytest.raises(InputError, match="no column n_layers"):
        read_rows(other)
    empty = tmp_path / "header.csv"
    empty.write_text(",".join(LLAMA) + "\n")
    with pytest.raises(InputError, match="holds no run"):
        read_rows(empty)


def test_short_and_long_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    names = list(LLAMA)
    file.write_text(",".join(names) + "\nfirst\n" + ",".join([*LLAMA.values(), "beyond"]) + "\n")
    rows = read_rows(file)
    assert rows[0]["gpu"] == ""
    assert rows[1] == LLAMA
