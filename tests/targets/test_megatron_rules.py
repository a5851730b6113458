"""What Megatron would refuse at its start is refused before it is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.specs.precision import PRECISIONS
from meshwright.targets.megatron.rules import rule_problems
from tests.targets.cases import job


@pytest.mark.parametrize(
    ("line", "starts"),
    [
        ("tp2.cp4-a2a", True),  # 8 key-value heads over tp2 leave 4 to a rank
        ("tp2.cp8-a2a", False),
        ("tp8.cp2-a2a", False),  # one head to a rank
        ("tp8.cp2", True),
        ("tp2.cp8-a2a4xp2p2", True),
    ],
)
def test_an_all_to_all_hands_out_whole_key_value_heads(line: str, starts: bool) -> None:
    said = [problem for problem in rule_problems(job(line)) if "key-value heads" in problem.why]
    assert (not said) == starts
    assert starts or "p2p" in said[0].fix


def test_tokens_in_mxfp8_need_an_exchange_that_is_not_planned() -> None:
    one = job("ep16.epdedup.z1", "deepseek-v3", "64xB200")
    sent = replace(PRECISIONS["mxfp8"], dispatched="mxfp8")
    for precision, refused in ((PRECISIONS["mxfp8"], False), (sent, True)):
        asked = replace(one, workload=replace(one.workload, precision=precision))
        assert any("in mxfp8" in problem.why for problem in rule_problems(asked)) == refused
