"""A plan of stages as a picture: layers, the stages they form, and the devices of each, host by host."""

from __future__ import annotations

from html import escape

from meshwright.compiler.stages.islands import islands_of
from meshwright.compiler.stages.plan import StagePlan, StagesPlan
from meshwright.units import significant

WIDTH, LEFT, GAP = 960, 90, 4
LAYER_TOP, LAYER_HEIGHT = 30, 34
STAGE_TOP, STAGE_HEIGHT = 104, 64
HOST_TOP, DEVICE = 216, 30
COLOURS = ("#1f6f8b", "#b3541e", "#4c7a34", "#7a4c8f", "#8f6b1f", "#2f5aa8", "#a83e5b", "#3f7f6f")
"""Colours of the stages, in turn; their numbers are written on them too."""
MOST_NUMBERED = 60
"""Layers that still have room for their number."""


def stages_svg(plan: StagesPlan) -> str:
    """The picture of a plan: each layer in the colour of its stage, each device in that of the stage it runs.

    Args:
        plan: the plan of a training step.
    """
    hosts, height = _hosts(plan)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f"<title>{escape(str(plan).splitlines()[0])}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *(_label(LAYER_TOP + LAYER_HEIGHT / 2, "layers"), _label(STAGE_TOP + STAGE_HEIGHT / 2, "stages")),
    ]
    for number, stage in enumerate(plan.stages):
        parts += _layers(plan, number, stage) + _stage(plan, number, stage)
    return "\n".join([*parts, *hosts, "</svg>"]) + "\n"


def _layers(plan: StagesPlan, number: int, stage: StagePlan) -> list[str]:
    """Boxes of the layers of a stage, and the lines from them to it."""
    count = len(plan.layer_ends)
    width = (WIDTH - LEFT - 20) / count
    parts = []
    for layer in range(stage.layers[0], stage.layers[1] + 1):
        left = LEFT + layer * width
        parts.append(_box(left, LAYER_TOP, width - min(GAP, width / 4), LAYER_HEIGHT, number))
        if count <= MOST_NUMBERED:
            parts.append(_text(left + width / 2 - GAP / 2, LAYER_TOP + LAYER_HEIGHT / 2 + 4, str(layer), "white"))
    low, high = LEFT + stage.layers[0] * width, LEFT + (stage.layers[1] + 1) * width - GAP
    left, right = _span(plan, number)
    corners = f"{low:.1f},{LAYER_TOP + LAYER_HEIGHT} {high:.1f},{LAYER_TOP + LAYER_HEIGHT}"
    corners += f" {right:.1f},{STAGE_TOP} {left:.1f},{STAGE_TOP}"
    return [*parts, f'<polygon points="{corners}" fill="{_colour(number)}" opacity="0.15"/>']


def _stage(plan: StagesPlan, number: int, stage: StagePlan) -> list[str]:
    left, right = _span(plan, number)
    middle = (left + right) / 2
    seconds = f"F {significant(stage.forward_s, 3)} s, B {significant(stage.backward_s, 3)} s"
    lines = [
        f"stage {number} on {'x'.join(map(str, stage.mesh_shape))} devices",
        seconds,
        f"{significant(stage.peak_bytes / 1e9, 3)} GB a device",
    ]
    return [
        _box(left, STAGE_TOP, right - left, STAGE_HEIGHT, number),
        *(_text(middle, STAGE_TOP + 19 + 18 * line, text, "white") for line, text in enumerate(lines)),
    ]


def _hosts(plan: StagesPlan) -> tuple[list[str], int]:
    """Devices in the boxes of their hosts, and the height of the whole picture."""
    stage_of = {
        device: number
        for number, stage in enumerate(plan.stages)
        for device in range(stage.first_device, stage.first_device + stage.devices)
    }
    parts, first, top, left = [], 0, HOST_TOP, LEFT
    for group in islands_of(plan.hosts).groups:
        for host in range(group.hosts):
            width = group.devices_per_host * DEVICE + GAP
            if left > LEFT and left + width > WIDTH - 20:
                left, top = LEFT, top + DEVICE + 34
            parts.append(_text(left, top - 5, f"{group.name} {host}", "#444", "start"))
            parts.append(
                f'<rect x="{left}" y="{top}" width="{width}" height="{DEVICE + GAP}" fill="none" stroke="#888"/>'
            )
            for device in range(group.devices_per_host):
                number = stage_of[first + device]
                parts.append(_box(left + GAP + device * DEVICE, top + GAP, DEVICE - GAP, DEVICE - GAP, number))
                middle = left + GAP / 2 + (device + 0.5) * DEVICE
                parts.append(_text(middle, top + DEVICE / 2 + 6, str(number), "white"))
            first, left = first + group.devices_per_host, left + width + 14
    return [_label(HOST_TOP + DEVICE / 2, "devices"), *parts], int(top + DEVICE + 20)


def _span(plan: StagesPlan, number: int) -> tuple[float, float]:
    """Left and right edge of the box of a stage."""
    width = (WIDTH - LEFT - 20) / len(plan.stages)
    return LEFT + number * width, LEFT + (number + 1) * width - GAP


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _box(left: float, top: float, width: float, height: float, number: int) -> str:
    colour = _colour(number)
    return f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height}" rx="3" fill="{colour}"/>'


def _text(left: float, base: float, text: str, colour: str, anchor: str = "middle") -> str:
    return f'<text x="{left:.1f}" y="{base:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _label(middle: float, text: str) -> str:
    return _text(LEFT - 14, middle + 4, text, "#222", "end")
