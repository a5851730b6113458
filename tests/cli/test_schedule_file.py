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
    assert came.document == {**went.document, "name": "written", "made_by": came.document["made_by"]}
    assert "27 s" in run("schedule", "--from", "order.csv").out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("1f1b --from order.csv", 2, "NAME is given"),
        ("--from absent.csv", 2, "no such file"),
        ("--from wrong.csv", 2, "line 1, column 2 is '0X0'"),
        ("best --p 4 --m 8 --csv order.csv", 2, "--csv is given"),
        ("best --p 4 --m 8 --raw", 2, "--raw is given"),
        ("1f1b --p 4 --m 8 --reverse --csv order.csv", 2, "1f1b has no reverse"),
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


def test_the_last_micro_batch_comes_back_first_where_that_is_asked_for(run: Run, tmp_path: Path) -> None:
    assert run("schedule", "breadth-first", "--p", "2", "--m", "2", "--reverse", "--csv", "order.csv").code == 0
    assert (tmp_path / "order.csv").read_text().splitlines() == [
        "0F0,0F1,2F0,2F1,2B1,2B0,0B1,0B0",
        "1F0,1F1,3F0,3F1,3B1,3B0,1B1,1B0",
    ]


@pytest.mark.parametrize("name", ["1f1b", "best", "1f1b,zb-h1"])
def test_a_step_that_takes_no_time_is_drawn(run: Run, tmp_path: Path, name: str) -> None:
    none = ("--tf", "0", "--ti", "0", "--tw", "0")
    ran = run("schedule", name, "--p", "2", "--m", "3", *none, "--svg", "step.svg")
    assert ran.code == 0
    assert "0.0%" in ran.out
    assert (tmp_path / "step.svg").read_text().startswith("<svg")


def test_segments_count_among_the_tasks_that_are_listed(run: Run) -> None:
    ran = run("schedule", "seq1f1b", "--p", "4", "--m", "8", "--segments", "100000")
    assert ran.code == 2
    assert "100000 segments x 2 = 6,400,000 tasks" in ran.err
