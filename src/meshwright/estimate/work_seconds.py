"""What a layer's work costs under strategies, one row each: seconds by kind, parameters, working memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Rows


@dataclass(slots=True)
class ModuleSeconds:
    """Forward seconds of one recomputable module, and the traffic it repeats."""

    compute_s: Rows
    tp_s: Rows
    cp_s: Rows
    ep_s: Rows
    flop: Rows
    """Multiply-adds twice."""
    operators: Rows | float = 0.0
    """Operators the host issues."""

    @classmethod
    def nothing(cls, rows: int) -> ModuleSeconds:
        """No work, as many rows of it."""
        zero = np.zeros(rows)
        return cls(zero, zero, zero, zero, zero)


@dataclass(slots=True)
class WorkSeconds:
    """Seconds per micro-batch of one layer, per row; communication is what stays exposed."""

    forward: ModuleSeconds
    backward: ModuleSeconds
    weight_gradient_s: Rows
    """Part of the backward compute that no other worker waits for."""
    by_module: dict[str, ModuleSeconds]
    """Forward work by module name, for selective recompute."""
    dense_parameters: Rows
    expert_parameters: Rows
    replicated_parameters: Rows
    """Of the dense ones: their gradients are summed over tensor ranks."""
    frozen_dense_bytes: Rows
    """Of weights that are not trained, as they are stored."""
    frozen_expert_bytes: Rows
    transient_bytes: Rows
    """Working memory of the largest operator, forward or backward."""
    hidden_s: Rows
    """Of exchanges that run beside another micro-batch: what is exposed, too, forward and backward together, where a
    forward or a backward has no partner."""
    stashed_bytes: Rows
    """That exchanges brought and that stay for backward, instead of exchanges that are repeated."""
    lockstep_s: tuple[Rows, Rows]
    """Waiting for the rank with most attended pairs, forward and backward, where ranks go layer by layer."""
    uneven_s: tuple[Rows, Rows]
    """Of it, what differs between micro-batches: attention of a mean one, forward and backward."""
