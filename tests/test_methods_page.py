"""The generated table of methods is up to date, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import methods as generator
from benchmarks.methods import METHODS, Method
from meshwright.specs.row_text import parse_row

ROOT = Path(__file__).parents[1]


def test_the_page_in_the_documentation_is_what_the_table_gives() -> None:
    text = generator.PAGE.read_text()
    assert generator.page(text) == text, "run `python -m benchmarks.methods`"


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_tests_that_hold_a_method_exist(method: Method) -> None:
    for place in filter(None, (method.priced, method.run)):
        assert re.search(rf"^def {place[1]}\(", (ROOT / place[0]).read_text(), re.M), place


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_what_states_a_method_is_a_plan(method: Method) -> None:
    for word in method.stated:
        if word.startswith("ep") and word != "ep":
            assert word in parse_row(f"tp2.ep8.dp4.{word}", devices=8, global_batch=8, schedules=()).format()
