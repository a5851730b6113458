"""A plan explained, in words: rungs of its ladder, plans one change away, and its sensitivity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.estimate.result import StepPrice
from meshwright.planning.sensitivity import Effect
from meshwright.records import Record
from meshwright.report.words.verdict import FITS_WORDS, against, peak_text
from meshwright.units import seconds, signed_percent, slower

LEAST_CHANGE = 0.0005
"""Relative change of the step from one rung to the next that is printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Record):
    """One rung of the ladder, or one plan a single change away."""

    change: str
    """`add tp4`, `tp 4 -> 8 (dp 4 -> 2)`."""
    name: str
    """The one-line form, or the change where the plan has none."""
    outcome: str
    """`fits`, `tight`, `no` or `not legal`."""
    text: str
    """The outcome in words."""
    step_time_s: float | None = None
    peak_memory_bytes: float | None = None
    capacity_bytes: float | None = None


def rung(label: str, estimate: StepPrice, before: StepPrice | None, *, name: str = "") -> Step:
    """A rung of a ladder beside the one before it.

    Args:
        label: what was changed.
        estimate: the estimate of the plan.
        before: the estimate of the rung before; None for the first and after one that is not legal.
        name: the name of the plan; the label by default.
    """
    place = f" on {estimate.place(estimate.fullest)}" if len(estimate.stages) > 1 and not name else ""
    text = f"{FITS_WORDS[estimate.fits]} ({peak_text(estimate)}{place}), {seconds(estimate.step_time_s)}"
    ratio = estimate.step_time_s / before.step_time_s - 1 if before is not None else 0.0
    return _step(label, name, estimate, f"{text}, {slower(ratio)}" if abs(ratio) >= LEAST_CHANGE else text)


def neighbour_step(change: str, estimate: StepPrice, chosen: StepPrice, *, name: str = "") -> Step:
    """A plan one change away beside the chosen one.

    Args:
        change: the change from the chosen plan.
        estimate: the estimate of the changed plan.
        chosen: the estimate of the chosen plan.
        name: the name of the changed plan; the change by default.
    """
    place = f" on {estimate.place(estimate.fullest)}" if not name else ""
    loses = against(chosen, estimate)
    if estimate.fits == "no":
        text = f"does not fit: {peak_text(estimate)}{place}"
    elif estimate.fits == "tight" and chosen.fits == "yes":
        text = f"less than 8% of the memory free ({peak_text(estimate)}); {loses}"
    else:
        text = f"{loses} ({peak_text(estimate)})"
    return _step(change, name, estimate, text)


def not_legal(change: str, name: str, problems: Iterable[Problem]) -> Step:
    """A change that gives no legal plan."""
    why = "; ".join(dict.fromkeys(problem.what for problem in tuple(problems)[:2]))
    return Step(change=change, name=name, outcome="not legal", text=f"not legal: {why}")


def effect_line(effect: Effect, step_time_s: float) -> str:
    """What a number does to the step: `16-bit GEMM speed -20% -> step +21%, +20% -> -9.8% (literature)`.

    Args:
        effect: the effect of the number.
        step_time_s: the seconds of a step with the number as it is.
    """
    worse, better = (
        signed_percent(time_s / step_time_s - 1) for time_s in (effect.step_time_worse_s, effect.step_time_better_s)
    )
    change = f"{100 * effect.change:.0f}%"
    faster = f"; {effect.other_plan} is then faster" if effect.other_plan else ""
    return f"{effect.name} -{change} -> step {worse}, +{change} -> {better} ({effect.basis}){faster}"


def _step(change: str, name: str, estimate: StepPrice, text: str) -> Step:
    full = estimate.fullest
    return Step(
        change=change,
        name=name or change,
        outcome="fits" if estimate.fits == "yes" else estimate.fits,
        text=text,
        step_time_s=estimate.step_time_s,
        peak_memory_bytes=full.peak_memory_bytes,
        capacity_bytes=full.capacity_bytes,
    )
