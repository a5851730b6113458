"""What stands around the layers of streams: stems of patches and convolutions, projectors, an encoder's lookup."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Literal

from meshwright.specs.operators import Kept, LayerWork, Linear, Op, StreamTokens, Vector, activation_pass
from meshwright.specs.streams import Projection, Stream


@lru_cache(maxsize=64)
def stream_works(stream: Stream, part: Literal["stem", "projector"]) -> tuple[LayerWork, ...]:
    """The stem or projector of a stream, one work for each number of tokens they work on.

    Args:
        stream: the stream; the first pipeline stage holds both.
        part: tables and norms stand with the stem.

    Returns:
        Operators and kept tensors.
    """
    found: list[LayerWork] = []
    if part == "stem" and (stream.embedded or stream.tables):
        found.append(_tables(stream))
    for rate, group in groupby(getattr(stream, part), key=lambda each: each.rate):
        found.append(_projections(stream, tuple(group), rate))
    return tuple(found)


def _tables(stream: Stream) -> LayerWork:
    """Rows of the text's table for an encoder's tokens, positions added, norms."""
    hidden = stream.hidden
    lookup = Vector(
        name=f"{stream.name} positions and norms",
        module="",
        region="sequence",
        forward_elements=3 * hidden,
        backward_elements=3 * hidden,
        parameters=stream.tables,
        reduce=hidden if stream.embedded else 0,
    )
    return LayerWork(ops=(lookup,), kept=(), input_width=0, tokens=stream.tokens)


def _projections(stream: Stream, projections: tuple[Projection, ...], rate: float) -> LayerWork:
    """Matrices on as many positions, an activation between two of them."""
    ops: list[Op] = []
    kept: list[Kept] = []
    for number, each in enumerate(projections):
        row = each.split == "row"
        if number:
            ops.append(activation_pass(f"{each.name} activation", each.inputs, region="tensor" if row else "sequence"))
            kept.append(
                Kept(
                    name=f"{each.name} activation input",
                    elements=each.inputs,
                    role="activation",
                    region="tensor" if row else "sequence",
                )
            )
        ops.append(
            Linear(
                name=each.name,
                module="",
                inputs=((each.inputs, 1),) if row else ((1, each.inputs),),
                outputs=((each.outputs, 1),) if each.split == "column" else ((1, each.outputs),),
                split=each.split,
                gather=each.inputs if each.split == "column" else 0,
                reduce=each.outputs if row else 0,
                bias=each.outputs if each.bias else 0,
            )
        )
        kept.append(
            Kept(
                name=f"{each.name} input",
                elements=each.inputs,
                role="input",
                region="tensor" if row else "sequence",
                weights_of=(each.name,),
            )
        )
    return LayerWork(ops=tuple(ops), kept=tuple(kept), input_width=0, tokens=_thinned(stream.tokens, rate))


def _thinned(tokens: StreamTokens, rate: float) -> StreamTokens:
    """The same number of sequences with a share of the tokens in each."""
    return replace(tokens, length=max(1, round(tokens.length * rate)))
