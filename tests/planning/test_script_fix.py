"""A diff that is shown holds no key, token or password of the script around it."""

from __future__ import annotations

import pytest

from meshwright.planning.script_fix import _masked


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
