"""Kinds of values: each reads the text of a command line or the value of a Python call, by one rule."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.errors import InputError, UnsupportedError, unknown_name

MOST = 2**31 - 1
"""Largest whole number an option takes; products of two still fit 64 bits."""
MAX_WHOLE = 10**12
MAX_NUMBER = 1e30
TEXTS = "str | Iterable[str]"
PAIRS = "str | Iterable[str] | Mapping[str, object]"
"""Annotation of texts `name=value`."""
SEVERAL = re.compile(r"Iterable|Mapping|PlanLike|Source")
"""Marks the annotation of a value that may also be a list or a table."""
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldKind:
    """Text, or an object of ours that stands for it, taken as it is."""

    metavar: str = "TEXT"
    annotation: str = "str"
    """Type of the Python argument."""

    def read(self, name: str, value: Any) -> Any:
        """The value.

        Args:
            name: how the user called the field.
            value: a text or a Python value.

        Raises:
            InputError: it breaks the kind's rule.
        """
        several = isinstance(value, (list, tuple, set, frozenset, Mapping))
        numbers = isinstance(value, (int, float)) and not isinstance(value, bool) and "float" in self.annotation
        if numbers:
            return value
        if isinstance(value, (bool, int, float, bytes)) or (several and not SEVERAL.search(self.annotation)):
            raise self.wrong(name, value, "must be text", f"for example {name}='...'")
        return value

    def wrong(self, name: str, value: object, why: str, fix: str, code: str = "MW206") -> InputError:
        """The error of a value that breaks the rule."""
        return InputError(what=f"{name} is {shortened(value)}", why=why, fix=fix, field=name, code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec(FieldKind):
    """A record of ours, in Python alone."""

    def read(self, name: str, value: Any) -> Any:
        """The record."""
        if type(value).__name__ != self.annotation:
            raise self.wrong(name, value, f"must be a {self.annotation}", f"meshwright.specs has {self.annotation}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(FieldKind):
    """A switch, on where it is given."""

    metavar: str = ""
    annotation: str = "bool"

    def read(self, name: str, value: Any) -> Any:
        """The value as it is."""
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts(FieldKind):
    """Several texts: an option that is repeated, one text or an iterable in Python; with `commas` also `a,b`."""

    annotation: str = TEXTS
    commas: bool = False
    repeated: bool = True

    def read(self, name: str, value: str | Iterable[Any]) -> tuple[Any, ...]:
        """Texts in their order; of pairs in a mapping, `name=value` of each."""
        if isinstance(value, Mapping) and self.annotation == PAIRS:
            value = [f"{key}={_listed(one)}" for key, one in value.items()]
        entries = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
        if self.annotation in (TEXTS, PAIRS) and not all(isinstance(entry, str) for entry in entries):
            raise self.wrong(name, value, "must be text, or several texts", f"for example {name}='...'")
        if not self.commas:
            return tuple(entries)
        parts = (entry.split(",") if isinstance(entry, str) else [entry] for entry in entries)
        found = (part.strip() if isinstance(part, str) else part for entry in parts for part in entry)
        return tuple(part for part in found if part != "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices(FieldKind):
    """Devices as text, or their numbers by name in Python."""

    metavar: str = "G"
    annotation: str = "str | Mapping[str, int]"

    def read(self, name: str, value: Any) -> Any:
        """The devices as text: `8xH100,8xA100-80`."""
        if isinstance(value, int) and not isinstance(value, bool):
            raise self.wrong(name, value, "it says how many of which device", f"for example {name}='{value}xH100'")
        if not isinstance(value, Mapping):
            return FieldKind().read(name, value)
        counts = [Whole().read(f"{name}[{device!r}]", count) for device, count in value.items()]
        return ",".join(f"{count}x{device}" for count, device in zip(counts, value, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(FieldKind):
    """A whole number."""

    metavar: str = "N"
    annotation: str = "int"
    low: int = 1
    high: int = MOST

    def read(self, name: str, value: Any) -> int:
        """The number, also of texts such as `1e6` and `4_096`."""
        found = None
        if isinstance(value, str):
            plain = value.strip().replace("_", "").replace(",", "")
            if re.fullmatch(r"[+-]?[0-9]{1,30}", plain):
                found = int(plain)
            elif re.fullmatch(r"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?e\+?[0-9]{1,2}", plain, re.IGNORECASE):
                number = float(plain)
                found = int(number) if number.is_integer() else None
        elif isinstance(value, int) and not isinstance(value, bool):
            found = value
        if found is None or not self.low <= found <= self.high:
            why = f"must be a whole number from {self.low:,} to {self.high:,}"
            raise self.wrong(name, value, why, f"for example {name} {min(max(self.low, 4), self.high)}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(FieldKind):
    """A number above 0, or of at least 0."""

    metavar: str = "X"
    annotation: str = "float"
    zero: bool = False
    high: float = 1e18

    def read(self, name: str, value: Any) -> float:
        """The number."""
        found = math.nan
        if isinstance(value, str):
            try:
                found = float(value.strip().replace(",", ""))
            except ValueError:
                found = math.nan
        else:
            found = real(value)
        if not (found >= 0 if self.zero else found > 0) or found > self.high:
            why = f"must be a number {'of at least' if self.zero else 'above'} 0, at most {self.high:g}"
            raise self.wrong(name, value, why, f"for example {name} {min(2.5, self.high / 2):g}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Count(FieldKind):
    """A large number above 0, also as text with k, M, B or T behind it: `15T`, `1.5e12`, `4_194_304`."""

    metavar: str = "N"
    annotation: str = "int | float | str"
    whole: bool = False
    example: str = ""
    fix: str = ""
    """The remedy, where it is not the usual one."""
    scales: ClassVar[Mapping[str, float]] = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}

    def read(self, name: str, value: Any) -> Any:
        """The number."""
        found = _scaled(value, self.scales)
        if self.whole:
            if found.is_integer() and 1 <= found <= MAX_WHOLE:
                return int(found)
            large = MAX_WHOLE < found <= MAX_NUMBER
            why = f"at most {MAX_WHOLE:,} makes sense" if large else "must be a whole number of at least 1"
            raise self.wrong(name, value, why, f"for example {name} {self.example}" if self.example else "", "MW204")
        if 0 < found <= MAX_NUMBER:
            return found
        fix = self.fix or "write it as 15T, 1.5e13 or 15_000_000_000_000"
        raise self.wrong(name, value, "must be a finite number above 0", fix, "MW204")


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLength(Count):
    """Tokens of a sequence, where k and M count as context lengths do: `32k` is 32,768, `1M` is 1,048,576."""

    whole: bool = True
    example: str = "4096 or 32k"
    scales: ClassVar[Mapping[str, float]] = {"": 1.0, "k": 2.0**10, "m": 2.0**20}


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration(FieldKind):
    """Seconds, or a number with its unit: `40`, `40s`, `500ms`, `2min`, `3d`."""

    metavar: str = "S"
    annotation: str = "float | str"
    stated: bool = False
    """Whether the unit must be there."""

    def read(self, name: str, value: Any) -> float:
        """Duration in seconds."""
        number, scale = math.nan, 1.0
        if isinstance(value, str):
            match = re.fullmatch(r"\s*([0-9][0-9_,]*\.?[0-9]*(?:[eE][+-]?[0-9]{1,2})?)\s*([a-zµ]*)\s*", value[:64])
            if match and self.stated and not match[2]:
                raise self.wrong(name, value, "must name its unit", f"for example {value.strip()}s or {value.strip()}h")
            if match and match[2] in _SECONDS:
                number, scale = float(match[1].replace("_", "").replace(",", "")), _SECONDS[match[2]]
        else:
            number = real(value)
        if not 0 < number * scale < math.inf:
            fix = "as 40s, 2min, 12h or 3d" if self.stated else "in seconds, or as 40s, 500ms or 2min"
            raise self.wrong(name, value, "must be a finite number above 0", fix)
        return number * scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(FieldKind):
    """A part of a whole, from one share to another: `40%-60%`."""

    metavar: str = "PCT-PCT"
    annotation: str = "str | tuple[float, float]"

    def read(self, name: str, value: Any) -> tuple[float, float]:
        """Both shares, from 0 to 1."""
        if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(one, int | float) for one in value):
            value = f"{value[0]:.4%}-{value[1]:.4%}"
        share = r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%\s*"
        match = re.fullmatch(f"{share}-{share}", value[:64]) if isinstance(value, str) else None
        low, high = (float(one) / 100.0 for one in match.groups()) if match else (1.0, 0.0)
        if not 0 <= low < high <= 1:
            raise self.wrong(name, value, "must be two shares of the whole, the lower first", "for example 40%-60%")
        return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(FieldKind):
    """One of a few names."""

    metavar: str = "NAME"
    names: tuple[str, ...]
    noun: str
    supported: bool = True
    """Whether an unknown name is wrong input, rather than something that is not supported."""

    def read(self, name: str, value: Any) -> Any:
        """The name."""
        if value in self.names:
            return value
        problem = unknown_name(self.noun, str(value)[:80], self.names)
        raise InputError(problem, code="MW206") if self.supported else UnsupportedError(problem, code="MW406")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile(FieldKind):
    """A file to write, in a folder that is there."""

    metavar: str = "FILE"
    annotation: str = "str | os.PathLike[str]"

    def read(self, name: str, value: Any) -> Any:
        """The path as given; nothing is written."""
        from meshwright.formats.writing import check_file

        if not isinstance(value, str | os.PathLike):
            raise self.wrong(name, value, "it must be a path", "name a file")
        check_file(os.fspath(value))
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers(Texts):
    """Several numbers by one rule: `512,1024`."""

    metavar: str = "N,N"
    annotation: str = "Iterable[float]"
    commas: bool = True
    repeated: bool = False
    each: FieldKind

    def read(self, name: str, value: Any) -> tuple[Any, ...]:
        """Numbers in their order."""
        entries = value if isinstance(value, str) or not isinstance(value, (int, float)) else [value]
        return tuple(self.each.read(name, part) for part in Texts(commas=True, annotation="").read(name, entries))


def _listed(value: object) -> str:
    """A value, or several with commas between them."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple | set) else str(value)


