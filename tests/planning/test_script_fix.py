"""A diff that is shown holds no key, token or password of the script around it."""

from __future__ import annotations

import pytest

from meshwright.planning.script_fix import ScriptFix, _masked


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (" --wandb-key SECRET123 \\", " --wandb-key *** \\"),
        ("export WANDB_API_KEY=abc", "export WANDB_API_KEY=***"),
        ('HF_TOKEN="hf_123"', 'HF_TOKEN="***"'),
        ("export AWS_SECRET_ACCESS_KEY='a/b'", "export AWS_SECRET_ACCESS_KEY='***'"),
        ("--wandb-key $WANDB", "--wandb-key $WANDB"),
        ("--tokenizer-type GPT2 --num-tokens 5", "--tokenizer-type GPT2 --num-tokens 5"),
        ("--kv-channels 3 --hidden-size 4", "--kv-channels 3 --hidden-size 4"),
    ],
)
def test_values_of_secrets_are_left_out(line: str, shown: str) -> None:
    assert _masked(line) == shown


def test_the_script_in_json_holds_none_either_and_long_lines_take_no_time() -> None:
    fix = ScriptFix(plan="tp2", changes=(), diff="", text="export HF_TOKEN=hf_123\n")
    assert "hf_123" not in str(fix.to_dict())
    assert fix.text == "export HF_TOKEN=hf_123\n"
    assert _masked("-" * 100_000) == "-" * 100_000
