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


@pytest.mark.parametrize(
    "words",
    [
        WORDS.replace("pretrain_gpt", "pretrain_mamba"),
        f"{WORDS} --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec",
        f"{WORDS} --hybrid-attention-ratio 0.08 --hybrid-mlp-ratio 0.5",
        f"{WORDS} --hybrid-override-pattern M-M*-",
    ],
)
def test_layers_of_mamba_are_not_those_that_sizes_describe(words: str) -> None:
    found = read_flags(words.split(), devices=8)
    assert found.problems == ()
    assert found.row is not None
    assert found.model == {}
    assert any("layers of Mamba" in note for note in found.notes)


@pytest.mark.parametrize(
    ("option", "refused"),
    [
        ("--train-weighted-split-paths-path data.txt", False),
        ("--valid-num-workers 2", False),
        ("--use-legacy-models", False),
        ("--no-scatter-gather-tensors-in-pipeline", False),
        ("--outer-optimizer diloco", True),
        ("--moe-pad-expert-input-to-capacity --moe-expert-capacity-factor 2.0", True),
        ("--moe-pad-expert-input-to-capacity --moe-expert-capacity-factor 1.0", False),
    ],
)
def test_options_of_forks_that_name_data_change_no_plan(option: str, refused: bool) -> None:
    assert bool(read_flags(f"{WORDS} {option}".split(), devices=8).problems) == refused
