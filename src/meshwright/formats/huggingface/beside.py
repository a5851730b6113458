"""Parts beside the usual ones of a layer: inputs of its own, keys of an earlier layer, a residual of low rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.formats.huggingface.fields import MAX_VOCAB, Fields
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.base import FeedForward, Mixer
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.laurel import Laurel
from meshwright.specs.layers.per_layer_input import PerLayerInput
from meshwright.specs.layers.side_by_side import SideBySide


def read_beside(
    fields: Fields, mixers: Sequence[Mixer], mlps: Sequence[FeedForward]
) -> tuple[list[Mixer], list[FeedForward]]:
    """The parts of each layer with what stands beside them.

    Args:
        fields: the config.
        mixers: the mixers of the layers, as other keys have them.
        mlps: the MLPs of the layers, as other keys have them.
    """
    borrowed = _borrowed(fields, mixers)
    if fields.flag("use_double_wide_mlp", default=False):
        mlps = [_wider(one) if own else one for one, own in zip(mlps, borrowed, strict=True)]
    mixers = [_borrowing(one) if own else one for one, own in zip(mixers, borrowed, strict=True)]
    rank = fields.maybe("laurel_rank", low=0)
    if rank:
        low = Laurel(rank=rank)
        mixers = [SideBySide(mixers=(one, low)) for one in mixers]
    width = fields.maybe("hidden_size_per_layer_input", low=0)
    if not width:
        fields.has("vocab_size_per_layer_input")
        return [*mixers], [*mlps]
    rows = fields.whole("vocab_size_per_layer_input", default=262_144, high=MAX_VOCAB)
    kinds = {mlp: _with_input(fields, mlp, width, rows) for mlp in dict.fromkeys(mlps)}
    return [*mixers], [kinds[mlp] for mlp in mlps]


def _borrowed(fields: Fields, mixers: Sequence[Mixer]) -> list[bool]:
    """Whether each layer takes keys and values of the last layer of its kind that has some."""
    shared = fields.whole("num_kv_shared_layers", default=0, low=0, high=len(mixers))
    first = len(mixers) - shared
    for mixer in mixers[first:]:
        if not isinstance(mixer, Attention) or mixer not in mixers[:first]:
            why = f"each of the last {shared} layers must have an earlier one of its kind to take keys and values of"
            fields.problem("num_kv_shared_layers", shared, why)
            return [False] * len(mixers)
    return [place >= first for place in range(len(mixers))]


def _borrowing(mixer: Mixer) -> Mixer:
    """Attention to keys and values of an earlier layer."""
    return replace(mixer, own_keys=False) if isinstance(mixer, Attention) else mixer


def _wider(mlp: FeedForward) -> FeedForward:
    """An MLP of twice the width."""
    return replace(mlp, ffn_hidden=2 * mlp.ffn_hidden) if isinstance(mlp, DenseMlp) else mlp


def _with_input(fields: Fields, mlp: FeedForward, width: int, rows: int) -> FeedForward:
    """An MLP with an embedding of the layer's own behind it."""
    if isinstance(mlp, DenseMlp):
        return PerLayerInput(mlp=mlp, width=width, rows=rows)
    why = "an embedding for each layer beside experts cannot be planned here"
    fields.refuse("hidden_size_per_layer_input", width, why, "set it to 0 to plan the model without it")
    return mlp
