"""What was measured of a machine, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.units import MICRO, gib, significant

UNITS = {
    "gb_s": "GB/s",
    "tflops": "TFLOP/s",
    "latency_us": "µs per hop",
    "k_half": "(inner dimension of half the rate)",
    "fraction": "of the peak",
    "keys_half": "(keys of half the rate)",
}
"""Units of a curve's numbers, by what was timed."""


def profile_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """A line per curve, then what was not measured.

    Args:
        document: a `meshwright.profile/1`.
    """
    machine = document["machine"]
    many = "device" if machine["devices"] == 1 else "devices"
    memory = gib(machine["memory_bytes"])
    yield f"{machine['kind']}: {machine['devices']} {many}, {machine['units']} units, {memory} each"
    for curve in document["curves"]:
        numbers = {name: value for name, value in curve.items() if name not in ("name", "points", "median_error")}
        text = ", ".join(f"{significant(value)} {UNITS.get(name, name)}" for name, value in numbers.items())
        yield f"{curve['name']}: {text}; {curve['points']} points, median error {curve['median_error']:.0%}"
    yield f"kernel launch: {significant(document['launch_s'] / MICRO)} µs"
    source = f"the library's {document['base']}" if document["base"] else "assumed"
    links = "" if machine["devices"] > 1 else " links between devices,"
    yield f"not measured:{links} links between nodes, 8-bit products, prices; {source}"
