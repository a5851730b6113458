"""The figure of predictions: a dot a run, on the diagonal where it is right."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from benchmarks.scatter_svg import LEFT, SIZE, TOP, Dot, scatter_svg


def test_right_predictions_lie_on_the_diagonal_and_late_ones_above() -> None:
    dots = [
        Dot(measured=1.0, predicted=1.0, kind="H100", text="right"),
        Dot(measured=2.0, predicted=4.0, kind="A100", text="twice <too> long"),
        Dot(measured=50.0, predicted=50.0, kind="H100", text="right too"),
    ]
    text = scatter_svg("Runs & more", "s", dots)
    ElementTree.fromstring(text)
    places = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="2.6"><title>([^<]*)', text)
    off = {said: float(x) - LEFT - (TOP + SIZE - float(y)) for x, y, said in places}

    assert abs(off["right"]) < 0.2
    assert abs(off["right too"]) < 0.2
    assert off["twice &lt;too&gt; long"] < -10
    assert "H100 (2)" in text
