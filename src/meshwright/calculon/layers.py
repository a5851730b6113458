"""A layer in columns: flop, elements, bytes moved and bytes kept.

A column has one entry per distinct block. `layer_kinds` has the kinds of layers, `block_layers` says which a block has.

Source: Isaev et al., SC'23, and the formulas of Calculon 0.1.0 (github.com/calculon-ai/calculon).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Bool, Float, Int

ADAM_FLOP_PER_WEIGHT = 11
OPTIMIZER_BYTES_PER_WEIGHT = 8
"""Two moments of four bytes."""

Amount = Float[np.ndarray, "blocks"]
Flag = Bool[np.ndarray, "blocks"]

MASTER_BYTES = 4
"""Bytes of a master weight, kept where the weights themselves are narrower, and of an unsharded gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKeys:
    """What the price of a block depends on, one entry per distinct block."""

    tensor_par: Int[np.ndarray, "blocks"]
    microbatch: Int[np.ndarray, "blocks"]
    element_bytes: Int[np.ndarray, "blocks"]
    fused: Flag
    recompute: Int[np.ndarray, "blocks"]
    comm_type: Int[np.ndarray, "blocks"]
    redo: Flag
    """All-gather redone in the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorComm:
    """The tensor-parallel communication of a layer."""

    gather_first: bool
    """Gathers before the layer (a reduction in its backward pass); otherwise reduces after it."""
    size_bytes: Amount
    overlapped: bool
    """Cut into tiles that run beside the layer's own matrix product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of the block."""

    name: str
    matrix: bool
    """Runs on the matrix engine; otherwise on the vector engine."""
    fw_flop: Amount
    agrad_flop: Amount
    wgrad_flop: Amount
    inputs: Amount
    outputs: Amount
    """Elements read and written by the forward pass."""
    weights: Amount
    """Elements."""
    fw_bytes: Amount
    agrad_bytes: Amount
    wgrad_bytes: Amount
    """Memory traffic."""
    kept_bytes: Amount
    """Activations kept for the backward pass."""
    grad_bytes: Amount
    """Gradients of activations."""
    recomputed: Flag
    comm_redone: Flag
    reused: bool = False
    """Whether its activations share another layer's space while the block runs."""
    keeps_input: Flag
    keeps_output: Flag
    comm: TensorComm | None = None


def optimizer_bytes_per_weight(element_bytes: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
    """Bytes of optimizer state per weight: two moments, and a master weight where weights are narrower."""
    return OPTIMIZER_BYTES_PER_WEIGHT + np.where(element_bytes < MASTER_BYTES, MASTER_BYTES, 0)
