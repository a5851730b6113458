"""Units: SI inside, converted only where numbers enter or leave.

Memory is counted in GiB (2^30 bytes), links in GB/s (10^9 bytes per second), compute in TFLOP/s (10^12).
"""

from __future__ import annotations

KIB = 1024
MIB = 1024**2
GIB = 1024**3
KILO, MEGA, GIGA, TERA = 1e3, 1e6, 1e9, 1e12
MILLI, MICRO = 1e-3, 1e-6
DAY_S = 86_400.0


def gib(size_bytes: float) -> str:
    """Bytes as text in GiB with three significant digits: `72.4 GiB`."""
    return f"{significant(size_bytes / GIB)} GiB"


def seconds(time_s: float) -> str:
    """Seconds as text with three significant digits in s, ms or µs."""
    if time_s >= 1 or time_s == 0:
        return f"{significant(time_s)} s"
    return f"{significant(time_s * 1e3)} ms" if time_s >= 1e-3 else f"{significant(time_s * 1e6)} µs"


def count(number: float) -> str:
    """A large count as text: `70.6 B`, `4.19 M`, `1,024`."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(number) >= scale:
            return f"{significant(number / scale)} {letter}"
    return f"{number:,.0f}"


def significant(number: float, digits: int = 3) -> str:
    """A number with this many significant digits and no exponent."""
    if number == 0:
        return "0"
    text = f"{number:.{digits}g}"
    if "e" in text:
        return f"{float(text):,.0f}"
    return text
