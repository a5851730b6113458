"""The part that kinds of attention share: scores, weighted values, the output projection, and what they keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from meshwright.specs.check import Check
from meshwright.specs.layers.base import LayerContext, Mixer, PartWork
from meshwright.specs.operators import CoreAttention, Kept, Linear, Op, StreamTokens, Vector, row_product


class HeadSizes(Protocol):
    """Sizes that every kind of attention has."""

    @property
    def heads(self) -> int:
        """Query heads."""

    @property
    def kv_heads(self) -> int:
        """Key-value heads."""

    @property
    def head_dim(self) -> int:
        """Width of a query or key head."""

    @property
    def value_width(self) -> int:
        """Columns of the output of all heads."""

    @property
    def window(self) -> int | None:
        """Keys a query sees, itself included; None for all before it."""

    @property
    def causal(self) -> bool:
        """Whether a query sees earlier keys only."""


class AttentionMixer(Mixer):
    """A mixer whose tokens see each other by scores."""

    __slots__ = ()

    def state_bytes(self: HeadSizes, seq_len: int, element_bytes: float = 2.0) -> float:
        """Keys and values of the tokens that the next one sees; arguments as `Mixer.state_bytes`."""
        limits = (seq_len, self.window or seq_len, getattr(self, "chunk", None) or seq_len)
        return float(min(limits) * self.kv_heads * (self.head_dim + self.value_width // self.heads) * element_bytes)

    def describe(self: HeadSizes) -> dict[str, object]:
        """Heads and window."""
        sizes = {"heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim}
        return {**sizes, "window": self.window}


class GroupedMixer(AttentionMixer):
    """Attention whose query heads come in groups, each with one head of keys and values."""

    __slots__ = ()
    heads: int
    kv_heads: int
    """Equal to `heads` for multi-head, 1 for multi-query attention."""
    head_dim: int

    def check_sizes(self, check: Check) -> None:
        """Record sizes that are no whole numbers, and heads that cannot be grouped."""
        if check.all_whole(self, "heads", "kv_heads", "head_dim"):
            check.divisor("kv_heads", self.kv_heads, ("heads", self.heads), "query heads")

    @property
    def query_width(self) -> int:
        """Columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key projection."""
        return self.kv_heads * self.head_dim

    @property
    def shared_kv_heads(self) -> int:
        """All of them."""
        return self.kv_heads


def attention_work(
    attention: HeadSizes,
    context: LayerContext,
    project: list[Op],
    kept: list[Kept],
    *,
    out_bias: bool = False,
    value_dim: int = 0,
    gate: Vector | None = None,
    keys: StreamTokens | None = None,
) -> PartWork:
    """Projections, core attention and the output projection.

    Args:
        attention: sizes of the whole layer.
        context: the layer around it.
        project: operators that make queries, keys and values.
        kept: what they keep.
        out_bias: whether the output projection has a bias.
        value_dim: the number of size of values of a head before the output projection; 0 for that of the attention's
            output.
        gate: the gate between the attention's output and its projection.
        keys: the keys whose keys are seen; None for those of the sequence itself.
    """
    core = CoreAttention(
        name="core attention",
        module="core_attn",
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        value_dim=attention.value_width // attention.heads,
        window=attention.window,
        causal=attention.causal,
        chunk=getattr(attention, "chunk", None),
        capped=getattr(attention, "softcap", False),
        dropout=context.dropout,
        keys=keys,
    )
    width = value_dim or core.value_dim
    output = row_product("attention out", ((core.heads, width),), context.hidden, bias=out_bias, of_heads=True)
    projections = (
        replace(op, of_heads=True) if isinstance(op, Linear) and op.split == "column" else op for op in project
    )
    return PartWork(
        ops=(*projections, core, *((gate,) if gate else ()), output),
        kept=(
            Kept(
                name="qkv input",
                elements=context.hidden,
                role="input",
                region="sequence",
                freed_by=("layernorm",),
                weights_of=tuple(op.name for op in project if isinstance(op, Linear)),
            ),
            *kept,
            *kept_scores(core, context),
            Kept(name="attention out input", elements=core.heads * width, role="input", region="tensor"),
        ),
    )


def output_gate(elements: float) -> Vector:
    """Gates on the output of attention, of so many elements read and written forward."""
    return Vector(
        name="output gate",
        module="",
        region="tensor",
        forward_elements=elements,
        backward_elements=2 * elements,
    )


def kept_scores(core: CoreAttention, context: LayerContext) -> Iterator[Kept]:
    """What the kernel of a layer keeps of its scores."""
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
                keys=core.keys,
            )
