"""Which plans cannot be told apart by their predicted times."""

from __future__ import annotations

from meshwright.library.calibration import calibration


def tied(ratio: float) -> bool:
    """Whether two plans of one job that differ by this share cannot be told apart.

    Their ranges are wide but move together, as both rest on the same kernels and links. So not their ranges are
    compared: the limit is how small a difference between two runs of one job was still told right (`calibrate.pairs`).
    """
    return abs(ratio) < calibration().tie
