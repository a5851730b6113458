"""Operators of a layer: they hold its parameters, keep what the papers say, and repeat what they free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.library.models import names, spec
from meshwright.ops.edges import edge_work
from meshwright.ops.layers import layer_work
from meshwright.specs import Attention, DenseMlp, LayerRun, LayerSpec, ModelSpec, MoeMlp
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.operators import CoreAttention, Exchange, LayerWork, Linear, Vector
from meshwright.specs.strategy import RECOMPUTE_MODULES

MODELS = [model for model in map(spec, sorted(names())) if not model.beside_decoder]
"""What others hold is in `test_streams.py`."""
LAYERS = [(model, kind) for model in MODELS for kind in model.kinds()]
"""Every kind of layer of every model."""
BYTES = {"activation": 2, "input": 2, "function": 2, "attention": 2, "mask": 1, "fp32": 4}


def kept_per_token(work: LayerWork, seq_len: int) -> float:
    """Bytes per token in 16 bits on one device; tokens at experts count once per expert they visit."""
    return sum(
        kept.elements
        * BYTES[kept.role]
        * (seq_len if kept.per_key else 1)
        * (work.top_k if kept.region.startswith("expert") else 1)
        for kept in work.kept
    )


def flop_per_token(work: LayerWork) -> float:
    """Forward, without attention: 2 per weight that a token meets."""
    return sum(
        2 * (op.parameters - op.bias * max(1, op.experts)) * (work.top_k / op.experts if op.experts else 1)
        for op in work.ops
        if isinstance(op, Linear)
    )


def test_operators_hold_the_parameters_of_every_layer_kind() -> None:
    for model, kind in LAYERS:
        assert layer_work(kind, model.hidden, "flash").parameters == kind.parameters(model.hidden)


def test_layers_and_edges_add_up_to_the_model() -> None:
    for model in MODELS:
        layers = sum(
            count * layer_work(kind, model.hidden, "flash").parameters for kind, count in model.kind_counts().items()
        )
        shared = model.vocab * model.hidden if model.tied_embeddings else 0
        edges = edge_work(model, "embedding").parameters + edge_work(model, "head").parameters - shared
        assert layers + edges == model.parameters
        assert edge_work(model, "embedding").parameters == model.embedding_parameters


def test_a_prediction_module_is_a_layer_a_projection_and_three_norms() -> None:
    model = spec("deepseek-v3")
    layer = layer_work(model.last_layer(), model.hidden, "flash").parameters
    # Its third norm is the head's; table and projection of the head are the model's own.
    assert model.mtp_layers == 1
    assert layer + edge_work(model, "mtp").parameters + model.hidden == model.mtp_parameters


def test_products_count_the_weights_a_token_meets() -> None:
    for model, kind in LAYERS:
        work = layer_work(kind, model.hidden, "flash")
        vectors = sum(op.parameters + op.cut_parameters for op in work.ops if isinstance(op, Vector))
        biases = sum(op.bias * (work.top_k if op.experts else 1) for op in work.ops if isinstance(op, Linear))
        rows = sum(op.table[1] for op in work.ops if isinstance(op, Vector) and op.table)
        met = kind.active_parameters(model.hidden) - vectors - biases - rows
        assert flop_per_token(work) == pytest.approx(2 * met, rel=1e-12)


@pytest.mark.parametrize("kernel", ["flash", "materialised"])
def test_what_recompute_frees_its_operators_make_again(kernel: str) -> None:
    for model, kind in LAYERS:
        work = layer_work(kind, model.hidden, kernel)
        modules = {op.module for op in work.ops} - {""}
        assert modules <= set(RECOMPUTE_MODULES)
        for kept in work.kept:
            assert set(kept.freed_by) <= modules, kept.name
        assert all(kept.elements > 0 for kept in work.kept)


def test_layers_of_attention_attend_once_and_experts_are_reached_and_left_once() -> None:
    for model, kind in LAYERS:
        ops = layer_work(kind, model.hidden, "flash").ops
        exchanges = [op.direction for op in ops if isinstance(op, Exchange)]
        attends = any(isinstance(mixer, (Attention, LatentAttention)) for mixer in kind.mixers)
        assert sum(isinstance(op, CoreAttention) for op in ops) == attends
        assert exchanges == (["dispatch", "combine"] if isinstance(kind.mlp, MoeMlp) else [])


@pytest.mark.parametrize(("seq_len", "heads", "head_dim"), [(2048, 96, 128), (1024, 16, 64), (8192, 8, 256)])
def test_gpt_layer_with_dropout_keeps_34_sbh_and_5_as(seq_len: int, heads: int, head_dim: int) -> None:
    hidden = heads * head_dim
    layer = LayerSpec(
        attention=Attention(heads=heads, kv_heads=heads, head_dim=head_dim, qkv_bias=True, out_bias=True),
        mlp=DenseMlp(ffn_hidden=4 * hidden, gated=False, bias=True),
        norm="layernorm",
        dropout=True,
    )
    assert kept_per_token(layer_work(layer, hidden, "materialised"), seq_len) == 34 * hidden + 5 * heads * seq_len
    # Fused attention keeps one fp32 number per head and query in place of the scores.
    assert kept_per_token(layer_work(layer, hidden, "flash"), seq_len) == 34 * hidden + 4 * heads


def dense_kept(attention: Attention, mlp: DenseMlp, hidden: int, inputs: int) -> int:
    """Bytes per token: residual and normed inputs, q, k, v, output, log-sum-exp, MLP up (twice if gated) and down.

    Queries and keys once more where they are normed.
    """
    width = attention.query_width + 2 * attention.kv_width + attention.value_width
    width += (attention.query_width + attention.kv_width) * attention.qk_norm
    return 2 * (inputs * hidden + width + mlp.ffn_hidden * (3 if mlp.gated else 2)) + 4 * attention.heads


def test_dense_layers_keep_their_closed_form() -> None:
    for model, kind in LAYERS:
        if kind.dropout or not isinstance(kind.mlp, DenseMlp) or not isinstance(kind.attention, Attention):
            continue
        if kind.attention.gate or kind.attention.value_dim:
            continue
        inputs = 3 if kind.parallel_block else 4
        expected = dense_kept(kind.attention, kind.mlp, model.hidden, inputs)
        assert kept_per_token(layer_work(kind, model.hidden, "flash"), 4096) == expected


def test_moe_layer_keeps_its_closed_form() -> None:
    model = spec("mixtral-8x7b")
    (kind,) = model.kinds()
    assert isinstance(kind.mlp, MoeMlp)
    assert isinstance(kind.attention, Attention)
    h, k, f = model.hidden, kind.mlp.top_k, kind.mlp.ffn_hidden
    attention = dense_kept(kind.attention, DenseMlp(ffn_hidden=1, gated=False), h, 3) - 2 * 2
    # Router input, logits, maps; tokens at the experts, gate, up and their product; the combined output.
    experts = 2 * h + 4 * kind.mlp.experts + 12 * k + k * (2 * h + 4 * f + 2 * f) + 2 * h
    assert kept_per_token(layer_work(kind, h, "flash"), 4096) == attention + experts


def test_latent_attention_keeps_latents_and_what_they_become() -> None:
    model = spec("deepseek-v3")
    attention = model.last_layer().attention
    assert isinstance(attention, LatentAttention)
    kept = {kept.name: kept.elements for kept in layer_work(model.last_layer(), model.hidden, "flash").kept}
    assert kept["latents"] == 2 * (1536 + 512 + 64)
    assert kept["queries"] == 128 * 192
    assert kept["keys and values"] == 128 * (192 + 128)
    assert kept["attention out input"] == 128 * 128


def tiny(**changes: object) -> ModelSpec:
    layer = LayerSpec(attention=Attention(heads=4, kv_heads=4, head_dim=8), mlp=DenseMlp(ffn_hidden=64, gated=True))
    values: dict[str, object] = {
        "name": "tiny",
        "family": "llama",
        "hidden": 32,
        "vocab": 100,
        "max_seq_len": 128,
        "runs": (LayerRun(layers=(layer,), repeats=2),),
        "tied_embeddings": False,
        **changes,
    }
    return ModelSpec(**values)


def test_the_head_keeps_its_logits_in_fp32() -> None:
    head = edge_work(tiny(), "head")
    assert kept_per_token(head, 128) == 4 * 32 + 4 * 100
    assert edge_work(tiny(), "embedding").kept == ()


@pytest.mark.parametrize(
    ("changes", "part", "more"),
    [
        ({"learned_positions": 128}, "embedding", 128 * 32),
        ({"embedding_norm": True}, "embedding", 2 * 32),
        ({"head_bias": True}, "head", 100),
        ({"final_norm": "layernorm"}, "head", 32),
        ({"final_norm": None}, "head", -32),
    ],
)
def test_edges_hold_what_the_model_says(changes: dict[str, object], part: str, more: int) -> None:
    plain, changed = edge_work(tiny(), part), edge_work(tiny(**changes), part)
    assert changed.parameters - plain.parameters == more
    assert tiny(**changes).parameters - tiny().parameters == more


def test_a_relu_is_told_by_its_output() -> None:
    """GPT layers keep 4 h less a token: what goes into the activation."""
    model = spec("gpt3-175b")
    layer = model.last_layer()
    assert isinstance(layer.mlp, DenseMlp)
    relu = replace(layer, mlp=replace(layer.mlp, relu=True))
    kept = [sum(one.elements for one in layer_work(each, model.hidden, "flash").kept) for each in (layer, relu)]
    assert kept[0] - kept[1] == 4 * model.hidden
