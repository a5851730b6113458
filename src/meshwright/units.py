"""Units: SI inside, converted only where numbers enter or leave.

Memory is counted in GiB (2^30 bytes), links in GB/s (10^9 bytes per second), compute in TFLOP/s (10^12).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

KIB = 1024
MIB = 1024**2
GIB = 1024**3
KILO, MEGA, GIGA, TERA = 1e3, 1e6, 1e9, 1e12
MILLI, MICRO = 1e-3, 1e-6
HOUR_S = 3600.0
DAY_S = 86_400.0
JOULES_PER_KWH = 3.6e6


_SCALES = {"": (1.0, 0), "k": (1e3, 10), "m": (1e6, 20), "g": (1e9, 30), "t": (1e12, 40)}
_NUMBER = r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*"
_RATE = re.compile(_NUMBER + r"([KkMmGgTt]?)([iI]?)(bytes?|Bytes?|bits?|Bits?|B|b)\s*(ps|PS|/\s*(?:sec|s|S))\s*")
_SIZE = re.compile(_NUMBER + r"([KkMmGgTt])([iI]?)([Bb]?)\s*")


MOST_DIGITS = 300
"""Most digits of a whole number in foreign text; no quantity has more, and Python reads no more than 4,300."""


def whole_number(text: str) -> int | None:
    """The whole number that a text is, in decimal digits; None for any other text.

    Args:
        text: the number, without a sign.
    """
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None


def number_or_word(text: str) -> int | str:
    """The whole number that a text is, or else the text.

    Args:
        text: a value of an option.
    """
    number = whole_number(text)
    return text if number is None else number


def rate_bytes_per_s(text: str, *, network: bool = False) -> float | None:
    """Bytes per second of `50GB/s`, `400Gb/s`, `400Gbps`, `400Gbit/s`, `50GBps` or `40GiB/s`; None for other texts.

    B are bytes and b bits, Gi is 2^30. Where the case does not tell, as in `7gb/s` and `7GBPS`, there is no answer.

    Args:
        text: number and unit.
        network: the speed is a network's, which is counted in bits where the case does not tell.
    """
    match = _RATE.fullmatch(text[:60])
    if match is None:
        return None
    number, prefix, binary, unit, per = match.groups()
    typed = prefix + unit + per.replace("/", "").strip()
    untold = (unit == "b" and prefix.islower()) or (unit == "B" and typed.isupper() and per == "PS")
    if untold and not network:
        return None
    decimal, power = _SCALES[prefix.lower()]
    scale = (2.0**power if binary else decimal) / (1 if unit == "B" or "yte" in unit else 8)
    return float(number) * scale


def size_bytes(text: str) -> float | None:
    """Bytes of `128GB`, `120GiB`, `1.5tb` or `64G`; None for other texts, and for bits (`128Gb`)."""
    match = _SIZE.fullmatch(text[:40])
    if match is None or (match[4] == "b" and match[2].isupper()):
        return None
    decimal, power = _SCALES[match[2].lower()]
    return float(match[1]) * (2.0**power if match[3] else decimal)


def gib(size_bytes: float) -> str:
    """Bytes as text in GiB with three significant digits: `72.4 GiB`."""
    return f"{significant(size_bytes / GIB)} GiB"


def seconds(time_s: float) -> str:
    """Seconds as text with three significant digits in s, ms or µs."""
    if time_s >= 1 or time_s == 0:
        return f"{significant(time_s)} s"
    if time_s >= 1e-3:
        return f"{significant(time_s * 1e3)} ms"
    micro = significant(time_s * 1e6)
    return "0 s" if micro in ("0", "-0") else f"{micro} µs"


def energy(kwh: float) -> str:
    """Energy as text with three significant digits in Wh, kWh, MWh or GWh."""
    for scale, unit in ((1e6, "GWh"), (1e3, "MWh"), (1.0, "kWh")):
        if kwh >= scale:
            return f"{significant(kwh / scale)} {unit}"
    return f"{significant(kwh * 1e3)} Wh"


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


def rounded(number: float) -> str:
    """Three significant digits with thousands marked: `1,190`, `52.3`."""
    return f"{float(f'{number:.3g}'):,.0f}" if abs(number) >= 100 else significant(number)


def scaled(number: float) -> str:
    """A large count without a space: `15T`, `4.19M`."""
    return count(number).replace(" ", "")


def percent(share: float) -> str:
    """A share as percent, with one decimal below 10%: `89%`, `4.6%`, `under 0.1%`."""
    value = 100.0 * share
    if value >= 9.95 or value == 0:
        return f"{value:.0f}%"
    return f"{value:.1f}%" if abs(value) >= 0.05 else "under 0.1%"


def percents(parts: Mapping[str, float]) -> dict[str, str]:
    """Parts of a whole as percents with one decimal that sum to 100.0 (largest remainder), the largest first.

    Args:
        parts: amounts by name, in any one unit; those that round to 0.0% are left out.
    """
    whole = sum(parts.values())
    if whole <= 0:
        return {}
    tenths = {name: 1000.0 * part / whole for name, part in parts.items()}
    kept = {name: math.floor(value) for name, value in tenths.items()}
    missing = 1000 - sum(kept.values())
    for name in sorted(tenths, key=lambda name: kept[name] - tenths[name])[:missing]:
        kept[name] += 1
    ordered = sorted(kept, key=lambda name: -parts[name])
    return {name: f"{kept[name] / 10:.1f}%" for name in ordered if kept[name]}


def of_capacity(peak_bytes: float, capacity_bytes: float) -> str:
    """A peak beside what there is: `71.2 of 79.6 GiB`."""
    return f"{significant(peak_bytes / GIB)} of {gib(capacity_bytes)}"


def usd(price: float) -> str:
    """A price: `0.054 USD`, `1,204 USD`."""
    return f"{price:,.0f} USD" if price >= 1000 else f"{significant(price)} USD"


def signed_seconds(time_s: float) -> str:
    """A difference of times: `+1.2 s`, `-38 ms`."""
    return f"{'+' if time_s >= 0 else '-'}{seconds(abs(time_s))}"


def signed_percent(ratio: float) -> str:
    """A relative difference: `+21%`, `-9.8%`, `+0.0%`."""
    sign, size = ("+" if ratio >= 0 else "-"), abs(ratio)
    return f"{sign}{percent(size)}" if size >= 0.0005 or not size else f"{sign}0.0%"


def slower(ratio: float) -> str:
    """A relative difference of times: `21% slower`, `3.2% faster`, `3.4x as slow`, `the same time`."""
    if ratio == 0:
        return "the same time"
    if ratio > 1:
        return f"{significant(1 + ratio, 2)}x as slow"
    return f"{percent(abs(ratio))} {'slower' if ratio > 0 else 'faster'}"
