"""What Megatron would refuse at its start is refused before it is written."""

from __future__ import annotations

import pytest

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
