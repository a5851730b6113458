"""Which plans cannot be told apart by their predicted times."""

from __future__ import annotations

from meshwright.estimate.result import StepPrice


def tied(ratio: float, best: StepPrice) -> bool:
    """Whether a plan that differs from another by this share of its step cannot be told apart from it.

    Their ranges are wide but move together, as both rest on the same kernels and links. So not their ranges are
    compared: the limit is the smallest difference between two measured runs of one job that was still predicted in the
    right order (`calibrate.pairs`).
    """
    return abs(ratio) < best.tie
