"""The FLOP that training needs, whatever is recomputed: what MFU is counted with."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from meshwright.estimate.layout import token_flop
from meshwright.estimate.sequences import tokens_of_step, with_encoder_of
from meshwright.ops.edges import edge_work, edge_works
from meshwright.ops.layers import work_of
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.operators import CoreAttention, LayerWork, Linear, Scan, Scores
from meshwright.specs.workload import Workload


def attention_flop_per_token(model: ModelSpec, seq_len: int) -> float:
    """Forward FLOP per token of scores and weighted values, causal pairs counted once, windows as they are, and of
    recurrences."""
    total = 0.0
    for kind, count in model.kind_counts().items():
        total += count * token_flop(_mixing(model, kind), seq_len)
    return total


@lru_cache(maxsize=256)
def _mixing(model: ModelSpec, kind: LayerSpec) -> LayerWork:
    """The work of a layer that mixes tokens, alone."""
    work = work_of(model, kind, "flash")
    mixing = tuple(op for op in work.ops if isinstance(op, (CoreAttention, Scores, Scan)))
    return replace(work, ops=mixing, kept=())


def model_flop_per_token(model: ModelSpec, seq_len: int, *, training: bool) -> float:
    """6 N per token for the active parameters plus three times the causal attention; a third of it forward only.

    About 4 N where adapters are trained: frozen weights have no gradient, layers below everything trained no backward.
    """
    forward = 2.0 * _met_parameters(model, seq_len) + attention_flop_per_token(model, seq_len)
    if not training or model.tuning is None:
        return forward * (3.0 if training else 1.0)
    backward = 0.0
    for kind, count in model.kind_counts().items():
        backward += count * backward_flop(work_of(model, kind, "flash"), seq_len)
    for stream in edge_works(model, "embedding")[1:]:
        backward += backward_flop(stream, seq_len)
    return forward + backward + backward_flop(edge_work(model, "head"), seq_len)


def backward_flop(work: LayerWork, seq_len: int) -> float:
    """FLOP per token of a layer: input gradients where gradients reach it, gradients of the weights that are trained.

    Args:
        work: the layer's operators.
        seq_len: tokens of a sequence.
    """
    if not work.reached:
        return 0.0
    every = token_flop(work, seq_len)
    mixing = tuple(op for op in work.ops if isinstance(op, (CoreAttention, Scores, Scan)))
    trained = tuple(op for op in work.ops if isinstance(op, Linear) and op.trained)
    return every + token_flop(replace(work, ops=(*mixing, *trained)), seq_len)


def step_flop(model: ModelSpec, workload: Workload) -> float:
    """FLOP that a step needs: of its real tokens, each attending within its own sequence; nothing for padding."""
    if not workload.sequence_lengths:
        return model_flop_per_token(model, workload.seq_len, training=workload.training) * workload.tokens_per_step
    return _flop_per_real_token(model, replace(workload, global_batch=1)) * tokens_of_step(workload)


@lru_cache(maxsize=64)
def _flop_per_real_token(model: ModelSpec, workload: Workload) -> float:
    lengths = [(min(length, workload.seq_len), share) for length, share in workload.sequence_lengths]
    seq, training = workload.seq_len, workload.training
    flop = (
        share * n * model_flop_per_token(with_encoder_of(model, seq, n), n, training=training) for n, share in lengths
    )
    return sum(flop) / sum(share * n for n, share in lengths)


def _met_parameters(model: ModelSpec, seq_len: int) -> float:
    """Active parameters, each as often as tokens meet it for one token of the text."""
    met = float(model.active_parameters)
    if not model.streams:
        return met
    for stream in model.streams:
        if not stream.window_of:
            met += stream.parameters * (stream.tokens.count / seq_len - 1.0)
    for layer, count in model.kind_counts().items():
        tokens = model.tokens_of(layer.stream)
        if tokens is not None:
            met += count * layer.active_parameters(model.width(layer)) * (tokens.count / seq_len - 1.0)
    return met
