"""Where to cut a loss: balanced work between the cuts, few bytes across them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax.extend import core

from meshwright.compiler.cost import bytes_of, eqn_flop
from meshwright.compiler.cuts.cut import Body, marked_ends
from meshwright.compiler.inline import is_dropped
from meshwright.errors import InputError, Problem
from meshwright.shapes import Float, Int

SLACK = 0.1
"""How much more than its even share a layer may compute; widened where no cut meets it."""


def crossing_bytes(body: Body) -> Float[np.ndarray, " cuts"]:
    """Bytes alive across each place between spine equations: made before it and read behind it.

    Args:
        body: the body of a loss.
    """
    count = len(body.spine)
    made = {var: k for k, eqn in enumerate(body.spine) for var in eqn.outvars if not is_dropped(var)}
    last = dict.fromkeys(made, -1)
    for k, eqn in enumerate(body.spine):
        last.update((atom, k) for atom in eqn.invars if isinstance(atom, core.Var) and atom in made)
    change = np.zeros(count + 1)
    for var, k in made.items():
        if last[var] > k:
            change[k] += bytes_of(var)
            change[last[var]] -= bytes_of(var)
    return np.cumsum(change)[: count - 1]


def layer_ends(body: Body, layers: int, shares: Sequence[float] | None = None) -> tuple[int, ...]:
    """Position behind the last spine equation of each layer.

    Cuts go where layers end by hand, and anywhere where none does. Among those that give every layer at most (1 +
    slack) of its share of the work, those with the least bytes across the widest cut, then with the least bytes in
    total; by dynamic programming over the cuts.

    Args:
        body: the body of a loss.
        layers: how many.
        shares: the shares of the work, one per layer; equal without it.

    Raises:
        InputError: fewer equations than layers.
    """
    count = len(body.spine)
    if layers > count:
        raise InputError(
            what=f"{layers} stages for a loss of {count} operations",
            why="every stage computes something",
            fix=f"at most {count} stages",
            field="num_stages",
        )
    flop = np.array([eqn_flop(eqn) for eqn in body.spine]) + 1e-9
    done = np.append(0.0, np.cumsum(flop))
    wanted = np.full(layers, 1.0 / layers) if shares is None else np.asarray(shares) / np.sum(shares)
    crossing = crossing_bytes(body)
    by_hand = marked_ends(body)
    if by_hand:
        if layers > len(by_hand):
            raise InputError(
                Problem(
                    what=f"{layers} stages for a loss of {len(by_hand)} layers",
                    why="layer_boundary says where it may be cut",
                    fix=f"at most {len(by_hand)} stages, or more ends of layers",
                    field="num_stages",
                )
            )
        allowed = np.isin(np.arange(1, count), by_hand)
        crossing = np.where(allowed, crossing, np.inf)
    slack = SLACK
    while True:
        ends = _least_bytes(done, crossing, wanted * done[-1] * (1.0 + slack))
        if ends is not None:
            return ends
        slack *= 2.0


def _least_bytes(
    done: Float[np.ndarray, " cuts_and_ends"], crossing: Float[np.ndarray, " cuts"], most: Float[np.ndarray, " layers"]
) -> tuple[int, ...] | None:
    """Ends of layers with bounded work and the least (widest, total) bytes; None where the bound cannot be met."""
    count, layers = len(done) - 1, len(most)
    scale = 1.0 + crossing[np.isfinite(crossing)].sum()
    # One number orders by the widest cut first and by the sum second.
    widest = np.full((layers + 1, count + 1), np.inf)
    total = np.full((layers + 1, count + 1), np.inf)
    origin: Int[np.ndarray, "layers_plus_1 places"] = np.zeros((layers + 1, count + 1), np.int64)
    widest[0, 0] = total[0, 0] = 0.0
    for k in range(1, layers + 1):
        for end in range(k, count + 1):
            low = int(np.searchsorted(done, done[end] - most[k - 1], side="left"))
            starts = slice(max(low, k - 1), end)
            if starts.start >= end:
                continue
            cost = crossing[end - 1] if end < count else 0.0
            wide = np.maximum(widest[k - 1, starts], cost)
            best = int(np.argmin(wide * scale + total[k - 1, starts]))
            if np.isfinite(wide[best]):
                widest[k, end] = wide[best]
                total[k, end] = total[k - 1, starts][best] + cost
                origin[k, end] = starts.start + best
    if not np.isfinite(widest[layers, count]):
        return None
    ends = [count]
    for k in range(layers, 1, -1):
        ends.append(int(origin[k, ends[-1]]))
    return tuple(reversed(ends))
