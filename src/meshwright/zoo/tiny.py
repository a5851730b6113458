"""Named models small enough for a laptop's CPU, and library models scaled down."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec


def _tiny(name: str, family: str, *layers: LayerSpec, **fields: Any) -> ModelSpec:
    return ModelSpec(
        name=name,
        family=family,
        hidden=64,
        vocab=256,
        max_seq_len=1024,
        source="made for laptops",
        runs=tuple(LayerRun(layers=(layer,), repeats=4 // len(layers)) for layer in layers),
        **fields,
    )


_GPT = LayerSpec(
    attention=Attention(heads=4, kv_heads=4, head_dim=16, qkv_bias=True, out_bias=True),
    mlp=DenseMlp(ffn_hidden=256, gated=False, bias=True),
    norm="layernorm",
    dropout=True,
)
_LLAMA = LayerSpec(attention=Attention(heads=4, kv_heads=2, head_dim=16), mlp=DenseMlp(ffn_hidden=192, gated=True))
_MOE = LayerSpec(
    attention=Attention(heads=4, kv_heads=2, head_dim=16),
    mlp=MoeMlp(experts=4, top_k=2, ffn_hidden=96, gated=True),
)
_RESIDUAL = MoeMlp(experts=4, top_k=1, ffn_hidden=96, gated=False, bias=True, shared_ffn_hidden=96, residual=True)
_PYRAMID = tuple(replace(_GPT, mlp=replace(_RESIDUAL, experts=experts), dropout=False) for experts in (4, 8))

TINY: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        _tiny("gpt-tiny", "gpt2", _GPT, tied_embeddings=True, learned_positions=1024, final_norm="layernorm"),
        _tiny("llama-tiny", "llama", _LLAMA, tied_embeddings=False),
        _tiny("moe-tiny", "mixtral", _MOE, tied_embeddings=False),
        _tiny("pr-moe-tiny", "gpt2", *_PYRAMID, tied_embeddings=True, learned_positions=1024, final_norm="layernorm"),
    )
}
"""A GPT with tied embeddings and dropout, a Llama with grouped queries, a mixture of four experts of which two, and a
pyramid of four and eight residual experts (DeepSpeed-MoE)."""


def scaled_model(
    spec: ModelSpec, *, layers: int | None = None, hidden: int | None = None, vocab: int | None = None
) -> ModelSpec:
    """A model of the same kind with other sizes; heads and widths follow the hidden size.

    Args:
        spec: the spec of the model.
        layers: transformer layers, the first of the model's.
        hidden: width of the stream: head counts shrink in its proportion, head widths where heads run out.
        vocab: tokens.

    Raises:
        InputError: a size that cannot be.
    """
    problems = [
        Problem(what=f"{name} = {value}", why="it counts from 1", fix=f"--{name} 4", field=name)
        for name, value in (("layers", layers), ("hidden", hidden), ("vocab", vocab))
        if value is not None and value < 1
    ]
    if layers is not None and layers > spec.num_layers:
        problems.append(
            Problem(
                what=f"{layers} layers, {spec.name} has {spec.num_layers}",
                field="layers",
                why="models are scaled down",
                fix=f"--layers {spec.num_layers} or fewer",
            )
        )
    if problems:
        raise InputError(problems)
    kept = list(spec.layers())[:layers]
    if hidden is not None and hidden != spec.hidden:
        kept = [_narrowed(layer, spec.hidden, hidden) for layer in kept]
    changed = [f"{name}{value}" for name, value in (("l", layers), ("h", hidden), ("v", vocab)) if value is not None]
    return replace(
        spec,
        name="-".join([spec.name, *changed]),
        hidden=hidden or spec.hidden,
        vocab=vocab or spec.vocab,
        runs=_runs(kept),
    )


def _runs(layers: list[LayerSpec]) -> tuple[LayerRun, ...]:
    """Equal neighbours as one run."""
    runs: list[LayerRun] = []
    for layer in layers:
        if runs and runs[-1].layers == (layer,):
            runs[-1] = LayerRun(layers=(layer,), repeats=runs[-1].repeats + 1)
        else:
            runs.append(LayerRun(layers=(layer,), repeats=1))
    return tuple(runs)


def _narrowed(layer: LayerSpec, old: int, new: int) -> LayerSpec:
    """Widths in the proportion of the stream's; query heads stay a multiple of key heads."""

    def share(width: int, multiple: int = 8) -> int:
        return multiple * ceil(width * new / old / multiple) if width else 0

    seen = layer.attention
    if isinstance(seen, Attention):
        group = seen.heads // seen.kv_heads
        kv_heads = max(1, seen.kv_heads * new // old)
        head_dim = max(2, min(seen.head_dim, 2 * (new // (2 * group * kv_heads))))
        seen = replace(seen, heads=group * kv_heads, kv_heads=kv_heads, head_dim=head_dim)
    thought = layer.mlp
    if isinstance(thought, DenseMlp):
        thought = replace(thought, ffn_hidden=share(thought.ffn_hidden))
    elif isinstance(thought, MoeMlp):
        thought = replace(
            thought, ffn_hidden=share(thought.ffn_hidden), shared_ffn_hidden=share(thought.shared_ffn_hidden)
        )
    return replace(layer, attention=seen, mlp=thought)
