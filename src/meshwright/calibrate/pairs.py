"""Which differences between plans of one job the model can tell: pairs of runs, and whether it had them in order.

Errors of two plans of one job share most of their causes, so plans are told apart by less than their ranges are wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from meshwright.calibrate.fit import MeasuredStep
from meshwright.shapes import Bool, Float

Gaps = Float[np.ndarray, "pairs"]

LEAST_GAP = 0.02
"""Runs that differ by less are measured as equal."""
SURE = 0.75
"""Share of pairs in order from which a difference is told: three of four."""
BINS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.10, 0.15, 0.25)
"""Predicted differences, in groups from each number to the next."""
FEWEST_PAIRS = 30
UNKNOWN_GAP = 0.02


def tie_gap(steps: Sequence[MeasuredStep], log_errors: Float[np.ndarray, "runs"]) -> float:
    """The predicted difference from which on pairs are in order at least SURE of the time.

    Args:
        steps: runs.
        log_errors: ln(predicted / measured) of each.

    Returns:
        A start of one of BINS; UNKNOWN_GAP where there are too few pairs.
    """
    gaps, right, weights = pair_columns(steps, log_errors)
    if len(gaps) < FEWEST_PAIRS:
        return UNKNOWN_GAP
    group = np.searchsorted(BINS, gaps, side="right") - 1
    total = np.bincount(group, weights, len(BINS))
    shares = np.bincount(group, weights * right, len(BINS)) / np.maximum(total, 1e-12)
    rising = isotonic(shares[total > 0], total[total > 0])
    starts = np.array(BINS)[total > 0]
    sure = np.flatnonzero(rising >= SURE)
    return float(starts[sure[0]]) if len(sure) else BINS[-1]


def pair_columns(
    steps: Sequence[MeasuredStep], log_errors: Float[np.ndarray, "runs"]
) -> tuple[Gaps, Bool[np.ndarray, " pairs"], Gaps]:
    """Pairs of runs of one source, model, device, number of devices, batch and length.

    Returns:
        The predicted difference, whether it has the sign of the measured one, and a weight that counts a source of n
        pairs as sqrt(n).
    """
    jobs: dict[tuple[object, ...], list[int]] = {}
    for number, step in enumerate(steps):
        run = step.chosen.run
        group = run.cluster.groups[0]
        key = (step.source, run.model, group.device.name, run.cluster.devices, run.workload.global_batch)
        jobs.setdefault((*key, run.workload.seq_len), []).append(number)
    measured = np.log([step.measured_s for step in steps])
    pairs = [pair for runs in jobs.values() for pair in combinations(runs, 2)]
    one, two = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    apart = measured[one] - measured[two]
    kept = np.abs(apart) > np.log1p(LEAST_GAP)
    one, two, apart = one[kept], two[kept], apart[kept]
    predicted = apart + log_errors[one] - log_errors[two]
    _, source, count = np.unique([steps[i].source for i in one.tolist()], return_inverse=True, return_counts=True)
    weights = np.sqrt(1.0 / count)[source] if len(one) else np.zeros(0)
    return np.expm1(np.abs(predicted)), predicted * apart > 0, weights


def isotonic(values: Float[np.ndarray, "bins"], weights: Float[np.ndarray, "bins"]) -> Float[np.ndarray, "bins"]:
    """The nearest rising sequence: neighbours that fall are pooled.

    Source: Ayer et al., "An empirical distribution function for sampling with incomplete information", 1955.
    """
    pools: list[list[float]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (v, w, n), (last, more, many) = pools[-2], pools.pop()
            pools[-1] = [(v * w + last * more) / (w + more), w + more, n + many]
    return np.repeat([pool[0] for pool in pools], [int(pool[2]) for pool in pools])
