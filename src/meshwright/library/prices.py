"""Prices of devices by the hour: those that come with the package, each dated and with its source, or a user's own.

[[price]]
device = "H100"
usd_per_device_hour = 3.0
date = "2026-05"
source = "on-demand, where and from whom"
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, MeshwrightError, Problem
from meshwright.formats.files import read_table
from meshwright.library.devices import device

PUBLIC = "public"
"""Names the prices that come with the package."""
_PACKAGED = Path(__file__).parent / "data" / "prices.toml"
_DATE = re.compile(r"20[0-9]{2}(?:-[01][0-9](?:-[0-3][0-9])?)?")
_KEYS = ("device", "usd_per_device_hour", "date", "source")
MOST = 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of one device and hour."""

    usd: float
    date: str
    source: str


def prices_of(source: str | os.PathLike[str]) -> dict[str, Price]:
    """Prices by the name of their device.

    Args:
        source: a TOML file of them, or `public`.

    Raises:
        InputError: the file cannot be read, or an entry lacks its date or source, is no price, or is of a device that
            another entry prices otherwise; all problems together.
        UnsupportedError: devices that nobody knows, and nothing else wrong.
    """
    path = _PACKAGED if os.fspath(source) == PUBLIC else Path(source)
    entries = read_table(path, "price file").get("price")
    if not isinstance(entries, list) or not entries:
        why, fix = "it holds no [[price]]", "write [[price]] with device, usd_per_device_hour, date and source"
        raise InputError(what=f"{str(path)!r} has no prices", why=why, fix=fix, field="prices", code="MW212")
    found: dict[str, Price] = {}
    problems: list[Problem] = []
    unknown: list[MeshwrightError] = []
    for number, entry in enumerate(entries, start=1):
        wrong = _problems(entry, f"price {number}")
        if wrong:
            problems += wrong
            continue
        try:
            name = device(entry["device"]).name
        except MeshwrightError as error:
            unknown.append(error)
            continue
        price = Price(usd=float(entry["usd_per_device_hour"]), date=entry["date"], source=entry["source"])
        if name in found and found[name].usd != price.usd:
            problems.append(
                Problem(
                    what=f"{name} has two prices, {found[name].usd:g} and {price.usd:g}",
                    why="a device has one price per hour",
                    fix="keep one of them",
                    field="prices",
                )
            )
        found[name] = price
    if problems:
        raise InputError([*problems, *(one for error in unknown for one in error.problems)], code="MW212")
    if unknown:
        raise unknown[0]
    return found


def _problems(entry: Any, where: str) -> list[Problem]:
    if not isinstance(entry, dict):
        return [Problem(what=f"{where} is no table", fix="write [[price]]", field="prices")]
    found = [
        Problem(what=f"{where} has no {key}", why=_WHY[key], fix=_EXAMPLES[key], field=f"prices.{key}")
        for key in _KEYS
        if entry.get(key) in (None, "")
    ]
    found += [
        Problem(what=f"{where}: unknown key {str(key)[:40]!r}", fix=f"an entry has {', '.join(_KEYS)}", field="prices")
        for key in entry
        if key not in _KEYS
    ]
    usd, date = entry.get("usd_per_device_hour"), entry.get("date")
    number = isinstance(usd, int | float) and not isinstance(usd, bool) and 0 <= usd <= MOST
    if usd not in (None, "") and not number:
        what, why = f"{where}: usd_per_device_hour is {str(usd)[:40]!r}", f"must be a number from 0 to {MOST:,.0f}"
        found.append(Problem(what=what, why=why, fix=_EXAMPLES["usd_per_device_hour"], field="prices"))
    if date not in (None, "") and not (isinstance(date, str) and _DATE.fullmatch(date)):
        what, why = f"{where}: date is {str(date)[:40]!r}", "must be a text such as 2026-05 or 2026-05-31"
        found.append(Problem(what=what, why=why, fix=_EXAMPLES["date"], field="prices"))
    found += [
        Problem(what=f"{where}: {key} must be a text", fix=_EXAMPLES[key], field="prices")
        for key in ("device", "source")
        if entry.get(key) is not None and not isinstance(entry[key], str)
    ]
    return found


_WHY = {
    "device": "a price is of one kind of device",
    "usd_per_device_hour": "it is the price",
    "date": "device prices halve within a year or two, so a price needs its date",
    "source": "a price depends on the provider, the term and the region",
}
_EXAMPLES = {
    "device": 'device = "H100"',
    "usd_per_device_hour": "usd_per_device_hour = 2.5",
    "date": 'date = "2026-05"',
    "source": 'source = "offer of our provider, one year"',
}
