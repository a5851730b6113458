"""What stays on the device between forward and backward, under recompute and offload."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.shapes import Float
from meshwright.specs.operators import Exchange, Kept, LayerWork, Linear, Region, StreamTokens
from meshwright.specs.precision import Precision
from meshwright.specs.strategy import HALF_PRODUCTS, Recompute
from meshwright.strategies import TENSORS
from meshwright.strategies.columns import StrategyColumns, region_scale


def kept_bytes(
    work: LayerWork, columns: StrategyColumns, precision: Precision, recompute: Recompute
) -> Float[np.ndarray, "rows"]:
    """Bytes one layer keeps from forward to backward of one micro-batch, on one rank.

    Args:
        work: the layer.
        columns: strategies, one per row.
        precision: formats of the roles.
        recompute: `none` keeps everything, `selective` drops what its modules make again, `full` keeps the layer's
            input, `grouped` keeps one input per group.

    Returns:
        Bytes per row. GPT layer in 16 bits with dropout: s b h (10 + 24/t + 5 a s / (h t)), or / t throughout with
        sequence parallelism.

    Source: Korthikanti et al. 2022, section 4.
    """
    columns = columns.of_experts(work.experts)
    if recompute.kind in ("full", "grouped"):
        share = 1.0 / recompute.group if recompute.kind == "grouped" else 1.0
        return columns.at(work.tokens).sequence_tokens * (work.input_width * precision.bytes_of("activations") * share)
    freed = set(recompute.modules) if recompute.kind == "selective" else set()
    own = tensor_bytes([kept for kept in work.kept if not freed & set(kept.freed_by)], work, columns, precision)
    for op in work.ops:
        if isinstance(op, Linear) and not op.experts and op.trained and op.module not in freed:
            beside = TENSORS[columns.tensor].kept_beside(op, columns)
            if beside is not None:
                own = own + beside * precision.bytes_of("activations")
    if HALF_PRODUCTS in freed:
        own = own + _brought(work, columns) * precision.bytes_of("activations")
    return own


def made_again_bytes(work: LayerWork, columns: StrategyColumns, precision: Precision) -> Float[np.ndarray, "rows"]:
    """Bytes that are on the device while a layer that repeats half its products runs backward, beyond what it kept."""
    own = columns.of_experts(work.experts)
    return tensor_bytes([one for one in work.kept if HALF_PRODUCTS in one.freed_by], work, own, precision)


def _brought(work: LayerWork, columns: StrategyColumns) -> Float[np.ndarray, "rows"]:
    """Elements that exchanges and sums over ranks brought, where they stay although what made them is repeated."""
    total = np.zeros(columns.rows)
    sums = [op for op in work.ops if isinstance(op, Linear) and op.reduce]
    for product in sums[:-1]:
        if product.module == HALF_PRODUCTS:
            total = total + columns.sequence_tokens * (product.reduce * (columns.tp > 1))
    for op in work.ops:
        if isinstance(op, Exchange):
            copies = columns.received(work.top_k) if op.direction == "dispatch" else columns.routed_tokens * work.top_k
            total = total + copies * (op.width * (columns.ep > 1))
    return total


def tensor_bytes(
    tensors: Sequence[Kept], work: LayerWork, columns: StrategyColumns, precision: Precision
) -> Float[np.ndarray, "rows"]:
    """Bytes of these tensors on one rank, per row."""
    if not tensors:
        return np.zeros(columns.rows)
    per_region: dict[tuple[Region, StreamTokens | None, float], float] = {}
    activation = precision.bytes_of("activations")
    sizes = {
        "activation": activation,
        "input": activation if work.wide else precision.input_bytes,
        "function": precision.bytes_of("function_inputs") or activation,
        "attention": precision.bytes_of("attention_inputs") or activation,
        "mask": 1.0,
        "fp32": 4.0,
    }
    weights = 0.0
    for kept in tensors:
        size = sizes[kept.role]
        keys = 1.0
        if kept.of_experts:
            weights += kept.elements * size
            continue
        if kept.per_key:
            own = kept.keys or work.tokens
            keys = float(columns.seq_len) if own is None else kept.keys.count if kept.keys else float(own.length)
        key = (kept.region, kept.tokens or work.tokens, keys)
        per_region[key] = per_region.get(key, 0.0) + kept.elements * size
    total = np.zeros(columns.rows)
    for (region, tokens, keys), size in per_region.items():
        total = total + region_scale(region, columns.at(tokens), work.top_k) * (size * keys)
    return total + weights / (columns.ep * columns.etp) if weights else total
