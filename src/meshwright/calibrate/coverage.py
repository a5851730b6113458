"""Ranges that hold for sources a fit has not seen: widths from the errors of runs whose source was left out.

minimise over b:  sum over runs of w pinball_0.9(ln|r| - b f) + penalty |b without the base|,  b without the base >= 0

r is ln(predicted / measured) with the run's source left out of the fit, f what is in doubt about the run. How often
such ranges hold is counted with the widths fitted without the source too, so that neither the numbers nor the widths
have seen what they are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.calibrate.fit import Fit, MeasuredStep, linear_program, source_weights
from meshwright.calibrate.pairs import tie_gap
from meshwright.shapes import Bool, Float
from meshwright.specs.calibration import DOUBTS, Ranges

Runs = Float[np.ndarray, "runs"]
Doubts = Float[np.ndarray, "runs doubts"]

LEVEL = 0.90
PENALTY = 0.005
"""Price of a doubt's weight: one that explains nothing gets none."""
FLOOR = 0.005
"""Errors below half a percent are noise of printing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How ranges did on runs whose source neither the numbers nor the widths had seen."""

    ranges: Ranges
    inside: Bool[np.ndarray, " runs"]
    log_half_widths: Runs

    def to_dict(self, steps: Sequence[MeasuredStep]) -> dict[str, object]:
        """As data: widths, and what share of the runs of left-out sources they hold, in all and by source."""
        sources = list(dict.fromkeys(step.source for step in steps))
        of = np.array([step.source for step in steps])
        return {
            **ranges_record(self.ranges),
            "level": LEVEL,
            "left_out": {
                "inside": round(float(self.inside.mean()), 4),
                "inside_by_source": round(float(np.mean([self.inside[of == name].mean() for name in sources])), 4),
                "median_high_over_low": round(math.exp(2 * float(np.median(self.log_half_widths))), 4),
                "sources": {name: round(float(self.inside[of == name].mean()), 4) for name in sources},
                "runs": {name: int((of == name).sum()) for name in sources},
            },
        }


def ranges_record(ranges: Ranges) -> dict[str, object]:
    """Widths of ranges as a calibration file holds them."""
    return {
        "weights": dict(ranges.weights),
        "own": ranges.own,
        "tie": ranges.tie,
        "seen": dict(ranges.seen),
        "most_devices": ranges.most_devices,
    }


def covering_ranges(fit: Fit, steps: Sequence[MeasuredStep]) -> Coverage:
    """Widths of ranges, and how often they hold.

    Widths found for all sources but one hold less than LEVEL of that one's runs. The factor by which all would have to
    be wider for LEVEL of all left-out runs is put on top (split conformal prediction, sources as splits).

    Args:
        fit: the fit with the errors of runs whose source was left out.
        steps: its runs.

    Returns:
        The ranges of all runs, and what those of the other sources cover of each source.

    Raises:
        UnsupportedError: scipy is missing.

    Source: Barber et al., "Predictive inference with the jackknife+", Annals of Statistics 2021.
    """
    errors, weights = np.abs(fit.left_out), source_weights(steps)
    sources = np.array([step.source for step in steps])
    doubts = doubts_of(steps)
    half = np.zeros(len(steps))
    for source in dict.fromkeys(sources.tolist()):
        own = sources == source
        half[own] = np.exp(doubts[own] @ quantile_weights(doubts[~own], errors[~own], weights[~own]))
    wider = max(1.0, float(np.quantile(errors / half, LEVEL)))
    found = quantile_weights(doubts, errors, weights)
    found[0] += math.log(wider)
    ranges = Ranges(
        weights=tuple(zip(DOUBTS, found.round(4).tolist(), strict=True)),
        own=round(within_sources(fit.after, sources), 4),
        tie=round(tie_gap(steps, fit.after), 3),
        seen=tuple(sorted(seen_by(steps).items())),
        most_devices=max(step.chosen.run.cluster.devices for step in steps),
    )
    half *= wider
    return Coverage(ranges=ranges, inside=errors <= half, log_half_widths=half)


def seen_by(steps: Iterable[MeasuredStep]) -> dict[str, int]:
    """Sources with runs of each kind."""
    found: dict[str, set[str]] = {}
    for step in steps:
        for name in step.kind.experience:
            found.setdefault(name, set()).add(step.source)
    return {name: len(sources) for name, sources in found.items()}


def doubts_of(steps: Sequence[MeasuredStep]) -> Doubts:
    """What is in doubt about each run, in the order of DOUBTS, as far as the other sources go."""
    seen, without = seen_by(steps), []
    for step in steps:
        kind = step.kind
        without.append(kind.doubts({name: seen[name] - 1 for name in kind.experience}))
    return np.array(without)


def quantile_weights(doubts: Doubts, errors: Runs, weights: Runs) -> Float[np.ndarray, "doubts"]:
    """The weights of doubts under which LEVEL of the errors are below exp(doubts @ weights).

    As ln is monotone, a quantile of ln|r| is that of |r|. A linear program: ln|r| = f b + u - v with u, v >= 0.

    Args:
        doubts: the doubts about each run, the base first.
        errors: |ln(predicted / measured)|.
        weights: the weights of the runs.

    Source: Koenker and Bassett, "Regression Quantiles", Econometrica 1978.
    """
    runs, kinds = doubts.shape
    share = weights / weights.sum()
    target = np.log(np.maximum(errors, FLOOR))
    costs = np.concatenate([np.zeros(1), np.full(kinds - 1, PENALTY), LEVEL * share, (1 - LEVEL) * share])
    bounds = [(None, None), *[(0.0, None)] * (kinds - 1 + 2 * runs)]
    return linear_program(costs, np.hstack([doubts, np.eye(runs), -np.eye(runs)]), target, bounds)[:kinds]


def within_sources(errors: Runs, sources: np.ndarray) -> float:
    """Robust standard deviation of what runs of a source differ by among themselves, 1.4826 times the median."""
    centred = errors.copy()
    for source in dict.fromkeys(sources.tolist()):
        own = sources == source
        centred[own] -= np.median(errors[own])
    several = np.array([(sources == source).sum() > 2 for source in sources])
    return 1.4826 * float(np.median(np.abs(centred[several])))
