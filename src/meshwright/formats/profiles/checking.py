"""Points and sizes of one model compared with each other; what lies between two measured points is filled in."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshwright.errors import Problem
from meshwright.formats.profiles.profile_set import LayerSizes, LayerTimes, ModelProfile, Point
from meshwright.units import MILLI

MOST_MS = 86_400_000.0
"""A day: the longest that a profile may say of a layer."""
MOST_ELEMENTS = 1e15
"""Most elements of a layer: a thousand times what all devices of the largest clusters hold of one."""
TimesByLayer = Mapping[int, tuple[float, ...]]
"""Layer to forward, backward and update milliseconds."""
SizesByLayer = Mapping[int, tuple[float, ...]]
"""Layer to parameters, input, output and saved elements."""


def model_profile(
    name: str,
    times: Mapping[Point, TimesByLayer],
    sizes: Mapping[int, SizesByLayer],
    *,
    interpolate: bool,
    faults: list[Problem],
) -> ModelProfile:
    """The profile of a model.

    Args:
        name: the name of the model.
        times: layers of every point.
        sizes: layers of every tensor degree.
        interpolate: fill a missing micro-batch (a power of two between two measured ones) and mark it; else it is a
            fault.
        faults: what is wrong goes here.

    Returns:
        the profile; what is wrong with it is in `faults`.
    """
    count = _layers(name, times, sizes, faults)
    faults += [*_too_long(name, times), *_too_large(name, sizes)]
    whole = {point: _times_of(layers, count) for point, layers in times.items() if sorted(layers) == list(range(count))}
    known = {tp: _sizes_of(layers, count) for tp, layers in sizes.items() if sorted(layers) == list(range(count))}
    return ModelProfile(
        name=name, num_layers=count, times=_filled(name, whole, interpolate=interpolate, faults=faults), sizes=known
    )


def _too_long(name: str, times: Mapping[Point, TimesByLayer]) -> list[Problem]:
    """Layers whose times are none that anybody waited for: beside them all others vanish in the sums."""
    return [
        Problem(
            what=f"{name}: layer {layer} of {point.device} tp {point.tp} mbs {point.micro_batch}: {max(each):g} ms",
            why="a layer takes at most a day",
            fix="profile it again",
            field="layer_times",
        )
        for point, layers in times.items()
        for layer, each in layers.items()
        if max(each) > MOST_MS
    ]


def _too_large(name: str, sizes: Mapping[int, SizesByLayer]) -> list[Problem]:
    """Layers of more elements than any device holds."""
    return [
        Problem(
            what=f"{name}: layer {layer} at tp {tp}: {max(each):g} parameters or elements",
            why=f"a layer has at most {MOST_ELEMENTS:g}",
            fix="profile it again",
            field="layer_memory",
        )
        for tp, layers in sizes.items()
        for layer, each in layers.items()
        if max(each) > MOST_ELEMENTS
    ]


def _layers(
    name: str, times: Mapping[Point, TimesByLayer], sizes: Mapping[int, SizesByLayer], faults: list[Problem]
) -> int:
    """How many layers the model has: what most of its entries say."""
    counts = [max(layers) + 1 for layers in (*times.values(), *sizes.values())]
    count = max(set(counts), key=lambda one: (counts.count(one), one))
    entries = [
        *((f"{p.device} tp {p.tp} mbs {p.micro_batch}", layers) for p, layers in times.items()),
        *((f"sizes at tp {tp}", layers) for tp, layers in sizes.items()),
    ]
    for said, layers in entries:
        absent = sorted(set(range(count)) - set(layers))
        beyond = sorted(set(layers) - set(range(count)))
        if absent or beyond:
            why = f"lacks layers {_ranges(absent)}" if absent else f"has layers {_ranges(beyond)} beyond the last"
            faults.append(
                Problem(
                    what=f"{name}: {said} {why}",
                    why=f"the model has {count} layers elsewhere",
                    fix="profile all layers at each point",
                    field="layer_index",
                )
            )
    if not sizes:
        faults.append(
            Problem(
                what=f"{name} has times and no sizes",
                why="memory and transfers need parameters and activations",
                fix="add its rows to layer_memory.csv",
                field="model",
            )
        )
    elif 1 not in sizes:
        faults.append(
            Problem(
                what=f"{name} has no sizes at tensor degree 1",
                why="transfers and gradients are counted on unsplit layers",
                fix="profile it at tp 1",
                field="tp",
            )
        )
    return count


def _ranges(numbers: list[int]) -> str:
    if len(numbers) > 4:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _times_of(layers: TimesByLayer, count: int) -> LayerTimes:
    table = np.array([layers[i] for i in range(count)]) * MILLI
    return LayerTimes(forward_s=table[:, 0], backward_s=table[:, 1], update_s=table[:, 2])


def _sizes_of(layers: SizesByLayer, count: int) -> LayerSizes:
    table = np.array([layers[i] for i in range(count)])
    return LayerSizes(
        parameters=table[:, 0], input_elements=table[:, 1], output_elements=table[:, 2], saved_elements=table[:, 3]
    )


def _filled(
    name: str, whole: Mapping[Point, LayerTimes], *, interpolate: bool, faults: list[Problem]
) -> dict[Point, LayerTimes]:
    """Powers of two between the smallest and the largest measured micro-batch, linear between their neighbours."""
    times = dict(whole)
    for device, tp in sorted({(p.device, p.tp) for p in whole}):
        measured = sorted(p.micro_batch for p in whole if (p.device, p.tp) == (device, tp))
        wanted = [1 << k for k in range(measured[-1].bit_length()) if measured[0] < 1 << k < measured[-1]]
        for micro_batch in sorted(set(wanted) - set(measured)):
            if not interpolate:
                faults.append(
                    Problem(
                        what=f"{name}: {device} tp {tp} has no times at mbs {micro_batch}",
                        why=f"measured: {', '.join(map(str, measured))}, and interpolation is refused",
                        fix="profile the point, or allow interpolation",
                        field="mbs",
                    )
                )
                continue
            below = max(one for one in measured if one < micro_batch)
            above = min(one for one in measured if one > micro_batch)
            share = (micro_batch - below) / (above - below)
            low, high = whole[Point(device, tp, below)], whole[Point(device, tp, above)]
            times[Point(device, tp, micro_batch)] = LayerTimes(
                forward_s=(1 - share) * low.forward_s + share * high.forward_s,
                backward_s=(1 - share) * low.backward_s + share * high.backward_s,
                update_s=(1 - share) * low.update_s + share * high.update_s,
                basis="interpolated",
            )
    return times
