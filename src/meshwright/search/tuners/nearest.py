"""Numbers that a tuner proposes, moved to values that an axis has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from meshwright.search.tuners.base import Point, TrialAxis, TunableSpace, Value


def on_axes(space: TunableSpace, wish: Mapping[str, Any]) -> Point:
    """A wish with everything in it moved to the nearest value of its axis."""
    return {axis.name: nearest_value(axis, wish[axis.name]) for axis in space.axes if axis.name in wish}


def nearest_value(axis: TrialAxis, wish: Any) -> Value:
    """The value of an axis nearest to a number: by ratio, or by difference where a value is not positive."""
    if wish in axis.values:
        # The axis's own value: what a tuner gives may be numpy's.
        return axis.values[axis.values.index(wish)]
    if not axis.ordered:
        return axis.default
    numbers = [float(value) for value in axis.values]
    if min(*numbers, float(wish)) > 0:
        return min(axis.values, key=lambda value: abs(math.log(float(value) / float(wish))))
    return min(axis.values, key=lambda value: abs(float(value) - float(wish)))
