"""Parameters of a model that a step trains, and those that it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from meshwright.ops.edges import edge_work, edge_works
from meshwright.ops.layers import work_of
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import LayerWork, Linear, Vector


@lru_cache(maxsize=64)
def trained_parameters(model: ModelSpec) -> int:
    """Parameters that an optimizer updates: all of a model, or adapters and what is trained besides.

    Args:
        model: the model.
    """
    if model.tuning is None:
        return model.parameters
    return sum(count * trained_in(work) for count, work in _works(model))


@lru_cache(maxsize=64)
def adapter_parameters(model: ModelSpec) -> int:
    """Parameters that adapters add to a model.

    Args:
        model: the model.
    """
    if model.tuning is None or model.tuning.lora is None:
        return 0
    with_them, without = (
        sum(count * work.parameters for count, work in _works(one)) for one in (model, replace(model, tuning=None))
    )
    return with_them - without


def trained_in(work: LayerWork) -> int:
    """Parameters of a layer that have gradients.

    Args:
        work: its operators.
    """
    total = 0
    for op in work.ops:
        if isinstance(op, (Linear, Vector)) and op.trained:
            total += op.parameters
            if isinstance(op, Vector):
                rows, width = op.table or (0, 0)
                total += op.cut_parameters + rows * width
    return total


def _works(model: ModelSpec) -> Iterator[tuple[int, LayerWork]]:
    """Layer kinds, embedding and head, and how often each stands in the model; a tied table once."""
    for kind, count in model.kind_counts().items():
        yield count, work_of(model, kind, "flash")
    for work in edge_works(model, "embedding"):
        yield 1, work
    head = edge_work(model, "head")
    if model.tied_embeddings:
        head = LayerWork(ops=tuple(op for op in head.ops if op.name != "logits"), kept=(), input_width=0)
    yield 1, head
