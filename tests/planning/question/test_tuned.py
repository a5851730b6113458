"""`--lora` and `--freeze` as users write them, and what is wrong with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.formats.plan_json import read_job, write_job
from meshwright.library.models import spec
from meshwright.ops.counts import adapter_parameters
from meshwright.planning.question.tuned import trained_text, with_tuning
from meshwright.planning.question.tuning_text import read_freeze, read_lora
from meshwright.specs.tuning import Frozen, Lora, Tuning

MODEL = spec("llama-3.1-8b")


def problems(lora: object = None, freeze: tuple[str, ...] = (), model: object = MODEL) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        with_tuning(model, lora, freeze)
    assert all(problem.why and problem.field in ("lora", "freeze") for problem in caught.value.problems)
    return tuple(caught.value.problems)


@pytest.mark.parametrize(
    ("text", "record"),
    [
        ("r=16", Lora(rank=16)),
        ("16", Lora(rank=16)),
        ("r=8,targets=q_proj,v_proj,base=nf4", Lora(rank=8, targets=("q_proj", "v_proj"), base="nf4")),
        ("rank=8,target_modules=q_proj+v_proj", Lora(rank=8, targets=("q_proj", "v_proj"))),
        ("r=8,dora,dropout=0.05", Lora(rank=8, dora=True, dropout=0.05)),
        ("r=8,layers=0-15,train=embed_tokens,lm_head", Lora(rank=8, layers=((0, 15),), train=("embedding", "head"))),
        ({"r": 4, "targets": ["o_proj"]}, Lora(rank=4, targets=("o_proj",))),
        (16, Lora(rank=16)),
        ("r=16,alpha=32,targets=q_proj,v_proj,rslora", Lora(rank=16, targets=("q_proj", "v_proj"))),
    ],
)
def test_adapters_are_read_as_users_write_them(text: object, record: Lora) -> None:
    assert read_lora(text) == record


def test_parts_are_read_as_users_write_them() -> None:
    found = read_freeze(("embed_tokens", "model.layers.0-15", "layers.3.mlp", "self_attn", "layers"))
    assert found == (
        Frozen(part="embedding"),
        Frozen(part="layers", layers=(0, 15)),
        Frozen(part="mlp", layers=(3, 3)),
        Frozen(part="attention"),
        Frozen(part="layers"),
    )


def test_nothing_asked_changes_nothing() -> None:
    assert with_tuning(MODEL, None, ()) is MODEL


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("*_proj", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"),
        ("attention.*", "q_proj,k_proj,v_proj,o_proj"),
        ("mlp.up_proj,k*", "up_proj,k_proj"),
        ("-o_proj", "q_proj,k_proj,v_proj,gate_proj,up_proj,down_proj"),
        ("*,-mlp.*", "q_proj,k_proj,v_proj,o_proj"),
    ],
)
def test_patterns_stand_for_modules_by_name_and_part(short: str, long: str) -> None:
    one, other = (with_tuning(MODEL, f"r=8,targets={targets}", ()) for targets in (short, long))
    assert adapter_parameters(one) == adapter_parameters(other)


def test_a_pattern_that_matches_nothing_at_all_is_refused() -> None:
    assert "'experts.*' matches no module" in problems("r=8,targets=experts.*")[0].what
    assert "'-w_proj' matches no module" in problems("r=8,targets=-w_proj")[0].what


def test_a_target_that_matches_nothing_is_answered_with_the_nearest() -> None:
    (problem,) = problems("r=16,targets=q_prj")
    assert "q_prj" in problem.what
    assert "q_proj" in problem.fix
    (problem,) = problems("r=16,targets=nonsense")
    assert "q_proj" in problem.fix
    assert "all-linear" in problem.fix


@pytest.mark.parametrize(
    ("lora", "word"),
    [
        ("r=0", "at least 1"),
        ("r=-4", "at least 1"),
        ("r=a", "at least 1"),
        ("targets=q_proj", "states no rank"),
        ("r=16,rank=3", "rank is 16 and 3"),
        ("r=16,targets=q_proj,target_modules=v_proj", "targets is"),
        ("r=5000", "above the width 1024"),
        ("r=1025,targets=k_proj", "above the width 1024"),
        ("r=4096", "above the width 1024 of k_proj"),
        ("r=2000,targets=*_proj", "above the width 1024 of k_proj"),
        ("r=16,alpha=much", "scales adapters"),
        ("r=16,base=nf5", "nf4"),
        ("r=16,dropout=1.5", "below 1"),
        ("r=16,ranks=4", "unknown setting"),
        ("r=16,train=brain", "train is"),
        ("r=16,layers=5-2", "range of layers"),
        ("r=16,layers=0-40", "numbered from 0"),
        ("r=16,train=experts", "dense model"),
        (True, "must be a text"),
    ],
)
def test_adapters_that_cannot_be_are_refused_with_a_reason(lora: object, word: str) -> None:
    assert any(word in f"{problem.what} {problem.why} {problem.fix}" for problem in problems(lora))


def test_small_products_do_not_bound_the_rank_of_all_of_them() -> None:
    # Gates of 32 heads and of one expert, and keys of one head, stand beside matrices of thousands.
    for name in ("qwen3.5-35b-a3b", "falcon-7b", "kimi-linear-48b-a3b"):
        assert with_tuning(spec(name), "r=256", ()).tuning is not None
        assert "above the width" in problems("r=8192", model=spec(name))[0].what


def test_a_file_that_states_a_rank_that_peft_runs_is_priced() -> None:
    small = spec("qwen2.5-0.5b")
    assert "above the width 128 of k_proj" in problems("r=256", model=small)[0].what
    assert with_tuning(small, read_lora("r=256"), ()).tuning is not None
    assert "above the width 896" in problems(read_lora("r=4096"), model=small)[0].what


def test_all_that_is_wrong_is_said_at_once() -> None:
    assert len(problems("r=0,base=nf5,dropout=2")) == 3
    assert len(problems("r=5000,targets=q_prj,o_proj,layers=0-40")) == 3


@pytest.mark.parametrize(
    ("freeze", "word"),
    [
        (("brain",), "part"),
        (("atention",), "attention"),
        (("experts",), "dense model"),
        (("layers.0-99",), "numbered from 0"),
        (("layers.9-2",), "range of layers"),
        (("embedding", "head", "layers"), "freezes everything"),
    ],
)
def test_parts_that_cannot_be_frozen_are_refused_with_a_reason(freeze: tuple[str, ...], word: str) -> None:
    assert any(word in f"{problem.what} {problem.why} {problem.fix}" for problem in problems(freeze=freeze))


def test_a_tied_head_is_not_frozen_without_its_table() -> None:
    (problem,) = problems(freeze=("head",), model=spec("llama-3.2-1b"))
    assert "one table" in problem.why
    assert "embedding" in problem.fix


def test_adapters_and_frozen_parts_together_are_refused() -> None:
    (problem,) = problems("r=16", ("embedding",))
    assert "--freeze" in problem.fix


def test_what_was_understood_names_both_counts() -> None:
    line = trained_text(with_tuning(MODEL, "r=16,base=nf4", ()))
    assert "QLoRA of rank 16 on all-linear" in line
    assert "41,943,040 parameters trained" in line
    assert "8,030,261,248 frozen" in line
    assert trained_text(replace(MODEL, tuning=None)) == ""
    assert "embedding frozen" in trained_text(with_tuning(MODEL, None, ("embedding",)))


def test_answers_say_how_much_is_trained() -> None:
    found = mw.estimate(
        "llama-3.1-8b", "dp1.mbs1.gbs4.rc-full", gpus="1xA100-80", seq_len=2048, lora="r=16", software="megatron-core"
    )
    document = found.to_dict()
    model = document["inputs"]["model"]
    assert (model["trained_parameters"], model["frozen_parameters"]) == (41_943_040, 8_030_261_248)
    assert model["tuning"]["lora"]["rank"] == 16
    assert any("41,943,040 parameters trained" in line for line in document["plans"][0]["identities"])
    plain = mw.estimate("llama-3.1-8b", "dp1.mbs1.gbs4.rc-full", gpus="1xA100-80", seq_len=2048).to_dict()
    assert "tuning" not in plain["inputs"]["model"]


def test_a_plan_file_carries_what_is_trained() -> None:
    lora = "r=16,targets=q_proj,base=nf4,layers=4-9"
    job = mw.estimate("llama-3.1-8b", "dp1.mbs1.gbs4.rc-full", gpus="1xA100-80", seq_len=2048, lora=lora)[0].job
    again = read_job(write_job(job)).job
    assert again.model == job.model
    assert again.model.tuning == Tuning(lora=read_lora(lora))


@pytest.mark.parametrize("target", ["megatron"])
def test_a_target_that_knows_full_training_only_refuses(target: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        mw.plan("llama-3.1-8b", gpus="8xH100", global_batch=8, seq_len=2048, lora="r=16", target=target)
    assert "not all weights are trained" in str(caught.value)


def test_parallelizers_that_know_full_training_only_refuse() -> None:
    with pytest.raises(UnsupportedError, match="--lora or --freeze"):
        mw.plan("llama-3.1-8b", gpus="8xH100", global_batch=8, lora="r=16", parallelizer="layerwise")


def test_groups_of_several_kinds_plan_adapters_together() -> None:
    found = mw.plan("llama-3.1-8b", gpus="1x4xH100,1x4xA100-80", global_batch=16, seq_len=2048, lora="r=16")
    assert found.best.estimate.fits != "no"
    assert dict(found.best.estimate.stages[0].memory_bytes)["optimizer"] < 2e9


def test_a_model_without_a_head_trains_and_freezes_none() -> None:
    bare, scored = (replace(MODEL, classes=classes) for classes in (0, 4))
    for lora, freeze in (("r=16,train=head", ()), (None, ("head",))):
        with pytest.raises(InputError, match="leave head out"):
            with_tuning(bare, lora, freeze)
        assert with_tuning(scored, lora, freeze).tuning is not None


@pytest.mark.parametrize(
    ("freeze", "told"), [("layers.0-15", True), ("layers", True), ("layers.4-15", False), ("mlp", False)]
)
def test_frozen_layers_before_a_trained_embedding_are_told_to_be_passed_through(freeze: str, told: bool) -> None:
    model = with_tuning(spec("llama-3.1-8b"), None, [freeze])
    assert ("backward passes through them" in trained_text(model)) == told
    assert "backward passes" not in trained_text(with_tuning(spec("llama-3.1-8b"), None, [freeze, "embedding"]))
