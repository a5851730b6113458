"""A diff that is shown holds no key, token or password of the script around it."""

from __future__ import annotations

import pytest

from meshwright.planning.script_fix import ScriptFix, masked


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
    assert masked(line) == shown


def test_the_script_in_json_holds_none_either_and_long_lines_take_no_time() -> None:
    fix = ScriptFix(plan="tp2", changes=(), diff="", text="export HF_TOKEN=hf_123\n")
    assert "hf_123" not in str(fix.to_dict())
    assert fix.text == "export HF_TOKEN=hf_123\n"
    assert masked("-" * 100_000) == "-" * 100_000


def test_a_secret_that_a_variable_holds_is_left_out_where_it_is_set() -> None:
    text = "NAME=abc\nOTHER=${OTHER:-def}\ntrain --wandb-key $NAME --api-token=${OTHER} --steps 3\nSTEPS=4\n"
    shown = ScriptFix(plan="tp2", changes=(), diff="", text=text).to_dict()["text"]
    assert "abc" not in shown
    assert "def" not in shown
    assert "STEPS=4" in shown
