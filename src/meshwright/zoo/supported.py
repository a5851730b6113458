"""Which models run here: decoders of grouped attention with MLPs or experts."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import Problem, UnsupportedError
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.model import ModelSpec


def check_supported(spec: ModelSpec, seq_len: int) -> None:
    """Check that a decoder can be built from a model.

    Args:
        spec: the spec of the model.
        seq_len: tokens of a sample.

    Raises:
        UnsupportedError: it cannot, with every reason.
    """
    problems = [
        Problem(
            what=f"{spec.name} has {what}",
            why="models that run here are decoders of grouped attention and MLPs or experts",
            fix="a model such as llama-3.1-8b, gpt2 or mixtral-8x7b, scaled down",
            field="model",
        )
        for what in dict.fromkeys(_missing(spec))
    ]
    most = spec.learned_positions or spec.max_seq_len
    if seq_len > most:
        problems.append(
            Problem(
                what=f"{seq_len} tokens a sample, {spec.name} has {most} positions",
                why="every token has a position",
                fix=f"--seq {most}",
                field="seq_len",
            )
        )
    if problems:
        raise UnsupportedError(problems, code="MW410")


def _missing(spec: ModelSpec) -> Iterator[str]:
    """Parts of a model that no decoder here has."""
    if spec.mtp_layers:
        yield "multi-token-prediction layers"
    yield from spec.beside_decoder
    for layer in spec.kinds():
        if layer.residuals > 1:
            yield "copies of the residual stream"
        if layer.residual_blocks:
            yield "attention to outputs of earlier blocks"
        if not isinstance(layer.mlp, (DenseMlp, MoeMlp)):
            yield f"feed-forward parts of the kind {layer.mlp.kind!r}"
        if not isinstance(layer.attention, Attention):
            latent = isinstance(layer.attention, LatentAttention)
            yield "latent attention" if latent else f"mixers of the kind {layer.attention.kind!r}"
            continue
        if layer.attention.gate:
            yield "gates on its attention's output"
        if layer.attention.sinks:
            yield "attention sinks"
        if layer.norms > 2:
            yield f"{layer.norms} norms in a layer"
        if layer.norms == 1 and not layer.parallel_block:
            yield "one norm for attention and MLP in a row"
        if layer.norms < 1:
            yield "layers without norms"
