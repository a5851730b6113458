"""Attention that workers of a pipeline share, so that slices of a sequence take equal time."""

from __future__ import annotations

import numpy as np

from meshwright.estimate.layers.item_costs import ItemCosts
from meshwright.schedules.declaration import SharedKeys
from meshwright.shapes import Float


def exposed_exchanges_s(
    costs: ItemCosts, shared: SharedKeys, seconds_per_byte: Float[np.ndarray, " plans"]
) -> tuple[Float[np.ndarray, "plans items"], Float[np.ndarray, "plans items"]]:
    """Seconds of a slice, forward and backward, by which what workers exchange outlasts their even part of attention.

    The fullest worker sends Q queries and K slices of keys and values forward, and gets as many outputs back on the
    other direction of its links. Backward the gradients of the outputs go with the queries again, and those of keys
    and values come back: 2 Q and K. What backward repeats of the forward is exchanged once more.

        forward   max(0, (Q q + K k) t - attention)
        backward  max(0, ((2 + r) Q q + (1 + r) K k) t - attention)

    Args:
        costs: the costs per slice.
        shared: Q and K.
        seconds_per_byte: the seconds per byte of the slowest link between neighbours, as partners may stand further
            apart.

    Returns:
        Two tables.
    """
    each_s = seconds_per_byte[:, None]
    queries_s, keys_s = costs.query_bytes * (shared.queries * each_s), costs.key_bytes * (shared.keys * each_s)
    repeats = costs.core_repeats
    back_s = (2.0 + repeats) * queries_s + (1.0 + repeats) * keys_s
    forward_s = np.maximum(queries_s + keys_s - costs.core_forward_s, 0.0)
    # Without training there is no backward that could wait.
    return forward_s, np.maximum(back_s - costs.core_backward_s, 0.0) * (costs.core_backward_s > 0)
