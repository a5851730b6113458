"""The page of claims holds every claim, with a reason where it is not reproduced, and its numbers are what we say."""

from __future__ import annotations

import pytest

from benchmarks import DOCS
from benchmarks.claims import __main__ as generator
from benchmarks.claims import calculon_values, pipelines
from benchmarks.claims.claim import Claim, Outcome, outcome

PAGE = (DOCS / generator.PAGE).read_text(encoding="utf-8")
ROWS = {row[1:3]: row for row in generator.rows_of(PAGE)}
ALL = [claim for _, claims in generator.sections(None) for claim in claims]
DRAWN = [
    one for one in pipelines.claims() if one.commands and all(word.startswith("schedule ") for word in one.commands)
]
AUTHORS = {"GPipe", "Chimera", "Megatron-LM", "Optimus 2D", "FasterMoE", "ZeRO-Offload", "Mobius", "DynaPipe", "Alpa"}


def test_every_claim_has_a_row_and_every_row_a_claim() -> None:
    assert len(ALL) >= 60
    assert {claim.system for claim in ALL} >= AUTHORS
    assert list(ROWS) == [(claim.system, claim.says) for claim in ALL]
    for claim in ALL:
        row = ROWS[claim.system, claim.says]
        assert row[3] == generator.said(claim.published, claim.unit)
        assert row[6] == claim.setting
        assert all(command in PAGE for command in claim.shown_commands())


def test_what_is_not_reproduced_has_a_reason() -> None:
    for row in ROWS.values():
        assert row[5] in generator.VERDICTS
        assert row[5] == "reproduced" or row[7], row
        assert row[4] or row[5] == "not"


@pytest.mark.parametrize("claim", DRAWN, ids=lambda claim: f"{claim.system}: {claim.says}")
def test_numbers_of_schedules_are_those_of_the_page(claim: Claim) -> None:
    found = outcome(claim)
    assert found.ours is not None
    assert ROWS[claim.system, claim.says][4:6] == (generator.said(found.ours, claim.unit), found.verdict)


def test_values_that_calculon_was_validated_on_come_out_as_the_page_says() -> None:
    claims = list(calculon_values.claims())
    assert len(claims) == 44
    assert [outcome(claim).verdict for claim in claims] == [ROWS[one.system, one.says][5] for one in claims]


def test_a_verdict_follows_from_the_numbers() -> None:
    def verdict(published: float, ours: float | None, **said: object) -> str:
        words = {"system": "a", "says": "b", "unit": "x", "setting": "", "source": "", "known": "P", **said}
        return Outcome(claim=Claim(published=published, **words), ours=ours).verdict

    assert verdict(2.0, 1.9) == verdict(2.0, 3.0, rule="least") == verdict(2.0, 1.0, rule="most") == "reproduced"
    assert verdict(2.0, 1.5) == verdict(2.0, 3.0) == "in part"
    assert verdict(2.0, 1.0) == verdict(2.0, None) == verdict(20.0, 30.0, unit="s") == "not"
