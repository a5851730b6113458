"""Which parts of a `ModelSpec` the decoder of this folder builds; the rest is refused by name."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import Problem, UnsupportedError
from meshwright.specs.layers import Attention
from meshwright.specs.model import ModelSpec


def check_supported(spec: ModelSpec, seq_len: int) -> None:
    """Whether the decoder can be built.

    Args:
        spec: of the model.
        seq_len: tokens of a sample.

    Raises:
        UnsupportedError: it cannot, with every reason.
    """
    problems = [
        Problem(what=f"{spec.name} has {what}", why="models that run here are decoders of grouped attention and MLPs or"
                " experts", fix="a model such as llama-3.1-8b, gpt2 or mixtral-8x7b, scaled down", field="model")
        for what in dict.fromkeys(_missing(spec))
    ]  # fmt: skip
    most = spec.learned_positions or spec.max_seq_len
    if seq_len > most:
        problems.append(Problem(what=f"{seq_len} tokens a sample, {spec.name} has {most} positions",
                                why="every token has a position", fix=f"--seq {most}", field="seq_len"))  # fmt: skip
    if problems:
        raise UnsupportedError(problems, code="MW410")


def _missing(spec: ModelSpec) -> Iterator[str]:
    if spec.mtp_layers:
        yield "multi-token-prediction layers"
    for layer in spec.kinds():
        if not isinstance(layer.attention, Attention):
            yield "latent attention"
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
