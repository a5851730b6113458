"""A device of the library with numbers of its data sheet changed: a chip, a node or a fabric that nobody sells yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.formats.device_file import (
    DEVICE_NUMBERS,
    NODE_NUMBERS,
    PEAK_KEYS,
    check_record,
    efficiency_record,
)
from meshwright.specs.device import DeviceSpec, NodeDefaults, Provenance
from meshwright.units import GIB, GIGA, TERA

NODE_COUNTS = (("devices", "devices_per_node"), ("scaleup_domain", "scaleup_domain"))


def changed_device(base: DeviceSpec, changes: Mapping[str, Any], *, name: str, source: str) -> DeviceSpec:
    """A device with some keys of a device file stated anew; all others as they are.

    A node of other size has a scale-up domain of its size unless `scaleup_domain` says otherwise. Peaks of formats that
    are not named stay.

    Args:
        base: the device.
        changes: keys of a device file with their values, those of its `node` and `efficiency` tables in tables.
        name: the name of the new device.
        source: who states the numbers.

    Raises:
        InputError: unknown keys or values that no device can have; all of them together.
    """
    check_record({**_required(base), **changes, "name": name}, noun=f"device {name!r}")
    stated = Provenance(basis="assumed", source=source)
    found = replace(
        base, name=name, **_numbers(changes, ((key, field, scale) for key, field, scale, _ in DEVICE_NUMBERS))
    )
    if peaks := {dtype: changes[key] * TERA for key, dtype in PEAK_KEYS.items() if key in changes}:
        found = replace(found, peak_flop_per_s=tuple((dict(base.peak_flop_per_s) | peaks).items()))
    if "units" in changes:
        found = replace(found, units=changes["units"])
    if efficiency := changes.get("efficiency"):
        said = {"basis": "assumed", "source": source}
        found = replace(found, efficiency=efficiency_record({**said, **efficiency}, base.efficiency))
    if node := changes.get("node"):
        found = replace(found, node=_changed_node(_node_of(base), node, stated))
    fields = {field for key, field, *_ in DEVICE_NUMBERS if key in changes}
    fields |= {"peak_flop_per_s"} if PEAK_KEYS.keys() & changes.keys() else set()
    fields |= {"units"} & changes.keys()
    return replace(found, provenance=_provenance(found.provenance, fields, stated))


def changeable(key: str) -> bool:
    """Whether a key of a device file, `node.devices` with its table, is a number that can be changed."""
    table, _, own = key.rpartition(".")
    if table == "node":
        return own in {*(name for name, *_ in NODE_NUMBERS), *(name for name, _ in NODE_COUNTS)}
    if table == "efficiency":
        from meshwright.formats.device_file import EFFICIENCY_NUMBERS

        return own in {name for name, *_ in EFFICIENCY_NUMBERS}
    return not table and own in {*(name for name, *_ in DEVICE_NUMBERS), *PEAK_KEYS, "units"}


def _required(base: DeviceSpec) -> dict[str, Any]:
    """What every device file has, so that the changes alone are checked."""
    dtype, peak = base.peak_flop_per_s[0]
    return {
        "generation": base.efficiency.generation or "unknown",
        f"{dtype}_tflops": peak / TERA,
        "memory_gib": base.memory_bytes / GIB,
        "memory_gb_s": base.memory_bandwidth_bytes_per_s / GIGA,
    }


def _numbers(changes: Mapping[str, Any], table: Iterable[tuple[str, str, float]]) -> dict[str, Any]:
    return {field: changes[key] * scale for key, field, scale in table if key in changes}


def _node_of(base: DeviceSpec) -> NodeDefaults:
    if base.node is None:
        what, why = f"the node of {base.name}", "the node that it usually comes in is not stated"
        raise InputError(Problem(what=what, why=why, fix="state it in a device file", field="node"), code="MW212")
    return base.node


def _changed_node(node: NodeDefaults, changes: Mapping[str, Any], stated: Provenance) -> NodeDefaults:
    counts = {field: changes[key] for key, field in NODE_COUNTS if key in changes}
    whole = node.scaleup_domain == node.devices_per_node
    if "devices" in changes and whole:
        counts.setdefault("scaleup_domain", changes["devices"])
    numbers = _numbers(changes, ((key, field, scale) for key, field, scale, _ in NODE_NUMBERS))
    provenance = _provenance(node.provenance, {*counts, *numbers}, stated)
    return replace(node, **counts, **numbers, provenance=provenance)


def _provenance(
    known: tuple[tuple[str, Provenance], ...], changed: set[str], stated: Provenance
) -> tuple[tuple[str, Provenance], ...]:
    return tuple((dict(known) | dict.fromkeys(sorted(changed), stated)).items())
