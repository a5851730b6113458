"""What made an answer: every verb that prices says version, calibration and the command that asks the same again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.app.made_by import made_by
from meshwright.library.calibration import PACKAGED, calibration
from meshwright.report.words.made_by import made_by_words
from tests.cli.conftest import Run

ASKED = (
    "estimate gpt2 --gpus 2xH100 --gbs 8 --plan tp2",
    "check gpt2 --gpus 2xH100 --gbs 8 --plan tp2",
    "size gpt2 --device H100 --gbs 8 --step-time 1",
    "explain tp2.mbs1 --model gpt2 --gpus 2xH100 --gbs 8",
    "compare tp2.mbs1 tp1.mbs1.z1 --model gpt2 --gpus 2xH100 --gbs 8",
    "schedule 1f1b --p 2 --m 4",
    "models show gpt2",
)


@pytest.mark.parametrize("line", ASKED)
def test_the_command_of_an_answer_asks_the_same_again(run: Run, line: str) -> None:
    first = run(*line.split(), "--json").document
    again = run(*shlex.split(first["made_by"]["command"])[1:], "--json").document
    for answer in (first, again):
        answer.pop("timing", None)
        answer.get("plan_set", {}).pop("timing", None)
    assert again == first
    assert first["made_by"]["version"] == mw.__version__
    priced = line.split()[0] not in ("schedule", "models")
    assert (first["made_by"]["calibration"] is not None) == priced


def test_an_answer_names_the_calibration_that_its_own_prices_use(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps(json.loads(PACKAGED.read_text()) | {"date": "2020-02-02"}))
    asked = {"model": "gpt2", "gpus": "2xH100", "global_batch": 8, "plan": "tp2"}
    usual, other = (mw.estimate(**asked, **more) for more in ({}, {"calibration": str(own)}))
    assert other.to_dict()["made_by"]["calibration"]["date"] == "2020-02-02"
    explained = other[0].explain().to_dict()["made_by"]
    assert explained["calibration"] == other.to_dict()["made_by"]["calibration"]
    assert explained["calibration"]["hash"] != usual.to_dict()["made_by"]["calibration"]["hash"]
    assert "command" not in explained, "no single command explains a plan that is at hand"


def test_words_leave_out_what_is_not_known() -> None:
    found = made_by(calibration(None))
    assert made_by_words({**found, "commit": "0123456789abcdef"}).startswith(
        f"meshwright {mw.__version__} (commit 0123456789ab), calibration of {found['calibration']['date']} ("
    )
    assert made_by_words({"version": "1", "commit": None, "calibration": None}) == "meshwright 1"
