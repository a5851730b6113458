"""What other programs call the same options."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.app.verbs import VERBS
from meshwright.fields.other_names import OTHER_NAMES, meant_options
from meshwright.fields.request import request_fields


def test_every_option_that_a_name_leads_to_exists() -> None:
    known = {one.spelled for verb in VERBS.values() for one in request_fields(verb.request)}
    assert {*OTHER_NAMES} - known <= {"--json"}  # of every command, but of no request


@pytest.mark.parametrize("name", ["--global-batch-size", "global_batch_size", "--BATCH"])
def test_a_name_of_another_program_means_ours(name: str) -> None:
    assert meant_options(name, ["--gbs", "--seq"]) == ["--gbs"]
    assert meant_options(name, ["--seq"]) == []


def test_python_is_answered_with_its_own_names() -> None:
    with pytest.raises(TypeError, match=r"did you mean global_batch\?"):
        mw.plan("gpt2", gpus="8xH100", batch_size=8)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("--qlora", "--lora r=16,base=nf4"),
        ("--base", "--lora r=16,base=nf4"),
        ("--lora-r", "--lora r=N"),
        ("--target-modules", "--lora r=16,targets=q_proj"),
        ("--load-in-8bit", "--lora r=16,base=int8"),
        ("--mbs", "--pin mbs=1"),
        ("--num-train-epochs", "--tokens N, of all epochs together"),
    ],
)
def test_a_switch_of_another_program_is_answered_with_what_says_it_here(name: str, said: str) -> None:
    assert meant_options(name, ["--lora", "--pin", "--tokens"]) == [said]
    assert meant_options(name, ["--seq"]) == []
