"""What a live page may send beside a plan: a log by any name, of any text."""

from __future__ import annotations

import pytest

from meshwright.app.pages.answers import PageAnswers
from meshwright.errors import InputError
from tests.report.page.sources import source


@pytest.mark.parametrize("name", ["..", ".", "/", "../../run.log", "a\0b.log", "n" * 300, "\udcff.log", "", None, 7])
def test_a_log_of_any_name_is_read_or_refused(name: object) -> None:
    answers = PageAnswers()
    asked = {"answer": answers.add(source("dense")), "name": name, "log": "no step here \ud800\n"}
    with pytest.raises(InputError, match="log"):
        answers.run(asked)
