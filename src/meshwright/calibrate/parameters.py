"""What a fit may move: a few physical numbers per architecture generation, framework and time of it, each with a prior
and bounds.

No number belongs to a run, a model or a source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from meshwright.estimate.hardware import Hardware, hardware_of
from meshwright.library.devices import published_efficiency
from meshwright.library.software import (
    canonical,
    fitted_generation,
    generation_of,
    numbers_name,
    own_numbers,
    published_software,
    software,
)
from meshwright.specs.cluster import NodeGroup
from meshwright.specs.workload import Workload

Scope = Literal["device", "software", "generation"]


@dataclass(frozen=True, slots=True)
class FittedField:
    """One field that may be fitted, of any owner of its scope."""

    scope: Scope
    field: str
    spread: float
    """Standard deviation of the prior, of the logarithm."""
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Parameter:
    """A quantity of one owner, with the value it has without a fit."""

    quantity: FittedField
    owner: str
    """An architecture generation, a framework, or a framework of a time."""
    prior: float

    @property
    def name(self) -> str:
        """`device.hopper.gemm_fraction`, `software.megatron-core@2025-01.host`."""
        scope = "device" if self.quantity.scope == "device" else "software"
        return f"{scope}.{self.owner}.{self.quantity.field}"

    @property
    def bounds(self) -> tuple[float, float]:
        """Logarithms of what the value may be."""
        return math.log(self.quantity.low), math.log(self.quantity.high)


QUANTITIES = (
    FittedField("device", "gemm_fraction", 0.12, 0.35, 0.95),
    FittedField("device", "gemm_fraction_fp8", 0.15, 0.30, 0.95),
    FittedField("device", "gemm_fraction_fp4", 0.20, 0.20, 0.95),
    FittedField("device", "memory_fraction", 0.10, 0.50, 0.95),
    FittedField("device", "flash_forward_fraction", 0.10, 0.30, 1.0),
    FittedField("device", "flash_backward_fraction", 0.10, 0.25, 1.0),
    FittedField("device", "flash_fa1_share", 0.25, 0.10, 1.0),
    FittedField("device", "flash_fa2_share", 0.15, 0.30, 1.0),
    FittedField("device", "launch_s", 0.40, 5e-7, 2e-5),
    FittedField("device", "power_exponent", 0.50, 0.05, 1.0),
    FittedField("software", "operator_s", 0.60, 1e-7, 2e-4),
    FittedField("software", "vector_passes", 0.25, 0.8, 10.0),
    FittedField("software", "product_share", 0.05, 0.75, 1.0),
    FittedField("software", "wave_loss", 0.50, 0.05, 1.0),
    FittedField("software", "cast_passes", 0.50, 1.0, 20.0),
    FittedField("software", "link_share", 0.20, 0.30, 1.0),
    FittedField("software", "overlap", 0.30, 0.10, 1.0),
    FittedField("software", "tensor_s", 0.50, 5e-6, 5e-4),
    FittedField("software", "step_s", 0.50, 1e-3, 0.1),
    FittedField("generation", "host", 0.25, 0.4, 3.0),
    FittedField("generation", "passes", 0.10, 0.7, 1.5),
    FittedField("generation", "hidden", 0.10, 0.5, 1.2),
    FittedField("generation", "young_products", 0.10, 0.6, 1.05),
)
"""Spreads say how far a number of the literature may be off: little for what is measured on the device, more for what
frameworks do, and little again for what one generation of a framework differs by from the next. Power rises at least
as the clock does, so that no exponent is above 1."""
_RECORDS: dict[Scope, Callable[[str], object]] = {
    "device": published_efficiency,
    "software": published_software,
    "generation": generation_of,
}


def fitted_quantities(generations: Iterable[str], frameworks: Iterable[str]) -> tuple[Parameter, ...]:
    """Every quantity of these owners that is not zero without a fit.

    Args:
        generations: the generations of devices.
        frameworks: lines, or generations of them as `canonical` names them.
    """
    names = {canonical(name) for name in frameworks}
    owners = {
        "device": sorted(set(generations)),
        "software": sorted({name.partition("@")[0] for name in names}),
        "generation": sorted(name for name in names if "@" in name),
    }
    found = []
    for quantity in QUANTITIES:
        for owner in owners[quantity.scope]:
            record = _RECORDS[quantity.scope](owner)
            prior = float(getattr(record, quantity.field))
            if prior > 0 and (quantity.field != "young_products" or generation_of(owner).young):
                found.append(Parameter(quantity, owner, min(max(prior, quantity.low), quantity.high)))
    return tuple(found)


def hardware_with(values: Mapping[Parameter, float], group: NodeGroup, workload: Workload) -> Hardware:
    """The hardware of a group under other numbers than the library's.

    Args:
        values: the values of the parameters that move; those of other owners are left out.
        group: the group where the run ran.
        workload: its format and framework.
    """
    efficiency, name = group.device.efficiency, canonical(workload.software)
    line, numbers = software(name.partition("@")[0], workload.calibration), numbers_name(name)
    owners = {"device": efficiency.generation, "software": numbers.partition("@")[0], "generation": numbers}
    moved: dict[str, dict[str, float]] = {scope: {} for scope in owners}
    for parameter, value in values.items():
        if parameter.owner == owners[parameter.quantity.scope]:
            moved[parameter.quantity.scope][parameter.quantity.field] = value
    for field in own_numbers(name):
        moved["software"].pop(field, None)
    device = replace(group.device, efficiency=replace(efficiency, **moved["device"]))  # type: ignore[arg-type]
    driver = replace(line, **moved["software"])  # type: ignore[arg-type]
    then = replace(fitted_generation(name, workload.calibration), **moved["generation"])  # type: ignore[arg-type]
    return hardware_of(replace(group, device=device), workload, then.of(driver))
