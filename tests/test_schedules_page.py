"""The generated page of schedules is up to date, and holds every schedule with its figure and properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import schedules as generator
from meshwright.schedules import SCHEDULES, schedule_named


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return generator.files()


def test_the_page_in_the_documentation_is_what_the_catalogue_gives(files: dict[str, str]) -> None:
    assert not generator.stale(files), "run `make schedules`"


def test_every_schedule_has_a_row_a_section_and_a_figure(files: dict[str, str]) -> None:
    page = files[generator.PAGE]
    for name, schedule in SCHEDULES.items():
        assert f"| [{name}](#{name}) |" in page
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert schedule.source in section
        assert f"schedules/{name}.svg" in section
        assert generator.closed_form(schedule).replace("*", r"\*") in section
        assert files[f"schedules/{name}.svg"].startswith("<svg")


def test_a_file_that_is_missing_changed_or_left_over_is_noticed(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / generator.FIGURES).mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert not generator.stale(files, tmp_path)
    (tmp_path / generator.PAGE).write_text("other", encoding="utf-8")
    (tmp_path / "schedules/gpipe.svg").unlink()
    (tmp_path / "schedules/left-over.svg").write_text("", encoding="utf-8")
    assert generator.stale(files, tmp_path) == [generator.PAGE, "schedules/gpipe.svg", "schedules/left-over.svg"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("1f1b", "v = 1"),
        ("interleaved", "p >= 2, v >= 2, m a multiple of p"),
        ("zb-h2", "v = 1, m >= 2p - 1"),
        ("dualpipe", "p even, v = 1, m even, m >= 2p"),
        ("hanayo", "v even"),
    ],
)
def test_constraints_are_found_from_what_is_refused(name: str, said: str) -> None:
    assert generator.constraints(schedule_named(name)) == said


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rules_say_all_that_is_refused(name: str) -> None:
    assert "error messages" not in generator.constraints(schedule_named(name))


def test_parameters_come_with_what_they_mean() -> None:
    page = (generator.DOCS / generator.PAGE).read_text()
    assert (
        "| parameter `backward_ticks` | Time of a backward, in forwards, assumed for the order. Default: 2. |" in page
    )
    assert "| parameter `waves` | Waves, half the chunks per worker. |" in page
