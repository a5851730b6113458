"""A study and the settings of plans as parallel coordinates, in a real browser: their numbers are the study's."""

from __future__ import annotations

import json
import sqlite3
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from meshwright import plan, tune
from meshwright.app.pages.answers import PageAnswers
from meshwright.app.pages.source import source_of
from meshwright.errors import InputError
from meshwright.search.tuners.store import TABLES
from meshwright.units import seconds
from tests.report.page.chromium import Shown, chromium
from tests.report.page.sources import served

KEPT = "() => [...document.querySelectorAll('.parallel polyline:not(.beyond)')].length"
PATHS = "() => document.querySelectorAll('svg[aria-label=\"Best value after each trial\"] path').length"
ROWS = "() => document.querySelectorAll('[aria-label=\"Trials\"] tbody tr').length"
TRIALS = 24


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    with served(source_of(plan("llama-3-8b", gpus="16xH100", top=3))) as address, chromium(own=address) as browser:
        browser.page.goto(f"{address}#view=tuning")
        browser.page.wait_for_selector("html[data-priced] #study", state="attached")
        yield browser


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    found: dict[str, Any] = tune("llama-3-8b", gpus="16xH100", trials=TRIALS, tuners=["random"]).to_dict()
    return found


def dropped(shown: Shown, folder: Path, document: Any) -> None:
    file = folder / "study.json"
    file.write_text(json.dumps(document))
    opened(shown, file)


def opened(shown: Shown, file: Path) -> None:
    """A file in the box of the view."""
    # A view that is drawn again replaces its input: a file must not go to the one before.
    shown.page.click("#tab-overview")
    shown.page.wait_for_selector("#study", state="detached")
    shown.page.click("#tab-tuning")
    shown.page.wait_for_selector("#study", state="attached")
    shown.page.set_input_files("#study", file)


def test_a_study_is_drawn_trial_by_trial(shown: Shown, study: dict[str, Any], tmp_path: Path) -> None:
    dropped(shown, tmp_path, study)
    shown.page.wait_for_selector(".parallel")
    priced = [trial for trial in study["trials"] if trial["value"] is not None]
    assert shown.evaluate(KEPT) == len(priced)
    assert shown.evaluate(ROWS) == len(study["trials"])
    text = shown.page.inner_text("#view")
    assert seconds(study["optimum"]["value"]) in text
    assert seconds(study["best"]["value"]) in text
    assert shown.serious() == []
    assert shown.complaints == []


def test_a_value_of_an_axis_keeps_the_trials_that_have_it(shown: Shown, study: dict[str, Any], tmp_path: Path) -> None:
    dropped(shown, tmp_path, study)
    shown.page.wait_for_selector(".parallel")
    priced = [trial for trial in study["trials"] if trial["value"] is not None]
    degrees = {trial["point"]["tp"] for trial in priced}
    assert len(degrees) > 1
    least = min(degrees)
    shown.page.focus(f'[aria-label="tp {least}"]')
    shown.page.keyboard.press("Enter")
    own = [trial for trial in priced if trial["point"]["tp"] == least]
    assert shown.evaluate(KEPT) == shown.evaluate(ROWS) == len(own)
    shown.page.get_by_role("button", name="Clear marks").click()
    assert shown.evaluate(KEPT) == len(priced)
    assert shown.evaluate(ROWS) == len(study["trials"])


def test_compared_studies_are_stairs_beside_each_other(shown: Shown, study: dict[str, Any], tmp_path: Path) -> None:
    names = ("best", "count", "counts", "incumbents", "regret")
    own = {name: study[name] for name in names}
    compared = {name: value for name, value in study.items() if name != "trials"}
    compared |= {"schema": "meshwright.tune-comparison/1", "left_out": [{"tuner": "smac", "why": "not installed"}]}
    dropped(shown, tmp_path, compared | {"studies": [{**own, "label": "random"}, {**own, "label": "random again"}]})
    shown.page.wait_for_selector("text=smac was left out: not installed")
    assert shown.evaluate(PATHS) == 2
    assert shown.page.locator(".parallel").count() == 0


@pytest.mark.parametrize("document", [[], {"schema": "meshwright.plan/1"}, "x", None])
def test_what_is_no_study_is_refused_with_the_way_to_one(shown: Shown, document: Any, tmp_path: Path) -> None:
    dropped(shown, tmp_path, document)
    shown.page.wait_for_selector("#view .problem")
    text = shown.page.inner_text("#view .problem")
    assert "study.json is no study" in text
    assert "meshwright tune" in text


def test_settings_that_are_marked_keep_plans_of_the_frontier(shown: Shown) -> None:
    shown.page.click("#tab-frontier")
    shown.page.wait_for_selector(".parallel polyline", state="attached")
    whole = shown.evaluate(KEPT)
    listed = "() => document.querySelectorAll('[aria-label^=\"Plans within\"] tbody tr').length"
    before = shown.evaluate(listed)
    shown.page.focus('[aria-label="mbs 1"]')
    shown.page.keyboard.press("Enter")
    assert 0 < shown.evaluate(KEPT) < whole
    assert 0 < shown.evaluate(listed) < before
    assert shown.serious() == []
    assert shown.complaints == []


