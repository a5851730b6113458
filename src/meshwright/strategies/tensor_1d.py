"""1D tensor parallelism (Megatron-LM), with and without sequence parallelism.

    column   Y_i = X W_i      forward: gather X        backward: reduce-scatter dX, gather X again for dW
    row      Y = sum X_i W_i  forward: reduce-scatter  backward: gather dY

Without sequence parallelism each gather/reduce-scatter pair is one all-reduce: forward after the row split, backward
after the column split.
Source: Shoeybi et al. 2019 (arXiv 1909.08053); Korthikanti et al. 2022 (arXiv 2205.05198, section 4.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from meshwright.shapes import Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import Linear, Units, Vector
from meshwright.strategies.base import Call, DegreeRule, Group, Kind, LocalGemm, Phase, TensorStrategy
from meshwright.strategies.columns import HiddenShares, StrategyColumns, full_width, local_width

if TYPE_CHECKING:
    from meshwright.strategies.blocks import TensorBlocks


class OneDimension(TensorStrategy):
    """Matrices split by columns, then by rows."""

    name = "1d"
    summary = "column- then row-split matrices (Megatron-LM)"
    overlaps = ("bulk", "ring", "halves")
    seldom = ("halves",)
    runs = True

    def linear(self, op: Linear, columns: StrategyColumns, activation_bytes: float) -> LocalGemm:
        """The product on one device, as `shard_linear`."""
        return shard_linear(op, columns, activation_bytes)

    def vector_calls(self, op: Vector, columns: StrategyColumns, activation_bytes: float) -> tuple[Call, ...]:
        """The collectives, as `vector_calls`."""
        return vector_calls(op, columns, activation_bytes)

    def groups(self, columns: StrategyColumns) -> dict[str, Group]:
        """Consecutive ranks."""
        return {"tp": (np.ones(columns.rows, dtype=np.int64), columns.tp)}

    def written(self, tp: int, *, shares_tokens: bool, key_ranks: int) -> TensorBlocks | None:
        """Heads and columns on ranks; tokens of the stream are gathered before and sums scattered behind, or summed."""
        from meshwright.strategies.blocks import (
            ActivationBlocks,
            BlockProduct,
            TensorBlocks,
        )  # only runs write products

        ranks = ("head", "copy") if tp > 1 else ()
        shared = ranks if shares_tokens else ()
        return TensorBlocks(
            axes=(("head", key_ranks), ("copy", tp // key_ranks)),
            stream=ActivationBlocks(length=shared),
            inner=ActivationBlocks(width=ranks),
            into=BlockProduct(columns=ranks, gather=("length", shared)),
            out=BlockProduct(rows=ranks, scatter=("length", shared), total=() if shares_tokens else ranks),
            table=ranks,
            keys=ranks[:1],
        )

    def rules(self, model: ModelSpec, seq_len: int) -> tuple[DegreeRule, ...]:
        """Equal parts of a sequence for all ranks."""
        return (
            DegreeRule(
                "sequence",
                lambda d: (
                    (d["sp"] == 0)
                    | (d["tp"] == 1)
                    | (seq_len % d["cp"] != 0)  # said by the rule of context
                    | (seq_len % (d["cp"] * d["tp"]) == 0)
                ),
                f"sequence parallelism cuts the {seq_len} tokens of a sequence into cp x tp equal parts",
                "lower cp or tp, or pad the sequence",
                "tp",
            ),
        )


def shard_linear(op: Linear, columns: StrategyColumns, activation_bytes: float) -> LocalGemm:
    """A dense linear operator on one of tp ranks.

    Args:
        op: the whole operator; its split says which of its widths is cut.
        columns: strategies, one per row.
        activation_bytes: the bytes per element sent.

    Returns:
        The local product and its collectives. A `replicated` operator works on the rank's own tokens of the sequence
        region, with all weights on every rank.
    """
    bias = float(op.bias)
    if op.split == "replicated":
        whole_in, whole_out = full_width(op.inputs), full_width(op.outputs)
        parameters = whole_in * whole_out + bias
        return LocalGemm(
            m=columns.sequence_tokens, n=whole_out, k=whole_in, groups=1.0, parameters=parameters, expert=False
        )
    if op.split == "column":
        whole_in, local_out = full_width(op.inputs), local_width(op.outputs, columns.tp)
        return LocalGemm(
            m=columns.tokens,
            n=local_out,
            k=whole_in,
            groups=1.0,
            parameters=whole_in * local_out + bias * local_out / full_width(op.outputs),
            expert=False,
            replicated=(whole_in + bias / full_width(op.outputs)) * _shared_width(op.outputs, columns.tp),
            calls=_column_calls(op, columns, activation_bytes) if op.gather else (),
        )
    local_in, whole_out = local_width(op.inputs, columns.tp), full_width(op.outputs)
    return LocalGemm(
        m=columns.tokens,
        n=whole_out,
        k=local_in,
        groups=1.0,
        parameters=local_in * whole_out + bias,
        expert=False,
        calls=_row_calls(op.reduce, columns, activation_bytes) if op.reduce else (),
    )


def _shared_width(parts: Units, tp: Int[np.ndarray, "rows"]) -> Float[np.ndarray, "rows"]:
    """Width of what several ranks hold alike, as heads of keys and values are where there are more ranks.

    Of c holders among t ranks it counts (1 - 1/c) / (1 - 1/t), so that a sum over all t sends as much as one over c.
    """
    width = np.zeros(len(tp))
    for units, unit_width in parts:
        copies = np.maximum(tp / units, 1.0)
        width = width + unit_width * (1.0 - 1.0 / copies) / np.where(tp > 1, 1.0 - 1.0 / tp, 1.0)
    return width


def _column_calls(op: Linear, columns: StrategyColumns, activation_bytes: float) -> tuple[Call, ...]:
    """Forward, the input is gathered. Backward, its gradient is reduced while the gradient of the weight is computed,
    and the input is gathered again while the gradient of the input is computed; not for a frozen weight."""
    sharded, whole = _payloads(op.gather, columns, activation_bytes)
    again = sharded * float(op.trained)
    # A gradient that no gradient of a weight can hide is reduced in pieces, as the product makes them.
    ring, hidden = columns.rings, columns.overlapped
    beside: Phase = "weight_gradient" if op.trained else "input_gradient"
    late = hidden if op.trained else ring
    return (
        _call("all_gather", "forward", sharded, beside="forward", hidden=ring),
        _call("reduce_scatter", "backward", sharded, beside=beside, hidden=late),
        _call("all_gather", "backward", again, beside="input_gradient", hidden=hidden),
        _call("all_reduce", "backward", whole, beside=beside, hidden=late),
    )


def _row_calls(width: int, columns: StrategyColumns, activation_bytes: float) -> tuple[Call, ...]:
    """Forward, partial sums are reduced. Backward, the gradient of the output is gathered before anything else can run,
    so only a ring hides it."""
    sharded, whole = _payloads(width, columns, activation_bytes)
    ring = columns.rings
    return (
        _call("reduce_scatter", "forward", sharded, beside="forward", hidden=ring),
        _call("all_reduce", "forward", whole, beside="forward", hidden=ring),
        _call("all_gather", "backward", sharded, beside="input_gradient", hidden=ring),
    )


def _payloads(
    width: int, columns: StrategyColumns, activation_bytes: float
) -> tuple[Float[np.ndarray, "rows"], Float[np.ndarray, "rows"]]:
    """Bytes of the whole tensor on rows with sequence parallelism, and on rows without; 0 on the others."""
    payload = columns.tokens * width * activation_bytes * (columns.tp > 1)
    return payload * columns.sp, payload * ~columns.sp


def _call(
    kind: Kind,
    phase: Literal["forward", "backward"],
    payload_bytes: Float[np.ndarray, "rows"],
    *,
    beside: Phase,
    hidden: HiddenShares,
) -> Call:
    """A collective hidden beside a product on some rows and exposed on the others."""
    return Call(
        kind=kind,
        category="tp",
        phase=phase,
        group="tp",
        payload_bytes=payload_bytes,
        beside=beside,
        beside_share=hidden.compute,
        head_share=hidden.exposed,
    )


def vector_calls(op: Vector, columns: StrategyColumns, activation_bytes: float) -> tuple[Call, ...]:
    """The collectives of a memory-bound operator whose table is split over tensor ranks.

    Partial sums are reduced forward and the gradient gathered backward, as for a row split.
    """
    return _row_calls(op.reduce, columns, activation_bytes) if op.reduce else ()
