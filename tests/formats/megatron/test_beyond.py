"""Options that change more than is read: each is refused by name."""

from __future__ import annotations

import pytest

from meshwright.formats.megatron.read import read_flags

WORDS = (
    "pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1 "
    "--max-position-embeddings 64 --global-batch-size 8 --vocab-size 1024 --bf16"
)


@pytest.mark.parametrize(
    "option",
    [
        "--experimental-attention-variant gated_delta_net",
        "--enable-mhc-connections",
        "--moe-latent-size 64",
        "--freeze-all-layers",
        "--yaml-cfg run.yaml",
        "--spec my.layers make_them",
    ],
)
def test_what_changes_the_model_or_its_memory_is_no_option_without_effect(option: str) -> None:
    found = read_flags(f"{WORDS} {option}".split(), devices=8)
    flag = option.split()[0]
    assert [one.field for one in found.problems] == [flag]
    assert flag not in {one.option for one in found.unpriced}


@pytest.mark.parametrize("option", ["--spec local", "--mlp-chunks-for-training 1"])
def test_values_that_change_nothing_are_taken(option: str) -> None:
    assert not read_flags(f"{WORDS} {option}".split(), devices=8).problems


@pytest.mark.parametrize("kind", ["YuanTokenizer", "PretrainedFromHF"])
def test_a_tokenizer_of_a_fork_changes_no_plan(kind: str) -> None:
    assert not read_flags(f"{WORDS} --tokenizer-type {kind}".split(), devices=8).problems
