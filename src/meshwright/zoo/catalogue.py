"""A model by what users write: a tiny one, a library model with other sizes, or the perceptron."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from meshwright.errors import InputError, Problem, UnsupportedError, nearest, unknown_name
from meshwright.library import models
from meshwright.specs.model import ModelSpec
from meshwright.specs.strategy import ExpertParallel
from meshwright.zoo.tiny import TINY, scaled_model

if TYPE_CHECKING:
    from meshwright.compiler.grid import DeviceGrid
    from meshwright.zoo.decoder import Recompute
    from meshwright.zoo.model import Model

PERCEPTRON = "mlp-tiny"
NAMES = (PERCEPTRON, *TINY)
"""Models of this folder beside those of the library."""
MOST_PARAMETERS = 2_000_000_000
"""Most parameters of a model run here: 16 bytes each with gradients and moments."""


def spec_named(
    text: str | os.PathLike[str] | ModelSpec,
    *,
    layers: int | None = None,
    hidden: int | None = None,
    vocab: int | None = None,
) -> ModelSpec | None:
    """The spec of a model, its sizes changed; None for the perceptron, which is no transformer.

    Args:
        text: one of `NAMES`, or as `library.models.resolve` takes it.
        layers: the number of layers of the model that runs.
        hidden: the hidden size of the model that runs.
        vocab: the vocabulary of the model that runs.

    Raises:
        InputError: sizes that cannot be, or a model too large to run here.
        UnsupportedError: nobody knows the name.
    """
    if text == PERCEPTRON:
        if vocab is not None:
            raise InputError(
                Problem(
                    what=f"{PERCEPTRON} has no vocabulary",
                    why="it maps vectors to vectors",
                    fix="leave --vocab out",
                    field="vocab",
                )
            )
        return None
    known = text if isinstance(text, ModelSpec) else TINY.get(str(text)) or _of_library(text)
    if (layers, hidden, vocab) != (None, None, None):
        known = scaled_model(known, layers=layers, hidden=hidden, vocab=vocab)
    if known.parameters > MOST_PARAMETERS:
        raise InputError(
            what=f"{known.name} has {known.parameters / 1e9:,.1f} billion parameters",
            why=f"models of at most {MOST_PARAMETERS / 1e9:g} billion run here",
            fix="scale it down, for example --layers 4 --hidden 256 --vocab 1024",
            field="model",
            code="MW251",
        )
    return known


def _of_library(text: str | os.PathLike[str]) -> ModelSpec:
    try:
        return models.resolve(text)
    except UnsupportedError as error:
        close = nearest(str(text), NAMES)
        if not close:
            raise
        raise UnsupportedError(unknown_name("model", str(text), NAMES), code=error.code) from None


def model_of(
    spec: ModelSpec | None,
    *,
    seq_len: int,
    layers: int | None = None,
    hidden: int | None = None,
    compute: str | None = None,
    recompute: tuple[tuple[int, Recompute], ...] = (),
    grid: DeviceGrid | None = None,
    experts: ExpertParallel | None = None,
) -> Model:
    """A model that can be trained.

    Args:
        spec: the spec of a decoder; None makes the perceptron.
        seq_len: tokens of a sample.
        layers: the number of layers of the perceptron.
        hidden: the hidden size of the perceptron.
        compute: format of products; None for the weights'.
        recompute: runs of layers, as `Decoder.recompute`.
        grid: the grid of the devices that share its work; the perceptron needs none.
        experts: how tokens and experts meet on them; None for one exchange.

    Raises:
        UnsupportedError: not all of its weights are trained.
    """
    if spec is None:
        from meshwright.zoo.perceptron import Perceptron

        plain = Perceptron()
        return replace(plain, num_layers=layers or plain.num_layers, hidden=hidden or plain.hidden)
    if spec.tuning is not None:
        what, why = f"{spec.name} with frozen weights", "the training step of this package trains every weight"
        fix = "leave out --lora and --freeze"
        raise UnsupportedError(what=what, why=why, fix=fix, field="model", code="MW406")
    from meshwright.zoo.decoder import Decoder

    decoder = Decoder(spec=spec, seq_len=seq_len, compute=compute, recompute=recompute, grid=grid)
    return decoder if experts is None else replace(decoder, experts=experts)
