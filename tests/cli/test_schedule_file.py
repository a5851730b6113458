"""`schedule --csv` and `--from`: an order to a file and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_an_order_goes_to_a_file_and_comes_back(run: Run, tmp_path: Path) -> None:
    went = run("schedule", "zb-h2", "--p", "4", "--m", "8", "--csv", "order.csv", "--json")
    assert len((tmp_path / "order.csv").read_text().splitlines()) == 4
    came = run("schedule", "--from", "order.csv", "--json")
    assert (went.code, came.code) == (0, 0)
    assert came.document == {**went.document, "name": "written"}
    assert "27 s" in run("schedule", "--from", "order.csv").out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("1f1b --from order.csv", 2, "NAME is given"),
        ("--from absent.csv", 2, "no such file"),
        ("--from wrong.csv", 2, "line 1, column 2 is '0X0'"),
        ("best --p 4 --m 8 --csv order.csv", 2, "--csv is given"),
        ("1f1b --p 4 --m 8 --csv absent/order.csv", 2, "cannot be written"),
        ("chimera --p 4 --m 8 --csv order.csv", 4, "2 chains of stages"),
    ],
)
def test_what_cannot_be_done_is_told(run: Run, tmp_path: Path, words: str, code: int, says: str) -> None:
    (tmp_path / "wrong.csv").write_text("0F0,0X0,0B0\n")
    ran = run("schedule", *words.split())
    assert ran.code == code
    assert says in ran.err
    assert not (tmp_path / "order.csv").exists()
