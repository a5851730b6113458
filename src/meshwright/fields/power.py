"""Kinds of values that state power and carbon: `620W`, `0.38kg/kWh`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from meshwright.fields.kinds import FieldKind, real

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
