"""Plans whose tokens are joined by something else than dots are refused with the plan that was meant."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.specs.row_text import parse_row


def refusal(text: str) -> list[str]:
    with pytest.raises(InputError) as refused:
        parse_row(text, devices=64, global_batch=64, schedules=("zb-v",))
    return [problem.fix for problem in refused.value.problems]


@pytest.mark.parametrize(
    "text", ["tp8pp4dp2", "TP8-PP4-DP2", "tp8,pp4, dp2", "tp8_pp4_dp2", "tp=8 pp=4 dp=2", "tp8.PP4.dp2", "tp8..pp4.dp2"]
)
def test_the_plan_that_was_meant_is_named_once(text: str) -> None:
    assert refusal(text) == ["did you mean tp8.pp4.dp2?"]


@pytest.mark.parametrize("text", ["8x4x2", "tp8.wrong.dp2", "tp8,pp0", "-"])
def test_what_dots_do_not_repair_keeps_its_own_words(text: str) -> None:
    assert not any(fix.startswith(f"did you mean {text}") or "tp8.pp0" in fix for fix in refusal(text))
