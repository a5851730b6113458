"""The tests that are named for Alpa's intents exist."""

from __future__ import annotations

import re

from tests.alpa_intents import INTENTS, ROOT, held, page


def test_every_intent_names_tests_that_exist_or_says_why_there_are_none() -> None:
    for intent in INTENTS:
        assert bool(intent.tests) != bool(intent.why_not), intent
        for test in intent.tests:
            file, name = test.split("::")
            assert re.search(rf"^def {name.split('[')[0]}\(", (ROOT / file).read_text(), re.MULTILINE), test


def test_an_intent_holds_where_all_cases_of_its_tests_pass() -> None:
    intent = next(one for one in INTENTS if one.tests and "[" not in one.tests[0])
    passed = {f"{test}[{case}]": "passed" for test in intent.tests for case in "ab"}
    assert held(passed, intent) == "passed"
    assert held({**passed, f"{intent.tests[0]}[a]": "failed"}, intent) == "failed"
    assert held({}, intent) == "not run"
    assert "| failed |" in page({**passed, f"{intent.tests[0]}[a]": "failed"})
