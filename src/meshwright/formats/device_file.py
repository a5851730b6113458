"""A device as a small TOML file: about eight numbers from a data sheet. Built-in devices are such files too.

name = "H100-custom"
generation = "hopper"          # whose kernels it runs
bf16_tflops = 989.4            # dense, never the sparse figure
memory_gib = 79.1              # what the framework sees
memory_gb_s = 3350
units = 132                    # streaming multiprocessors, compute units or cores
[node]
devices = 8
scaleup_gb_s = 450             # per device and direction
fabric_gb_s = 50               # per device and direction: 400 Gb/s is 50 GB/s
[source]
default = { basis = "datasheet", source = "NVIDIA H100 data sheet", date = "2024-03" }
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.formats.files import read_table, read_text
from meshwright.specs.device import DeviceSpec, KernelEfficiency, LinkProtocols, NodeDefaults, ProductCurve, Provenance
from meshwright.units import GIB, GIGA, MICRO, TERA

EfficiencyLookup = Callable[[str], KernelEfficiency]
"""Finds the efficiency of kernels by the name of an architecture generation."""

SUFFIXES = (".toml", ".json", ".yaml", ".yml")

PEAK_DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "int8", "fp4", "mxfp4")
PEAK_KEYS = {f"{dtype}_tflops": dtype for dtype in PEAK_DTYPES}

# Key of the file, field of the spec, SI units in one unit of the key, value where the file does not say.
DEVICE_NUMBERS = (
    ("memory_gib", "memory_bytes", GIB, None),
    ("memory_gb_s", "memory_bandwidth_bytes_per_s", GIGA, None),
    ("host_gb_s", "host_bandwidth_bytes_per_s", GIGA, 24.0),
    ("power_w", "power_w", 1.0, None),
    ("idle_power_w", "idle_power_w", 1.0, None),
    ("price_per_hour", "price_per_hour", 1.0, None),
)
NODE_NUMBERS = (
    ("scaleup_gb_s", "scaleup_bytes_per_s", GIGA, None),
    ("scaleup_efficiency", "scaleup_efficiency", 1.0, 0.8),
    ("scaleup_latency_us", "scaleup_latency_s", MICRO, 3.4),
    ("host_gb_s", "host_bytes_per_s", GIGA, 31.5),
    ("host_efficiency", "host_efficiency", 1.0, 0.75),
    ("fabric_gb_s", "fabric_bytes_per_s", GIGA, 25.0),
    ("fabric_efficiency", "fabric_efficiency", 1.0, 0.9),
    ("fabric_latency_us", "fabric_latency_s", MICRO, 14.0),
)
EFFICIENCY_NUMBERS = (
    ("gemm_fraction", "gemm_fraction", 1.0),
    ("gemm_fraction_fp8", "gemm_fraction_fp8", 1.0),
    ("gemm_fraction_fp32", "gemm_fraction_fp32", 1.0),
    ("k_half", "k_half", 1.0),
    ("flash_forward_fraction", "flash_forward_fraction", 1.0),
    ("flash_backward_fraction", "flash_backward_fraction", 1.0),
    ("flash_keys_half", "flash_keys_half", 1.0),
    ("flash_dim_half", "flash_dim_half", 1.0),
    ("gemm_fraction_fp4", "gemm_fraction_fp4", 1.0),
    ("flash_fa1_share", "flash_fa1_share", 1.0),
    ("flash_fa2_share", "flash_fa2_share", 1.0),
    ("flash_trained_share", "flash_trained_share", 1.0),
    ("burst_fraction", "burst_fraction", 1.0),
    ("memory_fraction", "memory_fraction", 1.0),
    ("launch_us", "launch_s", MICRO),
    ("dispatch_us", "dispatch_s", MICRO),
    ("overlap_slowdown", "overlap_slowdown", 1.0),
    ("context_gib", "context_bytes", GIB),
    ("power_exponent", "power_exponent", 1.0),
    ("power_w_per_tflop", "power_w_per_tflop", 1.0),
    ("power_fixed_w", "power_fixed_w", 1.0),
)
PROTOCOL_NUMBERS = (
    ("scaleup_base_us", "base_s", MICRO),
    ("scaleup_quick_base_us", "quick_base_s", MICRO),
    ("scaleup_quick_step_us", "quick_step_s", MICRO),
    ("scaleup_quick_share", "quick_share", 1.0),
    ("scaleup_few_ranks", "few_ranks", 1.0),
    ("scaleup_in_switch_us", "in_switch_s", MICRO),
)
_DEFAULT_UNITS = 100
_DEFAULT_NODE_DEVICES = 8


def read_device_file(path: str | Path) -> dict[str, Any]:
    """The checked keys of a device file.

    Raises:
        InputError: the file or any of its keys cannot be used; all problems together.
    """
    return check_record(read_table(path, "device file"), noun=f"device file {str(path)!r}")


def check_record(data: Mapping[str, object], *, noun: str) -> dict[str, Any]:
    """The keys of a device table, checked, with its `node`, `efficiency` and `source` tables.

    Raises:
        InputError: unknown, missing or wrong keys; all of them together.
    """
    from pydantic import ValidationError

    from meshwright.formats.device_table import DEVICE_TABLE
    from meshwright.formats.problems import problems_of

    record: dict[str, Any] = {}
    problems: list[Problem] = []
    try:
        record = DEVICE_TABLE.model_validate(data).model_dump(exclude_unset=True)
    except ValidationError as error:
        problems = problems_of(error, DEVICE_TABLE)
    if not any(key in data for key in PEAK_KEYS):
        problems.append(
            Problem(
                what="no peak is given",
                why="a device needs the dense peak of at least one dtype",
                fix="for example bf16_tflops = 989.4",
                field="bf16_tflops",
            )
        )
    if problems:
        raise InputError([replace(p, what=f"{noun}: {p.what}") for p in problems], code="MW212")
    return record


def device_spec(record: Mapping[str, Any], efficiency: EfficiencyLookup) -> DeviceSpec:
    """The device a checked record describes; what it does not say is assumed, and its basis says so.

    Args:
        record: the record from `read_device_file` or `check_record`, or a built-in file as it is.
        efficiency: kernel efficiencies by generation.

    Raises:
        InputError: numbers no device can have.
        UnsupportedError: an unknown generation.
    """
    node = record.get("node", {})
    numbers: dict[str, Any] = {
        field: value * scale
        for key, field, scale, default in DEVICE_NUMBERS
        if (value := record.get(key, default)) is not None
    }
    return DeviceSpec(
        name=record["name"],
        vendor=record.get("vendor", ""),
        year=record.get("year", 0),
        peak_flop_per_s=tuple((dtype, record[key] * TERA) for key, dtype in PEAK_KEYS.items() if key in record),
        units=record.get("units", _DEFAULT_UNITS),
        efficiency=_efficiency(record, efficiency),
        aliases=tuple(record.get("aliases", ())),
        notes=record.get("notes", ""),
        unified_memory=record.get("unified_memory", False),
        any_operand_order=record.get("any_operand_order", False),
        host_issue=record.get("host_issue", 1.0),
        provenance=_provenance(
            record,
            record.get("source", {}),
            [*((key, field) for key, field, _, _ in DEVICE_NUMBERS), ("units", "units"), ("peaks", "peak_flop_per_s")],
            present={*record, "peaks"},
        ),
        node=_node(node),
        **numbers,
    )


def _efficiency(record: Mapping[str, Any], lookup: EfficiencyLookup) -> KernelEfficiency:
    base = lookup(record["generation"])
    own = record.get("efficiency", {})
    return efficiency_record(own, base) if own else base


def efficiency_record(data: Mapping[str, Any], base: KernelEfficiency | None = None) -> KernelEfficiency:
    """Kernel efficiencies from an `[efficiency]` table, on top of those of the generation where given."""
    values: dict[str, Any] = {field: data[key] * scale for key, field, scale in EFFICIENCY_NUMBERS if key in data}
    values |= {key: data[key] for key in ("tile_m", "tile_n", "flash_tile", "basis", "source") if key in data}
    # A stated law stands for every format and head dim; measured curves stand beside it only where they are stated too.
    if "k_half" in data or "product_dtypes" in data:
        values["products"] = tuple(
            ProductCurve(dtype=dtype, k_half=k_half, joint=joint)
            for dtype, k_half, joint in _columns(data, "product_dtypes", "product_k_half", "product_joint")
        )
    if "flash_dim_half" in data or "flash_dims" in data:
        values["flash_dims"] = tuple(_columns(data, "flash_dims", "flash_dim_rates"))
        values["flash_latent_share"] = None
    values |= {key: data[key] for key in ("flash_tail", "flash_latent_share") if key in data}
    if base is None:
        return KernelEfficiency(**values)
    # Those two are of the generation's levels: beside a level of the device's own they say nothing.
    if "gemm_fraction" in data and "burst_fraction" not in data:
        values["burst_fraction"] = 0.0
        for name in ("gemm_fraction_fp32", "gemm_fraction_fp8", "gemm_fraction_fp4"):
            values.setdefault(name, round(getattr(base, name) * base.sustained_clock, 10))
    if "power_w_per_tflop" in data:
        values.setdefault("power_fixed_w", 0.0)  # the generation's belongs to its own reference
    if "flash_forward_fraction" in data:
        values.setdefault("flash_trained_share", 1.0)
    if "source" in values:
        values["source"] = f"{values['source']}; all else as its generation: {base.source}"
    return replace(base, **values)


def _columns(data: Mapping[str, Any], *keys: str) -> list[tuple[Any, ...]]:
    """Rows of lists that belong together.

    Raises:
        InputError: lists of different lengths.
    """
    lists = [data.get(key, []) for key in keys]
    if len({len(one) for one in lists}) > 1:
        said = ", ".join(f"{len(one)} of {key}" for key, one in zip(keys, lists, strict=True))
        raise InputError(
            what=f"lists of different lengths: {said}",
            why="entries at one place of these lists belong together",
            fix=f"give the same number of each: {', '.join(keys)}",
            field=keys[0],
            code="MW212",
        )
    return list(zip(*lists, strict=True))


def _node(node: Mapping[str, Any]) -> NodeDefaults:
    devices = node.get("devices", _DEFAULT_NODE_DEVICES)
    linked = "scaleup_gb_s" in node
    numbers = {
        field: value * scale
        for key, field, scale, default in NODE_NUMBERS
        if (value := node.get(key, default)) is not None
    }
    numbers.setdefault("scaleup_bytes_per_s", numbers["host_bytes_per_s"])
    return NodeDefaults(
        devices_per_node=devices,
        scaleup_domain=node.get("scaleup_domain", devices if linked else 1),
        scaleup_name=node.get("scaleup_name", "scale-up link" if linked else "PCIe4 x16"),
        scaleup_in_switch_efficiency=node.get("scaleup_in_switch_efficiency", 0.0),
        scaleup_topology=node.get("scaleup_topology", "switch"),
        host_name=node.get("host_name", "PCIe4 x16"),
        fabric_name=node.get("fabric_name", "fabric"),
        fabric_shared=node.get("fabric_shared", False),
        scaleup_protocols=_protocols(node),
        provenance=_provenance(
            node,
            node.get("source", {}),
            [
                *((key, field) for key, field, _, _ in NODE_NUMBERS),
                ("devices", "devices_per_node"),
                ("scaleup_domain", "scaleup_domain"),
            ],
            present=set(node),
        ),
        **numbers,
    )


def _protocols(node: Mapping[str, Any]) -> LinkProtocols | None:
    stated = {field: node[key] * scale for key, field, scale in PROTOCOL_NUMBERS if key in node}
    missing = [key for key, *_ in PROTOCOL_NUMBERS if key not in node]
    if stated and missing:
        raise InputError(
            what=f"some numbers of the link's protocols are missing: {', '.join(missing)}",
            why="they are fitted together to timed collectives, and none of them has a default",
            fix="give all of them, or none",
            field=missing[0],
            code="MW212",
        )
    return LinkProtocols(**stated) if stated else None


def _provenance(
    record: Mapping[str, Any],
    sources: Mapping[str, Mapping[str, Any]],
    fields: Iterable[tuple[str, str]],
    *,
    present: set[str],
) -> tuple[tuple[str, Provenance], ...]:
    said = {key: Provenance(**entry) for key, entry in sources.items()}
    stated = said.get("default") or Provenance(basis="assumed", source="device file without a source")
    default = Provenance(basis="assumed", source="default of device files")
    return tuple((field, said.get(key, stated if key in present else default)) for key, field in fields)


def copy_device_file(path: str | Path, folder: Path, name: str, *, replace_existing: bool) -> Path:
    """Put a device file into a library folder under the device's name, whole or not at all.

    Raises:
        InputError: the folder cannot be written, or it already has this device.
    """
    text = read_text(path, "device file")
    suffix = Path(path).suffix.lower()
    target = folder / f"{name}{suffix if suffix in SUFFIXES else '.toml'}"
    present = [folder / f"{name}{other}" for other in SUFFIXES if (folder / f"{name}{other}").exists()]
    if present and not replace_existing:
        raise InputError(
            what=f"the library already has a device {name!r}",
            why=f"{present[0]} exists",
            fix="give the device another name, or add it with --force",
            field="name",
            code="MW213",
        )
    from meshwright.formats.writing import write_file

    write_file(target, text, make_folder=True)
    for other in present:
        if other != target:
            other.unlink()
    return target
