"""An answer as the source of a page."""

from __future__ import annotations

from meshwright import plan
from meshwright.app.pages.source import source_of


def test_plans_are_called_as_in_the_answer() -> None:
    answer = plan("gpt2", gpus="4xH100,4xA100-80", global_batch=32, top=3)
    shown = [entry["title"] for entry in source_of(answer).document["plans"]]
    assert shown == [entry["title"] for entry in answer.to_dict()["plans"]]
    assert len(set(shown)) == len(shown)
