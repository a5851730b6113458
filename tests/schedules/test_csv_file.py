"""A schedule written to a file, edited, and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.schedules import SCHEDULES
from meshwright.schedules.csv_file import read_schedule_csv, write_schedule_csv
from meshwright.schedules.equal_stages import run_schedule


@pytest.mark.parametrize(("name", "v"), [("1f1b", 1), ("zb-h1", 1), ("interleaved", 2), ("zb-v", 2), ("dualpipev", 2)])
@pytest.mark.parametrize("communication", [False, True])
def test_a_file_read_back_takes_as_long_as_the_schedule(name: str, v: int, communication: bool, tmp_path: Path) -> None:
    run = run_schedule(name, 4, 8, v, transfer_s=0.25)
    write_schedule_csv(run.schedule, run.timeline.table, tmp_path / "order.csv", communication=communication)
    back = read_schedule_csv(tmp_path / "order.csv", transfer_s=0.25)
    assert (back.p, back.m, back.v) == (4, 8, v)
    assert back.timeline.makespan_s == pytest.approx(run.timeline.makespan_s)
    assert back.peak_activations == run.peak_activations
    if not communication:
        assert [worker["order"] for worker in back.to_dict()["workers"]] == run.timeline.table.entries()
    assert back.to_dict()["name"] == "written"


def test_an_edited_file_is_priced_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "order.csv"
    file.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    assert read_schedule_csv(file).timeline.makespan_s == 9
    file.write_text("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n")
    assert read_schedule_csv(file).timeline.makespan_s == 12
    file.write_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
    with pytest.raises(InputError, match="circle"):
        read_schedule_csv(file)
    file.write_text("0F0,0F1,0B0,0B1\n")
    written = read_schedule_csv(file).schedule
    with pytest.raises(InputError, match="m = 2"):
        written.table(1, 3, 1)


@pytest.mark.parametrize("name", ["pipedream", "avgpipe", "bamboo", "chimera"])
def test_what_pytorch_would_train_otherwise_is_not_written(name: str, tmp_path: Path) -> None:
    schedule = SCHEDULES[name]
    with pytest.raises(UnsupportedError, match=r"torch\.distributed\.pipelining"):
        write_schedule_csv(schedule, schedule.table(4, 8), tmp_path / "order.csv")
    assert not list(tmp_path.iterdir())
