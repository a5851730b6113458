"""What stands before and behind the layers: embedding, head with loss, multi-token-prediction modules."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Literal

from meshwright.ops.layers import attended_blocks
from meshwright.specs.model import ModelSpec, TunedLayer
from meshwright.specs.operators import Kept, LayerWork, Linear, Vector, activation_pass, norm_pass, whole_product


@lru_cache(maxsize=64)
def edge_work(model: ModelSpec, part: Literal["embedding", "head", "mtp"], tiles: int = 1) -> LayerWork:
    """Embedding, head with loss, or the projection of one multi-token-prediction module, in the same form as a layer.

    Args:
        model: the model.
        part: `head` is final norm, projection and cross-entropy; `mtp` is what a module adds to its layer and its loss.
        tiles: pieces of the tokens whose logits the head makes one after the other.

    Returns:
        Operators and kept tensors; the head keeps its logits in fp32 until backward. In tiles the gradients of a piece
        are made right after its loss: one piece's logits live at a time, and the gradient of the head's input is kept.

    Source: Hsu et al., "Liger Kernel", 2024 (arXiv 2410.10989), section 3.2 (FusedLinearCrossEntropy); Bekman et al.,
    "Arctic Long Sequence Training", 2025 (arXiv 2506.13996), section 3.1.
    """
    work = _edge_work(model, part, tiles)
    if model.tuning is None:
        return work
    # A tied head is the embedding's table: frozen where that is.
    if part == "mtp":
        frozen = model.tuning.lora is not None
    else:
        frozen = model.tuning.freezes("embedding" if part == "head" and model.tied_embeddings else part)
    if not frozen:
        return work
    ops = tuple(replace(op, trained=False) if isinstance(op, (Linear, Vector)) else op for op in work.ops)
    kept = tuple(one for one in work.kept if not one.weights_of)
    return replace(work, ops=ops, kept=kept, reached=part != "embedding")


@lru_cache(maxsize=64)
def _edge_work(model: ModelSpec, part: Literal["embedding", "head", "mtp"], tiles: int) -> LayerWork:
    hidden, vocab = model.hidden, model.vocab
    norm_width = hidden * (2 if model.final_norm == "layernorm" else 1)
    if part == "embedding":
        lookup = Vector(
            name="embedding lookup",
            module="",
            region="sequence",
            forward_elements=3 * hidden,
            backward_elements=3 * hidden,
            parameters=model.learned_positions * hidden + (2 * hidden if model.embedding_norm else 0),
            reduce=hidden,
            table=(vocab, hidden),
        )
        if model.pooled:
            lookup = replace(lookup, forward_elements=0, backward_elements=0, reduce=0, table=None)
        return LayerWork(ops=(lookup, *_spread(model)), kept=(), input_width=0)
    if part == "mtp":
        project = whole_product("mtp projection", 2 * hidden, hidden)
        norms = norm_pass("mtp norms", 2 * hidden, parameters=2 * norm_width, module="")
        inputs = Kept(name="mtp inputs", elements=4 * hidden, role="activation", region="sequence")
        return LayerWork(ops=(norms, project), kept=(inputs,), input_width=2 * hidden)
    transform = _transform(hidden) if model.head_transform else ()
    final_norm = norm_pass("final norm", hidden, parameters=norm_width if model.final_norm else 0)
    if model.last_layer().residual_blocks:
        transform = (*transform, attended_blocks("blocks before the head", model.last_layer().residual_blocks, hidden))
    if model.residuals > 1:
        merge = _unaltered if model.last_layer().altup else _merge
        transform = (*transform, *merge(model.residuals, hidden))
    before = Kept(name="final norm input", elements=hidden, role="activation", region="sequence")
    words = model.predicted
    if not words:
        # Losses of embedding models compare one vector a sample: next to nothing beside the layers.
        return LayerWork(ops=(*transform, final_norm), kept=(before,), input_width=hidden)
    logits = Linear(
        name="logits",
        module="loss",
        inputs=((1, hidden),),
        outputs=((words, 1),),
        split="column",
        gather=hidden,
        bias=words if model.head_bias else 0,
        tied=model.tied_embeddings,
    )
    # Cross-entropy over the local vocabulary: read logits, write fp32, reduce, exponentiate; backward writes gradients.
    loss = Vector(
        name="cross-entropy",
        module="loss",
        region="tensor",
        forward_elements=3 * words,
        backward_elements=2 * words,
        fp32=True,
        kernels=float(tiles),
    )
    early = (Kept(name="gradient of the logits input", elements=hidden, role="activation", region="sequence"),)
    kept = (
        before,
        Kept(name="logits input", elements=hidden, role="activation", region="sequence", weights_of=(logits.name,)),
        Kept(name="logits", elements=words / tiles, role="fp32", region="tensor"),
        *(early if tiles > 1 else ()),
    )
    return LayerWork(ops=(*transform, final_norm, logits, loss), kept=kept, input_width=hidden)


def _spread(model: ModelSpec) -> tuple[Linear | Vector, ...]:
    """Copies of the embeddings by square matrices (AltUp), and the norm of the inputs that layers have of their own."""
    last, hidden = model.last_layer(), model.hidden
    found: list[Linear | Vector] = []
    if last.altup:
        found.append(whole_product("copies of the embeddings", hidden, (last.residuals - 1) * hidden))
    if width := last.mlp.input_width:
        # Each layer's part of it is normed with its lookup.
        found.append(norm_pass("per-layer input norm", width, parameters=width, module=""))
    return tuple(found)


def _unaltered(copies: int, hidden: int) -> tuple[Linear, Vector]:
    """The copies of AltUp as one: their mean, all but the first behind a square matrix."""
    mean = Vector(
        name="mean of copies",
        module="",
        region="sequence",
        forward_elements=(copies + 1) * hidden,
        backward_elements=(copies + 1) * hidden,
    )
    return whole_product("copies to one", hidden, (copies - 1) * hidden), mean


def _merge(copies: int, hidden: int) -> tuple[Linear, Vector]:
    """The copies of the residual stream as one, by weights that a product of all of them makes."""
    weights = whole_product("merge of residuals", copies * hidden, copies, bias=copies + 1)
    merged = Vector(
        name="merged residuals",
        module="",
        region="sequence",
        forward_elements=(2 * copies + 1) * hidden,
        backward_elements=(4 * copies + 2) * hidden,
    )
    return weights, merged


def edge_works(model: ModelSpec, part: Literal["embedding", "head"]) -> tuple[LayerWork, ...]:
    """The works of one end of the model: with the embedding stand the stems and projectors of streams.

    Args:
        model: the model.
        part: the end of the model: embedding or head.
    """
    found = [edge_work(model, part)]
    for stream in model.streams if part == "embedding" else ():
        from meshwright.ops.streams import stream_works  # most models read text alone

        stems, projectors = stream_works(stream, "stem"), stream_works(stream, "projector")
        if model.tuning is not None and not stream.window_of:
            stem_frozen = model.tuning.freezes_around(stream.name, "stem")
            if stem_frozen:
                stems = tuple(_frozen(work, reached=False) for work in stems)
            if model.tuning.freezes_around(stream.name, "projector"):
                # Gradients pass it to layers of the stream that are trained.
                own = [layer for layer in model.kinds() if layer.stream.startswith(stream.name)]
                reached = any(not isinstance(layer, TunedLayer) or layer.tuning.reached for layer in own)
                projectors = tuple(_frozen(work, reached=reached or not stem_frozen) for work in projectors)
        found += [*stems, *projectors]
    return tuple(found)


def _frozen(work: LayerWork, *, reached: bool) -> LayerWork:
    """The same without gradients of its weights."""
    ops = tuple(replace(op, trained=False) if isinstance(op, (Linear, Vector)) else op for op in work.ops)
    kept = tuple(one for one in work.kept if reached and not one.weights_of)
    return replace(work, ops=ops, kept=kept, reached=reached)


def _transform(hidden: int) -> tuple[Linear, Vector]:
    """A matrix and an activation before the final norm."""
    matrix = whole_product("head transform", hidden, hidden, bias=hidden)
    return matrix, activation_pass("head activation", hidden, region="sequence")