def real(value: object) -> float:
    """A Python number as a float: infinite where it is too large for one, NaN for anything that is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def shortened(value: object) -> str:
    """A value in a message, shortened."""
    # Python refuses to write whole numbers of thousands of digits.
    text = f"{real(value):g}" if isinstance(value, int) and abs(value) > MAX_NUMBER else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _scaled(value: object, scales: Mapping[str, float]) -> float:
    """The number that a text or a number says, NaN for anything else."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)\s*([kKmMbBgGtT]?)\s*", value[:64])
        if match and len(value) <= 64:
            return float(match[1].replace("_", "").replace(",", "")) * scales.get(match[2].lower(), math.nan)
    return real(value)


_WATTS = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(k?W)?\s*")
_CARBON = re.compile(r"\s*([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*(k?g)(?:\s*CO2e?)?\s*/\s*(k|M)Wh\s*")
MOST_W = 20_000.0
MOST_KG = 5.0
"""Highest CO2-equivalent of a kWh: lignite is about 1.2; above it the unit is another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watts(FieldKind):
    """Power of one device: `620W`, `1.2kW`, 620."""

    metavar: str = "W"
    annotation: str = "float | str"

    def read(self, name: str, value: Any) -> float:
        """Power in watts."""
        match = _WATTS.fullmatch(value[:40]) if isinstance(value, str) else None
        found = float(match[1]) * (1e3 if match[2] == "kW" else 1.0) if match else real(value)
        if not 0 < found <= MOST_W:
            why = f"must be the power of one device, above 0 and at most {MOST_W:,.0f} W"
            raise self.wrong(name, value, why, f"for example {name} 620W")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonIntensity(FieldKind):
    """CO2-equivalent of electricity: `0.38kg/kWh`, `380g/kWh`."""

    metavar: str = "KG/KWH"
    annotation: str = "float | str"

    def read(self, name: str, value: Any) -> float:
        """Carbon intensity in kg per kWh."""
        match = _CARBON.fullmatch(value[:40]) if isinstance(value, str) else None
        # A text without its unit could be grams or kilograms.
        found = real(value)
        if match:
            found = float(match[1]) * (1.0 if match[2] == "kg" else 1e-3) / (1.0 if match[3] == "k" else 1e3)
        if not 0 <= found <= MOST_KG:
            why = f"must be the CO2-equivalent of a kWh with its unit, at most {MOST_KG:g} kg"
            raise self.wrong(name, value, why, f"for example {name} 380g/kWh or {name} 0.38kg/kWh")
        return found
