"""Measured runs as points: the predictions and scores of `validate`, each with its row."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import validate
from meshwright.app.pages import accuracy_points as points
from meshwright.app.pages.accuracy_points import accuracy_points
from meshwright.errors import InputError

SAMPLE = Path(__file__).parents[1] / "data" / "measured_sample.csv"


def test_points_are_the_predictions_of_validate() -> None:
    found, known = accuracy_points(SAMPLE), validate(SAMPLE)
    assert [row["id"] for row in found["rows"]] == [one.id for one in known.predictions]
    assert {metric: one["score"] for metric, one in found["metrics"].items()} == {
        metric: scores[0].to_dict() for metric, scores in known.scores
    }
    for point in found["metrics"]["time"]["points"]:
        row = found["rows"][point["row"]]
        assert point["predicted"] == known.predictions[point["row"]].step_time_s
        assert point["measured"] == float(row["cells"]["target_iter_time_s"])
        assert point["low"] < point["predicted"] < point["high"]
        assert not row["why_not"]


def test_a_study_is_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "MOST_ROWS", 3)
    with pytest.raises(InputError, match="at most 3 are shown"):
        accuracy_points(SAMPLE)
