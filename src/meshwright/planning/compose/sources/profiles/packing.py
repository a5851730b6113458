"""Which pipelines, and how many of each, if fractions of a pipeline were possible.

    max  sum_i value_i x_i   over x >= 0   with   sum_i used_ik x_i <= count_k   for every kind k of device

As many rows as kinds, any number of columns: a revised simplex whose basis is a matrix of kinds x kinds.

Source: Dantzig's rule with the duals of the basis, as in Gilmore and Gomory's cutting-stock program (1961).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Float, Int

ROUNDING = 1e-9
_MOST_STEPS = 400


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapePacking:
    """The best fractions; at most as many as there are kinds of device."""

    rows: Int[np.ndarray, "basic"]
    amounts: Float[np.ndarray, "basic"]
    worth: Float[np.ndarray, "devices"]
    """Dual prices: what one more device of each kind would add."""


def packed(
    values: Float[np.ndarray, "rows"],
    used: Int[np.ndarray, "rows devices"],
    counts: Int[np.ndarray, "devices"],
) -> ShapePacking:
    """The best packing of columns.

    Args:
        values: the values of one pipeline of each shape.
        used: devices of each kind in it, at least one in all.
        counts: devices of each kind.
    """
    kinds = len(counts)
    # Negative rows are the slacks: devices left free, worth nothing.
    basis = -1 - np.arange(kinds)
    matrix = np.eye(kinds)
    worth = np.zeros(kinds)
    amounts = counts.astype(float)
    if not len(values):
        return ShapePacking(rows=basis[:0], amounts=amounts[:0], worth=worth)
    least = ROUNDING * max(float(values.max()), 0.0)
    for _ in range(_MOST_STEPS):
        inverse = np.linalg.inv(matrix)
        amounts = inverse @ counts
        worth = np.where(basis >= 0, values[np.maximum(basis, 0)], 0.0) @ inverse
        gain = values - used @ worth
        entering = int(gain.argmax())
        if gain[entering] > least:
            column = used[entering].astype(float)
        elif worth.min() < -least:
            entering = -1 - int(worth.argmin())
            column = np.eye(kinds)[-1 - entering]
        else:
            break
        change = inverse @ column
        able = change > ROUNDING
        if not able.any():
            break
        leaving = int(np.where(able, amounts / np.where(able, change, 1.0), np.inf).argmin())
        basis[leaving] = entering
        matrix[:, leaving] = column
    real = (basis >= 0) & (amounts > ROUNDING)
    return ShapePacking(rows=basis[real], amounts=amounts[real], worth=np.maximum(worth, 0.0))
