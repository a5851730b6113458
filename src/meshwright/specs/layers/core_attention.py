"""The part that kinds of attention share: scores, weighted values, the output projection, and what they keep."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.operators import CoreAttention, Kept, Linear, Op


def attention_work(
    projections: tuple[list[Op], list[Kept]], core: CoreAttention, context: LayerContext, *, out_bias: bool = False
) -> PartWork:
    """Projections, core attention and the output projection.

    Args:
        projections: operators that make queries, keys and values, and what they keep.
        core: attention of the whole layer.
        context: the layer around it.
        out_bias: whether the output projection has a bias.
    """
    project, kept_projections = projections
    output = Linear(
        name="attention out",
        module="",
        inputs=((core.heads, core.value_dim),),
        outputs=((1, context.hidden),),
        split="row",
        reduce=context.hidden,
        bias=context.hidden if out_bias else 0,
    )
    value_width = core.heads * core.value_dim
    return PartWork(
        ops=(*project, core, output),
        kept=(
            Kept(name="qkv input", elements=context.hidden, role="input", region="sequence", freed_by=("layernorm",)),
            *kept_projections,
            *_kept_scores(core, context),
            Kept(name="attention out input", elements=value_width, role="input", region="tensor"),
        ),
    )


def _kept_scores(core: CoreAttention, context: LayerContext) -> Iterator[Kept]:
    if context.kernel == "flash":
        yield Kept(name="log-sum-exp", elements=core.heads, role="fp32", region="tensor", freed_by=("core_attn",))
        return
    for name, role in (("softmax", "activation"), ("score dropout mask", "mask"), ("dropped scores", "activation")):
        if name == "softmax" or context.dropout:
            yield Kept(
                name=name,
                elements=core.heads,
                role=role,  # type: ignore[arg-type]
                region="tensor",
                freed_by=("core_attn",),
                per_key=True,
            )
