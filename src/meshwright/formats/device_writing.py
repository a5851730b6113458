"""A device as the text of a device file: the way back of `device_file`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from meshwright.formats.device_file import DEVICE_NUMBERS, EFFICIENCY_NUMBERS, NODE_NUMBERS, PROTOCOL_NUMBERS
from meshwright.specs.device import DeviceSpec, KernelEfficiency, NodeDefaults, Provenance
from meshwright.units import TERA

DIGITS = 12


def device_text(spec: DeviceSpec) -> str:
    """The file that reads as this device.

    Args:
        spec: any device; its kernels' generation is written with all their numbers.
    """
    lines = [
        *_entries({"name": spec.name}),
        *_entries({"vendor": spec.vendor} if spec.vendor else {}),
        *_entries({"year": spec.year} if spec.year else {}),
        *_entries({"generation": spec.efficiency.generation}),
        *_entries({"aliases": list(spec.aliases)} if spec.aliases else {}),
        *_entries({f"{dtype}_tflops": peak / TERA for dtype, peak in spec.peak_flop_per_s}),
        *_entries(_numbers(spec, DEVICE_NUMBERS)),
        *_entries({"units": spec.units}),
        *_entries({"unified_memory": True} if spec.unified_memory else {}),
        *_entries({"any_operand_order": True} if spec.any_operand_order else {}),
        *_entries({"host_issue": spec.host_issue} if spec.host_issue != 1.0 else {}),
        *_entries({"notes": spec.notes} if spec.notes else {}),
        "",
        "[efficiency]",
        *_efficiency(spec.efficiency),
    ]
    if spec.node is not None:
        lines += ["", "[node]", *_node(spec.node)]
    lines += ["", "[source]", *_sources(spec.provenance, [(key, field) for key, field, *_ in DEVICE_NUMBERS])]
    if spec.node is not None and spec.node.provenance:
        keys = [*((key, field) for key, field, *_ in NODE_NUMBERS), ("devices", "devices_per_node")]
        lines += ["", "[node.source]", *_sources(spec.node.provenance, [*keys, ("scaleup_domain", "scaleup_domain")])]
    return "\n".join(lines) + "\n"


def _efficiency(efficiency: KernelEfficiency) -> Iterator[str]:
    yield from _entries({"basis": efficiency.basis, "source": efficiency.source})
    yield from _entries({key: getattr(efficiency, key) for key in ("tile_m", "tile_n", "flash_tile")})
    yield from _entries(_numbers(efficiency, EFFICIENCY_NUMBERS))
    if efficiency.products:
        yield from _entries({"product_dtypes": [curve.dtype for curve in efficiency.products]})
        yield from _entries({"product_k_half": [curve.k_half for curve in efficiency.products]})
        yield from _entries({"product_joint": [curve.joint for curve in efficiency.products]})
    if efficiency.flash_dims:
        yield from _entries({"flash_dims": [dim for dim, _ in efficiency.flash_dims]})
        yield from _entries({"flash_dim_rates": [rate for _, rate in efficiency.flash_dims]})
    yield from _entries({"flash_tail": efficiency.flash_tail})
    if efficiency.flash_latent_share is not None:
        yield from _entries({"flash_latent_share": efficiency.flash_latent_share})


def _node(node: NodeDefaults) -> Iterator[str]:
    yield from _entries({"devices": node.devices_per_node, "scaleup_domain": node.scaleup_domain})
    yield from _entries({"scaleup_name": node.scaleup_name, "scaleup_topology": node.scaleup_topology})
    yield from _entries({"scaleup_in_switch_efficiency": node.scaleup_in_switch_efficiency})
    yield from _entries({"host_name": node.host_name, "fabric_name": node.fabric_name})
    if node.fabric_shared:
        yield from _entries({"fabric_shared": True})
    yield from _entries(_numbers(node, NODE_NUMBERS))
    if node.scaleup_protocols is not None:
        yield from _entries(_numbers(node.scaleup_protocols, PROTOCOL_NUMBERS))


def _numbers(owner: object, table: Iterable[tuple[Any, ...]]) -> dict[str, float]:
    """Numbers in the units of the file; those that are not known are left out."""
    found = {}
    for key, field, scale, *_ in table:
        value = getattr(owner, field)
        if value is not None:
            found[key] = value / scale
    return found


def _sources(provenance: Iterable[tuple[str, Provenance]], keys: list[tuple[str, str]]) -> Iterator[str]:
    key_of = {field: key for key, field in keys} | {"units": "units", "peak_flop_per_s": "peaks"}
    for field, said in provenance:
        if field in key_of:
            pairs = {"basis": said.basis, "source": said.source} | ({"date": said.date} if said.date else {})
            yield f"{key_of[field]} = {{ {', '.join(_entries(pairs))} }}"


def _entries(values: Mapping[str, object]) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, float):
            yield f"{key} = {float(f'{value:.{DIGITS}g}')!r}"
        else:
            yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