def test_the_file_that_a_study_is_kept_in_shows_its_trials(shown: Shown, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    kept = tune("llama-3-8b", gpus="16xH100", trials=6, tuners=["random"], storage=storage, repeats=2, compare=True)
    opened(shown, tmp_path / "trials.db")
    shown.page.wait_for_selector("#study-shown")
    assert shown.page.locator("#study-shown option").count() == len(kept.studies) == 2
    assert shown.evaluate(ROWS) == 6
    shown.page.select_option("#study-shown", "1")
    first = kept.studies[1].study.trials[0]
    assert (first.outcome.name or f"trial {first.number}") in shown.page.inner_text("[aria-label='Trials']")
    assert shown.complaints == []


def test_a_table_of_trials_is_read_with_the_columns_of_ours_and_of_optuna(shown: Shown, tmp_path: Path) -> None:
    ours, optuna = tmp_path / "ours.csv", tmp_path / "optuna.csv"
    ours.write_text("trial,status,value,tp,pp\n0,ok,9.5,1,2\n1,infeasible,8.5,2,2\n2,illegal,,3,1\n3,ok,8.75,4,1\n")
    optuna.write_text(
        "number,value,duration,params_tp,state\n0,9.5,1s,1,COMPLETE\n1,,1s,2,FAIL\n2,9.25,1s,4,COMPLETE\n"
    )
    opened(shown, ours)
    shown.page.wait_for_function(f"() => ({ROWS})() === 4")  # the study before it may still be drawn
    assert shown.evaluate(KEPT) == 3
    opened(shown, optuna)
    shown.page.locator("#view", has_text="optuna").locator(".parallel").wait_for()
    assert (shown.evaluate(KEPT), shown.evaluate(ROWS)) == (2, 3)
    assert "duration" not in shown.page.inner_text("#view")


def damaged(column: str, value: Any) -> bytes:
    """The file of one trial, of which one column holds something else."""
    row = {"study": 1, "number": 0, "status": "ok", "value": 1.5, "reason": "", "name": "", "excess": 0.0}
    row |= {"took_s": 0.1, "at_s": 0.1, "point": '{"tp": 2}', column: value}
    with closing(sqlite3.connect(":memory:")) as base:
        base.executescript(TABLES)
        base.execute("INSERT INTO meshwright_study VALUES (1, 'toy, random', 'toy', 'random', '')")
        base.execute(f"INSERT INTO meshwright_trial VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
        base.commit()
        return base.serialize()


def test_a_cell_without_an_end_is_a_setting_in_words(tmp_path: Path) -> None:
    table = b"number,value,tp\ninf,1.5,inf\n1,1.25,2\n"
    found = PageAnswers().study({"name": "kept.csv", "file": b64encode(table).decode()})
    trials = found["studies"][0]["trials"]
    assert [(one["trial"], one["point"]["tp"]) for one in trials] == [(0, "inf"), (1, 2)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a,b\n1,2\n", "none of its columns is value"),
        (b"value,status\n-3,ok\nx,ok\n", "has a time above 0"),
        (b"SQLite format 3\0" + bytes(200), "no study of ours"),
        (b"PAR1" + bytes(50), "the file holds no study"),
        (b"\xff\xfe\x00", "no text of comma-separated values"),
        (b"value,status\n", "none of its columns"),
        (b"value,status\ninf,ok\n", "has a time above 0"),
        (damaged("status", "fine"), "trial 0 is damaged"),
        (damaged("value", "inf"), "trial 0 is damaged"),
        (damaged("value", None), "trial 0 is damaged"),
        (damaged("reason", b"\xff"), "trial 0 is damaged"),
        (damaged("point", "[1]"), "trial 0 is damaged"),
        (damaged("point", '{"tp": Infinity}'), "trial 0 is damaged"),
    ],
)
def test_a_file_that_keeps_no_trials_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    if content.startswith(b"PAR1"):
        pytest.importorskip("pyarrow")
    asked = {"name": "kept", "file": b64encode(content).decode()}
    with pytest.raises(InputError, match=said):
        PageAnswers().study(asked)


LOG = " iteration {n}/ 500 | elapsed time per iteration (ms): 9000.0 | global batch size: 256 | lm loss: 1 |\n"


def test_a_run_is_set_beside_its_prediction_in_its_units(shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("".join(LOG.format(n=n) for n in range(1, 13)))
    (tmp_path / "other.log").write_text("hello\n")
    shown.page.click("#tab-run")
    shown.page.wait_for_selector("#log", state="attached")
    shown.page.set_input_files("#log", tmp_path / "train.log")
    rows = shown.page.locator('[aria-label="Predicted and measured"] tbody tr')
    rows.first.wait_for()
    texts = rows.all_inner_texts()
    assert "9 s" in texts[0]
    assert texts[1].startswith("tokens/s per device")
    assert texts[2].startswith("TFLOP/s per device")
    assert all("%" in text for text in texts)
    assert not any(" s\t" in text for text in texts[1:])
    # Of two files the later one is shown, though the one before takes longer.
    shown.page.click("#tab-overview")
    shown.page.click("#tab-run")
    shown.page.wait_for_selector("#log", state="attached")
    shown.page.set_input_files("#log", tmp_path / "other.log")
    shown.page.wait_for_selector("#view .problem")
    shown.page.wait_for_timeout(500)
    assert "other.log" in shown.page.inner_text("#view .problem")
    assert str(tmp_path.parent) not in shown.page.inner_text("#view")
    assert rows.count() == 0


def test_a_table_that_is_none_of_measured_runs_is_refused_by_its_name(shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    shown.page.click("#tab-accuracy")
    shown.page.wait_for_selector("#measured", state="attached")
    shown.page.set_input_files("#measured", tmp_path / "other.csv")
    shown.page.wait_for_selector("#view .problem")
    assert "'other.csv' has no column id" in shown.page.locator("#view .problem").first.inner_text()
