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


@pytest.mark.parametrize(
    "option", ["--spec local", "--spec a_fork.specs.qwen3_spec its_layers", "--mlp-chunks-for-training 1"]
)
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


def test_a_path_that_is_to_be_filled_in_is_told_and_stops_nothing() -> None:
    found = read_flags(f"{WORDS} --load your own weights --save there".split(), devices=8)
    assert not found.problems
    assert found.row is not None
    assert "--load holds what its author left to fill in: 'your own weights'" in found.notes


def test_words_behind_a_value_are_one_complaint_with_the_option_before_them() -> None:
    found = read_flags(f"{WORDS} --save my new run --log-interval 1".split(), devices=8)
    (problem,) = found.problems
    assert problem.what == "'new run' belongs to no option"
    assert "--save takes 'my' alone" in problem.why


@pytest.mark.parametrize(("algorithm", "kind"), [("ulysses_cp_algo", "a2a"), ("megatron_cp_algo", "p2p")])
def test_context_parallelism_of_mindspeed_is_by_its_algorithm(algorithm: str, kind: str) -> None:
    fused = "--use-fused-rmsnorm --use-fused-swiglu --use-fused-rotary-pos-emb --tokenizer-not-use-fast"
    words = f"{WORDS} {fused} --context-parallel-size 2 --context-parallel-algo {algorithm}"
    found = read_flags(words.split(), devices=8)
    assert not found.problems
    assert found.row is not None
    assert found.row.cp == ((kind, 2),)


def test_an_algorithm_of_context_parallelism_that_nobody_knows_is_refused() -> None:
    words = f"{WORDS} --context-parallel-size 2 --context-parallel-algo adaptive_cp_algo"
    assert any("adaptive_cp_algo" in one.what for one in read_flags(words.split(), devices=8).problems)


def test_a_padded_vocabulary_is_one_where_no_other_is_said() -> None:
    padded = WORDS.replace("--vocab-size 1024", "--padded-vocab-size 2048")
    assert read_flags(padded.split(), devices=8).model["vocab"] == 2048
    assert read_flags(f"{WORDS} --padded-vocab-size 2048".split(), devices=8).model["vocab"] == 1024
