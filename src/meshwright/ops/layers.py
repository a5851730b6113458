"""A layer as operators: its parts, each between its norm and its residual addition."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from meshwright.specs.layers.base import AttentionKernel, LayerContext, LayerPart
from meshwright.specs.model import LayerSpec, ModelSpec, TunedLayer
from meshwright.specs.operators import Kept, LayerWork, Op, StreamTokens, Vector, whole_product


def work_of(model: ModelSpec, layer: LayerSpec, kernel: AttentionKernel) -> LayerWork:
    """The operators of a layer of a model, on the tokens of its own stream.

    Args:
        model: has the widths and tokens of the streams.
        layer: one of its layers.
        kernel: the kernel of attention.
    """
    if not model.streams:
        return layer_work(layer, model.hidden, kernel)
    return layer_work(layer, model.width(layer), kernel, model.tokens_of(layer.stream), model.tokens_of(layer.memory))


@lru_cache(maxsize=256)
def layer_work(
    layer: LayerSpec,
    hidden: int,
    kernel: AttentionKernel,
    tokens: StreamTokens | None = None,
    memory: StreamTokens | None = None,
) -> LayerWork:
    """The operators of one layer: mixer and feed-forward part, each between its norm and its residual addition.

    Args:
        layer: the layer.
        hidden: width of the residual stream.
        kernel: the kernel of attention.
        tokens: those it works on; None for the text's.
        memory: those that its cross attention reads.

    Returns:
        Operators in forward order and the tensors they keep.
    """
    context = LayerContext(hidden=hidden, kernel=kernel, dropout=layer.dropout, memory=memory)
    ops: list[Op] = []
    kept: list[Kept] = []
    cross: tuple[tuple[str, LayerPart, bool], ...] = (("cross", layer.cross, True),) if layer.cross else ()
    parts: tuple[tuple[str, LayerPart, bool], ...] = (
        ("attention", layer.attention, True),
        *cross,
        ("mlp", layer.mlp, not layer.parallel_block),
    )
    for name, part, own_input in parts:
        if part.absent:
            continue
        norm, residual = _split_norms(layer, hidden, name, parts=sum(not each.absent for _, each, _ in parts))
        work = part.work(context)
        if layer.altup:
            inner = [*norm, *work.ops, *residual]
            ops += _altup(layer.residuals, hidden, name, before=name == "attention", inner=inner)
            kept.append(_copies(layer.residuals, hidden, name))
        elif layer.residuals > 1:
            ops += [*_mixing(layer, hidden, name), *norm, *work.ops]
            kept.append(_copies(layer.residuals, hidden, name))
        elif layer.residual_blocks:
            ops += [attended_blocks(f"{name} blocks", layer.blocks_seen, hidden), *norm, *work.ops, *residual]
            # The running sum of the block, and its share of the outputs of earlier ones.
            sources = hidden * (1 + (layer.input_width - 1) / 2)
            kept.append(Kept(name=f"{name} blocks", elements=sources, role="activation", region="sequence"))
        else:
            ops += [*norm, *work.ops, *residual]
        if own_input:
            kept.append(Kept(name=f"{name} norm input", elements=hidden, role="activation", region="sequence"))
        kept += work.kept
        if layer.dropout:
            kept.append(Kept(name=f"{name} dropout mask", elements=hidden, role="mask", region="sequence"))
    whole = LayerWork(
        ops=tuple(ops),
        kept=tuple(kept),
        input_width=hidden * layer.input_width,
        top_k=layer.mlp.visited_experts,
        experts=layer.mlp.routed_experts,
        router_groups=layer.mlp.router_groups,
        tokens=tokens,
        wide=layer.wide,
    )
    if not isinstance(layer, TunedLayer):
        return whole
    from meshwright.ops.tuned import tuned_work  # most jobs train everything

    return tuned_work(whole, layer)


def _mixing(layer: LayerSpec, hidden: int, name: str) -> list[Op]:
    """What a part's input takes of each copy of the residual stream, and how its output goes back to them.

    One product of all copies makes the weights; then all copies are read for the input of the part, and read and
    written with its output.
    """
    copies, made = layer.residuals, layer.mixing_weights
    return [
        whole_product(f"{name} mixing", copies * hidden, made, bias=made),
        Vector(
            name=f"{name} residuals",
            module="",
            region="sequence",
            forward_elements=(4 * copies + 2) * hidden,
            backward_elements=(8 * copies + 4) * hidden,
            kernels=3.0,
            parameters=3 if layer.residual_mixing else 2,
        ),
    ]


def attended_blocks(name: str, blocks: float, hidden: int) -> Vector:
    """What a part takes of outputs of earlier blocks and of the running sum of its own: a softmax of one query.

    They are normed, scored and summed in one pass; backward reads them and the gradient, and adds to that of each.

    Args:
        name: the name of the operator.
        blocks: how many outputs of earlier blocks it sees.
        hidden: width of each.
    """
    return Vector(
        name=name,
        module="",
        region="sequence",
        forward_elements=(blocks + 2) * hidden,
        backward_elements=(3 * (blocks + 1) + 1) * hidden,
        kernels=2.0,
        parameters=2 * hidden,
    )


def _copies(copies: int, hidden: int, name: str) -> Kept:
    """The copies of the residual stream around a part."""
    return Kept(name=f"{name} residuals", elements=copies * hidden, role="activation", region="sequence")


def _altup(copies: int, hidden: int, name: str, *, before: bool, inner: list[Op]) -> list[Op]:
    """A part between or behind the products of AltUp.

    A product of the normed active copy makes a number a copy, twice: before attention n x n weights follow from them,
    by which all copies are predicted; behind the MLP n weights, by which the difference of prediction and output
    corrects every copy.

    Args:
        copies: the number of copies of the residual stream.
        hidden: width of each.
        name: the name of the part.
        before: whether copies are predicted before the part; else they are corrected behind it.
        inner: the part with its norms and residual addition.

    Source: Baykal et al., "Alternating Updates for Efficient Transformers", 2023 (arXiv 2301.13310), algorithm 1;
    shapes as in `modeling_gemma3n.py` of transformers 5.23.
    """
    made = copies * copies if before else copies
    # The second product of the router has the weights of the first, and reads the width of one copy.
    router = [whole_product(f"{name} altup router", hidden, copies)] if before else []
    mixed = Vector(
        name=f"{name} altup copies",
        module="",
        region="sequence",
        forward_elements=(3 * copies + 3) * hidden,
        backward_elements=(6 * copies + 6) * hidden,
        kernels=6.0,
        parameters=hidden,
    )
    found: list[Op] = [*router, whole_product(f"{name} altup weights", copies, made), mixed]
    return [*found, *inner] if before else [*inner, *found]


def _split_norms(layer: LayerSpec, hidden: int, name: str, *, parts: int) -> tuple[list[Op], list[Op]]:
    """Norms before and residual addition after; where parts do not share them evenly, attention has them.

    Args:
        layer: the layer.
        hidden: width of the residual stream.
        name: the name of the part.
        parts: how many there are.
    """
    share = 1.0 / parts if layer.norms % parts == 0 else float(name == "attention")
    found: list[Op] = list(_norms(layer, hidden, name, share))
    return found[:-1], found[-1:]


def _norms(layer: LayerSpec, hidden: int, name: str, share: float) -> Iterator[Vector]:
    """The norms on one half of the layer with the residual addition; LayerNorm has a shift too."""
    count = layer.norms * share
    width = hidden * (2 if layer.norm == "layernorm" else 1)
    if count:
        # One pass reads the residual and writes the normalised input; backward reads both and the gradient, writes one.
        yield Vector(
            name=f"{name} norm",
            module="layernorm",
            region="sequence",
            forward_elements=2 * hidden * count,
            backward_elements=4 * hidden * count,
            parameters=int(width * count),
        )
    mask = hidden if layer.dropout else 0
    yield Vector(
        name=f"{name} residual",
        module="",
        region="sequence",
        forward_elements=3 * hidden + mask,
        backward_elements=2 * hidden + mask,
    )
