"""Adapters and frozen operators: published counts of trained parameters, and what is kept for the backward pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.library.models import spec
from meshwright.ops.counts import adapter_parameters, trained_parameters
from meshwright.ops.edges import edge_work
from meshwright.ops.layers import layer_work
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import LayerWork, Linear, Vector
from meshwright.specs.tuning import Frozen, Lora, Tuning


def with_lora(name: str, rank: int, *targets: str, **settings: object) -> ModelSpec:
    given = {"targets": targets} if targets else {}
    return replace(spec(name), tuning=Tuning(lora=Lora(rank=rank, **given, **settings)))


def work_of(model: ModelSpec) -> LayerWork:
    return layer_work(model.kinds()[0], model.hidden, "flash")


@pytest.mark.parametrize(
    ("name", "rank", "targets", "published"),
    [
        # unslothai/notebooks, "Number of trainable parameters = 41,943,040" of Llama-3.1-8B at rank 16.
        ("llama-3.1-8b", 16, (), 41_943_040),
        # huggingface/peft, print_trainable_parameters of Llama-2-7b with its default targets: 4,194,304 of 6.74 B.
        ("llama-2-7b", 8, ("q_proj", "v_proj"), 4_194_304),
        # mlcommons/training, llama2_70b_lora: one adapter of rank 16 on the fused QKV and one on the projection.
        ("llama-2-70b", 16, ("linear_qkv", "linear_proj"), 44_564_480),
    ],
)
def test_adapters_hold_the_published_number_of_parameters(
    name: str, rank: int, targets: tuple[str, ...], published: int
) -> None:
    model = with_lora(name, rank, *targets)
    assert trained_parameters(model) == adapter_parameters(model) == published


def test_separate_adapters_of_a_fused_product_have_an_a_each() -> None:
    apart, fused = (
        with_lora("llama-3.1-8b", 16, "q_proj", "k_proj", "v_proj"),
        with_lora("llama-3.1-8b", 16, "qkv_proj"),
    )
    assert adapter_parameters(apart) - adapter_parameters(fused) == 32 * 2 * 16 * 4096


def test_dora_adds_one_number_per_output() -> None:
    plain, dora = (with_lora("llama-3.1-8b", 16, "o_proj", dora=flag) for flag in (False, True))
    assert adapter_parameters(dora) - adapter_parameters(plain) == 32 * 4096


def test_every_expert_has_adapters_of_its_own() -> None:
    model = with_lora("mixtral-8x7b", 8, "down_proj")
    kind = model.kinds()[0]
    assert adapter_parameters(model) == model.num_layers * kind.mlp.routed_experts * 8 * (14336 + 4096)


def test_parts_trained_besides_count() -> None:
    model = with_lora("llama-3.1-8b", 16, train=("embedding",))
    assert trained_parameters(model) == 41_943_040 + 128_256 * 4096


def test_frozen_parts_are_not_trained_and_nothing_else_is_lost() -> None:
    model = spec("llama-3.1-8b")
    for part in ("attention", "mlp", "norms", "embedding", "head"):
        frozen = replace(model, tuning=Tuning(frozen=(Frozen(part=part),)))
        assert 0 < trained_parameters(frozen) < model.parameters
    every = tuple(Frozen(part=part) for part in ("layers", "head"))
    assert trained_parameters(replace(model, tuning=Tuning(frozen=every))) == model.embedding_parameters


def test_a_frozen_product_keeps_no_input_unless_an_adapter_needs_it() -> None:
    kept = {
        name: {one.name for one in work_of(with_lora("llama-3.1-8b", 16, name)).kept}
        for name in ("q_proj", "down_proj")
    }
    assert "qkv input" in kept["q_proj"]
    assert "mlp down input" not in kept["q_proj"]
    assert "mlp down input" in kept["down_proj"]
    assert "qkv input" not in kept["down_proj"]
    # What the functions between need is kept whatever is trained.
    assert all({"queries", "mlp up output", "attention norm input"} <= names for names in kept.values())


def test_dropped_inputs_are_kept_in_place_of_whole_ones() -> None:
    names = {one.name for one in work_of(with_lora("llama-3.1-8b", 16, "qkv_proj", dropout=0.1)).kept}
    assert "qkv input" not in names
    assert any(name.endswith("dropped input") for name in names)


def test_quantised_weights_are_made_again_before_every_product() -> None:
    products = {op.name: op for op in work_of(with_lora("llama-3.1-8b", 16, base="nf4")).ops if isinstance(op, Linear)}
    assert products["mlp up"].stored == "nf4"
    assert products["mlp up"].backward_weight_bytes == pytest.approx(2 + 4.127 / 8, abs=1e-3)
    assert products["mlp up"].forward_weight_bytes == products["mlp up"].backward_weight_bytes
    assert not any(op.stored for op in products.values() if op.adapter)


def test_embedding_and_head_of_a_tied_table_are_frozen_together() -> None:
    model = replace(spec("llama-3.2-1b"), tuning=Tuning(lora=Lora(rank=8)))
    assert model.tied_embeddings
    for part in ("embedding", "head"):
        assert not any(op.trained for op in edge_work(model, part).ops if isinstance(op, (Linear, Vector)))


def test_what_adapters_keep_is_made_again_with_the_module_they_stand_in() -> None:
    work = work_of(with_lora("llama-3.1-8b", 16, "down_proj", "o_proj", dropout=0.1, dora=True))
    freed = {one.name: one.freed_by for one in work.kept if " adapter " in one.name}
    assert {by for name, by in freed.items() if name.startswith("mlp down")} == {("mlp",)}
    assert {by for name, by in freed.items() if name.startswith("attention out")} == {()}
