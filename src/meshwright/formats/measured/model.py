"""The model of a measured row: the library's where name and shape agree, else built from the columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from meshwright.errors import MeshwrightError
from meshwright.formats.huggingface.fields import MAX_LAYERS
from meshwright.formats.measured.record import MeasuredRecord
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec

ModelLookup = Callable[[str], ModelSpec | None]
"""Finds the library's model from its name in any spelling; None for a name nobody knows."""


def read_model(record: MeasuredRecord, find: ModelLookup) -> tuple[ModelSpec, str]:
    """The model of a row.

    Args:
        record: the row; what it lacks becomes a reason.
        find: the library.

    Returns:
        The model, and what was assumed to get it.
    """
    shape = _Shape(record)
    known = None if record.reasons else _from_library(record, shape, find)
    model, assumed = known or _from_columns(record, shape)
    notes = record.text("notes").lower()
    if model.mtp_layers and "w/o mtp" in notes:
        return replace(model, mtp_layers=0), assumed
    return model, assumed


class _Shape:
    """The numbers of the columns, with what follows from others filled in."""

    def __init__(self, record: MeasuredRecord) -> None:
        self.layers, self.hidden = record.needed("n_layers"), record.needed("hidden")
        if self.layers > MAX_LAYERS:
            record.reasons.append(f"{self.layers:,} layers; at most {MAX_LAYERS:,} are read")
            self.layers = MAX_LAYERS
        self.heads, self.vocab = record.needed("n_heads"), record.needed("vocab")
        self.kv_heads = record.whole("n_kv_heads") or self.heads
        self.head_dim = record.whole("head_dim") or max(1, self.hidden // self.heads)
        self.experts = record.whole("n_experts") or 0
        self.top_k = record.whole("top_k") or 1
        gated = record.flag("gated_mlp")
        self.gated = bool(gated)
        ffn = record.whole("ffn_hidden")
        if ffn is None and gated is False:
            ffn = 4 * self.hidden
        self.expert_ffn = record.whole("moe_ffn_hidden") or ffn or 1
        if ffn is None and not (self.experts and record.text("moe_ffn_hidden")):
            record.reasons.append("ffn_hidden not stated")
        self.ffn = ffn or self.expert_ffn
        if self.heads % self.kv_heads:
            record.reasons.append(f"{self.kv_heads} key-value heads do not divide {self.heads} heads")
        if self.experts and self.top_k > self.experts:
            record.reasons.append(f"top_k {self.top_k} of {self.experts} experts")


def _from_library(record: MeasuredRecord, shape: _Shape, find: ModelLookup) -> tuple[ModelSpec, str] | None:
    words = record.text("model_name").split()
    # What a source adds to a name stands behind it: `DeepSeek V3 671B`, `llama3-70b (12 layers)`.
    found = (find(" ".join(words[:count])) for count in range(len(words), 0, -1))
    model = next((one for one in found if one is not None), None)
    if model is None or not _agrees(model, shape):
        return None
    if model.vocab != shape.vocab:
        model = replace(model, vocab=shape.vocab)
    if model.num_layers == shape.layers:
        return model, ""
    runs = _fewer_layers(model, shape.layers, record.all_text("notes", "arch_source"))
    if runs is None:
        return None
    # Whoever cuts layers cuts the heads that predict further tokens first.
    mtp = model.mtp_layers if shape.layers > model.num_layers else 0
    assumed = f"{shape.layers} of the {model.num_layers} layers of {model.name}"
    return replace(model, runs=runs, mtp_layers=mtp, name=f"{model.name} ({shape.layers} layers)"), assumed


def _fewer_layers(model: ModelSpec, layers: int, notes: str) -> tuple[LayerRun, ...] | None:
    """A model's kinds of layers, fewer of them: as many leading dense ones as stated, else as the model has."""
    first, *rest = model.runs
    if not rest:
        whole = layers % len(first.layers) == 0
        return (replace(first, repeats=layers // len(first.layers)),) if whole else None
    dense = all(isinstance(layer.mlp, DenseMlp) for layer in first.layers)
    leading = _leading_dense(notes) or first.repeats
    if len(rest) > 1 or not dense or len(first.layers) > 1 or len(rest[0].layers) > 1 or leading >= layers:
        return None
    return replace(first, repeats=leading), replace(rest[0], repeats=layers - leading)


def _agrees(model: ModelSpec, shape: _Shape) -> bool:
    """Whether a model of the library has the row's widths; layers and vocabulary may differ (proxies, padding)."""
    if model.hidden != shape.hidden or abs(model.vocab / shape.vocab - 1) > 0.1:
        return False
    for layer in model.kinds():
        attention, mlp = layer.attention, layer.mlp
        if attention.heads != shape.heads:
            return False
        if isinstance(attention, Attention) and attention.kv_heads != shape.kv_heads:
            return False
        if isinstance(mlp, MoeMlp):
            if (mlp.experts, mlp.top_k, mlp.ffn_hidden) != (shape.experts, shape.top_k, shape.expert_ffn):
                return False
        elif not isinstance(mlp, DenseMlp) or (mlp.ffn_hidden, mlp.gated) != (shape.ffn, shape.gated):
            return False
    return model.is_moe == bool(shape.experts)


def _from_columns(record: MeasuredRecord, shape: _Shape) -> tuple[ModelSpec, str]:
    """Gated layers as Llama has them, others as GPT: LayerNorm, biases, a tied head, dropout under Megatron."""
    notes = record.all_text("notes", "arch_source")
    gpt = not shape.gated
    megatron = "megatron" in record.text("framework").lower()
    attention = _attention(shape, notes, bias=gpt)
    relu = gpt and record.text("model_name").lower().startswith("opt-")
    dense = DenseMlp(ffn_hidden=shape.ffn, gated=shape.gated, bias=gpt, relu=relu)

    def layer(mlp: DenseMlp | MoeMlp) -> LayerSpec:
        norm = "layernorm" if gpt else "rmsnorm"
        return LayerSpec(attention=attention, mlp=mlp, norm=norm, dropout=gpt and megatron)  # type: ignore[arg-type]

    runs: tuple[LayerRun, ...] = (LayerRun(layers=(layer(dense),), repeats=shape.layers),)
    if shape.experts:
        shared = _found(r"shared[- ]expert(?:-intermediate-size=| )(\d{3,})", notes)
        alike = _found(r"(\d+) shared experts?\b", notes)
        moe = MoeMlp(
            experts=shape.experts,
            top_k=min(shape.top_k, shape.experts),
            ffn_hidden=shape.expert_ffn,
            gated=shape.gated,
            shared_ffn_hidden=shared or (alike or 0) * shape.expert_ffn,
        )
        first = min(_leading_dense(notes) or 0, shape.layers)
        parts: list[tuple[DenseMlp | MoeMlp, int]] = [(dense, first), (moe, shape.layers - first)]
        runs = tuple(LayerRun(layers=(layer(mlp),), repeats=count) for mlp, count in parts if count)
    tied = gpt and "untie-embeddings-and-output-weights=true" not in notes
    model = ModelSpec(
        name=record.text("model_name") or "model",
        family="measured",
        hidden=shape.hidden,
        vocab=shape.vocab,
        max_seq_len=record.whole("seq_len") or 1,
        runs=runs,
        tied_embeddings=tied,
        learned_positions=(record.whole("seq_len") or 0) if gpt and megatron else 0,
        final_norm="layernorm" if gpt else "rmsnorm",
        mtp_layers=_found(r"mtp-num-layers=(\d+)", notes) or 0,
        source=record.text("arch_source"),
    )
    return model, f"a {'GPT' if gpt else 'Llama'} layer of the stated widths, head {'tied' if tied else 'not tied'}"


def without_dropout(model: ModelSpec) -> ModelSpec:
    """The same model whose layers drop nothing.

    Args:
        model: the model with layers of any kind.
    """

    def undropped(run: LayerRun) -> LayerRun:
        return replace(run, layers=tuple(replace(layer, dropout=False) for layer in run.layers))

    return replace(model, runs=tuple(undropped(run) for run in model.runs))


def _leading_dense(notes: str) -> int | None:
    """Dense layers before those with experts, where a source states them."""
    return _found(r"moe-layer-freq=\(?\[0\]\*(\d+)", notes) or _found(r"first (\d+) layers? dense", notes)


def _attention(shape: _Shape, notes: str, *, bias: bool) -> Attention | LatentAttention:
    kv_rank = _found(r"kv[-_]lora(?:[-_]rank)?[= ](\d+)", notes)
    if kv_rank is None:
        return Attention(
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            qkv_bias=bias,
            out_bias=bias,
            qk_norm="qk_layernorm" in notes,
        )
    # Widths of heads that a row does not state are Megatron-Core's defaults for latent attention.
    return LatentAttention(
        heads=shape.heads,
        q_rank=_found(r"q[-_]lora(?:[-_]rank)?[= ](\d+)", notes),
        kv_rank=kv_rank,
        nope_dim=_found(r"\bnope (\d+)", notes) or 128,
        rope_dim=_found(r"\brope (\d+)", notes) or 64,
        value_dim=_found(r"\bv (\d+)\)", notes) or 128,
    )


def _found(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text)
    return int(match[1]) if match and int(match[1]) else None


def model_or_none(find: Callable[[str], ModelSpec], name: str) -> ModelSpec | None:
    """A lookup that raises for an unknown name, as one that returns None."""
    try:
        return find(name)
    except MeshwrightError:
        return None
