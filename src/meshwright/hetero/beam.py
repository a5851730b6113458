"""Which shapes together, and how many pipelines of each: a beam over growing compositions.

A composition of parts x_k times shape k with rates r_k, lost sequences f_k and D pipelines in all is ranked by

    (batch + sum x_k f_k) / sum x_k r_k  +  2 (D - 1) / D  x gradient bytes / bandwidth

and at each step the most promising ones take one more shape, in any of several counts up to all that fit. The devices
still free are counted at their worth, so that a part of a good composition ranks as well as the whole.

Source: own design; the worth is the dual price of the program that composes fractions of shapes (`pruning`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from meshwright.hetero.columns import Columns
from meshwright.hetero.profile_costs import ELEMENT_BYTES, ProfileCosts
from meshwright.hetero.pruning import Prices
from meshwright.shapes import Float, Int
from meshwright.units import GIGA, MEGA


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grown:
    """Compositions on the way, one row each."""

    rows: Int[np.ndarray, "compositions parts"]
    counts: Int[np.ndarray, "compositions parts"]
    free: Int[np.ndarray, "compositions devices"]
    rate: Float[np.ndarray, "compositions"]
    lost: Float[np.ndarray, "compositions"]
    pipelines: Int[np.ndarray, "compositions"]
    parameters: Float[np.ndarray, "compositions"]
    """Of the fullest stage of any part."""
    least_tp: Int[np.ndarray, "compositions"]
    sharded: Float[np.ndarray, "compositions"]
    """Parameters of the fullest stage over its own tensor degree, the most of any part."""


def grow(
    columns: Columns,
    costs: ProfileCosts,
    prices: Prices,
    counts: Int[np.ndarray, "devices"],
    global_batch: int,
    *,
    steps: int,
    width: int,
    shares: int,
) -> list[tuple[tuple[int, int], ...]]:
    """Promising compositions as (row, pipelines) pairs, best first within each step.

    Args:
        columns: shapes.
        costs: the model on the cluster.
        prices: what free devices are worth.
        counts: devices of each kind.
        global_batch: sequences per step.
        steps: parts of a composition.
        width: compositions kept after each step, by each of two estimates of the gradients' bytes.
        shares: counts tried of each shape, spread evenly up to the most that fit.
    """
    gb_s = sum(ring_gb_s(costs)) / 2
    empty = np.zeros((1, 0), np.int64)
    state = Grown(
        rows=empty,
        counts=empty,
        free=counts[None, :],
        rate=np.zeros(1),
        lost=np.zeros(1),
        pipelines=np.zeros(1, np.int64),
        parameters=np.zeros(1),
        least_tp=np.full(1, 1 << 30),
        sharded=np.zeros(1),
    )
    found: dict[tuple[tuple[int, int], ...], None] = {}
    for step in range(steps):
        # The first shape in several counts, all of them kept; those that follow take what is left.
        first = step == 0
        kept, tried = (len(columns) * shares, shares) if first else (width, 1)
        state = _step(state, columns, prices, global_batch, gb_s, kept, tried)
        if not len(state.rate):
            break
        for rows, numbers in zip(state.rows.tolist(), state.counts.tolist(), strict=True):
            found.setdefault(tuple(sorted(zip(rows, numbers, strict=True))))
    return list(found)


def ring_gb_s(costs: ProfileCosts) -> tuple[float, float]:
    """Slowest and fastest bandwidth of rings of gradients between any two kinds, at 4 to 250 MB."""
    names = list(costs.kinds)
    speeds = []
    for source, target in product(names, names):
        for payload in (4 * MEGA, 16 * MEGA, 64 * MEGA, 250 * MEGA):
            try:
                speeds.append(payload / GIGA / costs.transfer_s(payload, (source, 1), (target, 1)))
            except KeyError:
                continue
    return min(speeds, default=1.0), max(speeds, default=1.0)


def _step(
    state: Grown,
    columns: Columns,
    prices: Prices,
    global_batch: int,
    gb_s: float,
    width: int,
    shares: int,
) -> Grown:
    most = np.where(
        columns.used[None] > 0, state.free[:, None, :] // np.maximum(columns.used[None], 1), np.iinfo(np.int64).max
    ).min(axis=2)
    if state.rows.shape[1]:
        most = np.where(np.arange(len(columns))[None] == state.rows[:, -1:], 0, most)
    share = np.arange(1, shares + 1) / shares
    number = np.ceil(most[:, :, None] * share).astype(np.int64)
    distinct = np.concatenate([number[:, :, :1] > 0, np.diff(number, axis=2) > 0], axis=2)
    parent, row, option = np.nonzero(distinct)
    count = number[parent, row, option]
    grown = Grown(
        rows=np.column_stack([state.rows[parent], row]),
        counts=np.column_stack([state.counts[parent], count]),
        free=state.free[parent] - count[:, None] * columns.used[row],
        rate=state.rate[parent] + count * columns.sequences_per_s[row],
        lost=state.lost[parent] + count * columns.lost_sequences[row],
        pipelines=state.pipelines[parent] + count * columns.most_replicas[row],
        parameters=np.maximum(state.parameters[parent], columns.parameters[row]),
        least_tp=np.minimum(state.least_tp[parent], columns.least_tp[row]),
        sharded=np.maximum(state.sharded[parent], columns.parameters[row] / columns.least_tp[row]),
    )
    if not len(parent):
        return grown
    pipeline_s = (global_batch + grown.lost) / (grown.rate + prices.of(grown.free))
    whole_s = (global_batch + grown.lost) / grown.rate
    ring = 2 * (grown.pipelines - 1) / grown.pipelines * ELEMENT_BYTES / (GIGA * gb_s)
    most_bytes, least_bytes = grown.parameters / grown.least_tp, grown.sharded
    estimates = [
        time_s + ring * payload for time_s in (pipeline_s, whole_s) for payload in (most_bytes, 0.7 * least_bytes)
    ]
    if len(parent) > width:
        kept = np.unique(np.concatenate([np.argpartition(one, width)[:width] for one in estimates]))
    else:
        kept = np.arange(len(parent))
    kept = kept[np.argsort(estimates[2][kept], kind="stable")]
    return Grown(**{name: getattr(grown, name)[kept] for name in Grown.__slots__})
