"""The known quirks of Calculon 0.1.0: each is reproduced, and `fixed=True` mends those that are errors.

The code that reproduces a quirk names it in a comment.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk:
    """Something the original does that its own description, or the machine, does not."""

    name: str
    module: str
    """Where it is reproduced."""
    original: str
    mended: str | None
    """What `fixed=True` does instead; none where it is a simplification rather than an error, and stays."""


QUIRKS = (
    Quirk(
        name="B1",
        module="blocks",
        original="Recompute's flop, flop time, bytes and memory time add the block so far for every recomputed layer. "
        "They feed the window that hides data-parallel traffic, so more of it may show than is sent.",
        mended="Each recomputed layer adds itself: full recompute costs the forward pass once.",
    ),
    Quirk(
        name="B2",
        module="batch",
        original="useful_flops counts the optimizer step once per micro-batch, and the sums of tensor traffic.",
        mended="It counts forward and backward flop of the layers only.",
    ),
    Quirk(
        name="B3",
        module="layer_times",
        original="With tensor_par_overlap pipe, the tile that nothing hides counts as busy and as exposed.",
        mended="It counts as exposed only.",
    ),
    Quirk(
        name="B4",
        module="layer_times",
        original="With overlap, the edge block shows what the base block shows, even where p2p_rs_ag sends other "
        "collectives there; a redone collective shows what the forward one shows.",
        mended="The edge block shows its own; after full recompute a redone collective shows what the forward one "
        "does, otherwise what its layer's weight gradient does not hide.",
    ),
    Quirk(
        name="B5",
        module="pipeline",
        original="A single stage, and the backward pass of inference, pay the latency of a transfer nobody makes in "
        "the windows of offload and data-parallel traffic, and inference in the bubble.",
        mended="They pay nothing.",
    ),
    Quirk(
        name="B6",
        module="rows",
        original="A checkpoint of full recompute is not divided by the tensor degree under sequence parallelism.",
        mended="It is, with rs_ag.",
    ),
    Quirk(
        name="B7",
        module="blocks",
        original="Weight gradients are as narrow as weights in all blocks but one, and sharded with the optimizer.",
        mended="Four bytes per weight in every block, as Megatron-LM accumulates them.",
    ),
    Quirk(
        name="B8",
        module="layer_kinds",
        original="The gradient of a dropout counts one byte per element.",
        mended="It counts the datatype's.",
    ),
    Quirk(
        name="B9",
        module="layer_kinds",
        original="A fused activation keeps nothing, but moves as much memory as alone.",
        mended=None,
    ),
    Quirk(
        name="B10",
        module="layer_times",
        original="The weight gradient of an overlapped layer whose collective is redone is slowed by it again after "
        "full recompute, where it already ran beside the recomputed forward product.",
        mended="After full recompute it runs alone.",
    ),
    Quirk(
        name="B11",
        module="blocks",
        original="The optimizer step moves its state once, neither gradients nor weights, at the first tier's speed.",
        mended=None,
    ),
    Quirk(
        name="B12",
        module="legality",
        original="Most broken rules are assertions that end a search.",
        mended="Every broken rule is a rejection with its reason; this holds without --fixed too.",
    ),
    Quirk(
        name="B13",
        module="batch",
        original="act_checkpoint_size_with_offload is None in inference.",
        mended="It is 0.",
    ),
    Quirk(
        name="B16",
        module="data_parallel",
        original="Data-parallel traffic that only just fits its window shows its share of the processor; traffic that "
        "only just does not fit shows next to nothing. More bandwidth can be slower.",
        mended="The larger of the two shows.",
    ),
)
"""By the letters of the manual; B14 and B15 of it concern packaging and logging and have no counterpart here."""
