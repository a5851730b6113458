"""What is probably wrong with the numbers of a device file: sparse peaks, bits for bytes, GB for GiB, wrong prefixes.

Each mistake multiplies a number by a known factor, so each is recognised by that factor: against the device's other
numbers, against what hardware can be, and against the most similar device that is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from meshwright.errors import nearest
from meshwright.formats.device_file import PEAK_KEYS
from meshwright.specs.device import DeviceSpec
from meshwright.units import GIB, GIGA, TERA, significant

GB_IN_GIB = GIGA / GIB
"""0.931: a size in GiB over the same size in GB."""

# FLOP per byte of memory traffic at which 16-bit peaks of accelerators for training balance: outside the first range a
# number deserves a second look, outside the second it is wrong. H20 has 37, H100 295, TPU v6e 560.
_INTENSITY_USUAL = (50.0, 1000.0)
_INTENSITY_POSSIBLE = (20.0, 2500.0)
_MAX_MEMORY_GB_S = 30_000.0
_NOMINAL_GIB = (8, 10, 11, 12, 16, 20, 22, 24, 32, 40, 44, 45, 48, 64, 72, 80, 94, 95, 96, 112, 120, 128, 141, 144)
_NOMINAL_GIB_LARGE = (180, 186, 192, 256, 268, 270, 277, 279, 288, 384, 432, 512, 576, 1024)
_NIC_GB_S = (25.0, 50.0, 100.0, 125.0)
_NIC_GBIT_S = (100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0)


PROCESSOR = "cpu"
"""Generation of general-purpose processors, whose numbers are of another size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """One number that is, or may be, wrong."""

    level: Literal["error", "warning"]
    field: str
    message: str
    suggestion: str


def lint_device(record: Mapping[str, Any], known: Iterable[DeviceSpec] = ()) -> list[LintFinding]:
    """Everything suspicious in a device record, errors first.

    Args:
        record: checked keys of a device file.
        known: devices to compare with.

    Returns:
        findings; an error means that the numbers cannot be right.
    """
    accelerator = record.get("generation") != PROCESSOR
    findings = [*_prefixes(record), *_ratios(record), *_memory(record), *_links(record)] if accelerator else []
    wrong = {finding.field for finding in findings if finding.level == "error"}
    if accelerator and not wrong & {*PEAK_KEYS, "memory_gb_s"}:
        findings += _intensity(record)
    similar = _most_similar(record, list(known)) if accelerator else None
    if similar is not None:
        findings += [finding for finding in _against(record, similar) if finding.field not in wrong]
    if not record.get("source"):
        findings.append(
            LintFinding(
                level="warning",
                field="source",
                message="no source is given",
                suggestion='add [source] default = { basis = "datasheet", source = "...", date = "..." }',
            )
        )
    if "units" not in record:
        findings.append(
            LintFinding(
                level="warning",
                field="units",
                message="the number of multiprocessors, compute units or cores is not given; 100 is assumed",
                suggestion="add units, so that small matrix products are priced right",
            )
        )
    return sorted(findings, key=lambda finding: finding.level)


def _number(value: float) -> str:
    return significant(value, 4)


def _error(field: str, message: str, suggestion: str) -> LintFinding:
    return LintFinding(level="error", field=field, message=message, suggestion=suggestion)


def _prefixes(record: Mapping[str, Any]) -> list[LintFinding]:
    """Wrong by thousands: FLOP/s or GFLOP/s for TFLOP/s, PFLOP/s, TB/s or bytes/s for GB/s, MiB or bytes for GiB."""
    findings = []
    for key in PEAK_KEYS:
        value = record.get(key)
        if value is None:
            continue
        for unit, factor in (("FLOP/s", 1e12), ("MFLOP/s", 1e6), ("GFLOP/s", 1e3)):
            if value / factor >= 1 and value > 1e5:
                message = f"{key} = {value:.6g} TFLOP/s is more than any device has; it looks like {unit}"
                findings.append(_error(key, message, f"{key} = {_number(value / factor)}"))
                break
        else:
            if value < 4 and key in ("bf16_tflops", "fp16_tflops", "fp8_tflops", "fp4_tflops"):
                message = f"{key} = {value:.6g} TFLOP/s is too little for matrix units; it looks like PFLOP/s"
                findings.append(_error(key, message, f"{key} = {_number(value * 1e3)}"))
    bandwidth = record["memory_gb_s"]
    if bandwidth < 20:
        message = f"memory_gb_s = {bandwidth:.6g} GB/s is too slow for device memory; it looks like TB/s"
        findings.append(_error("memory_gb_s", message, f"memory_gb_s = {_number(bandwidth * 1e3)}"))
    elif bandwidth >= 1e9:
        message = f"memory_gb_s = {bandwidth:.6g} looks like bytes/s"
        findings.append(_error("memory_gb_s", message, f"memory_gb_s = {_number(bandwidth / 1e9)}"))
    elif bandwidth > _MAX_MEMORY_GB_S:
        unit, factor = ("MB/s", 1e3) if bandwidth > 8 * _MAX_MEMORY_GB_S else ("Gb/s (bits)", 8.0)
        message = f"memory_gb_s = {bandwidth:.6g} GB/s is more than any device has; it looks like {unit}"
        findings.append(_error("memory_gb_s", message, f"memory_gb_s = {_number(bandwidth / factor)}"))
    return findings


def _ratios(record: Mapping[str, Any]) -> list[LintFinding]:
    """Peaks of one device against each other: halving the width doubles a dense peak, and so does sparsity."""
    findings: list[LintFinding] = []
    half = record.get("bf16_tflops") or record.get("fp16_tflops")
    if not half:
        return findings

    def is_ratio(wide: str, narrow: float, wanted: float) -> bool:
        value = record.get(wide)
        return value is not None and 0.95 * wanted <= narrow / value <= 1.05 * wanted

    key = "bf16_tflops" if "bf16_tflops" in record else "fp16_tflops"
    sparse = "a dense peak doubles with each halving of the width; this looks like the figure with sparsity"
    bf16, fp16, fp8 = record.get("bf16_tflops"), record.get("fp16_tflops"), record.get("fp8_tflops")
    if bf16 and fp16 and is_ratio("fp16_tflops", bf16, 2):
        findings.append(_error("bf16_tflops", f"bf16 is twice fp16: {sparse}", f"bf16_tflops = {_number(bf16 / 2)}"))
    elif bf16 and fp16 and is_ratio("bf16_tflops", fp16, 2):
        findings.append(_error("fp16_tflops", f"fp16 is twice bf16: {sparse}", f"fp16_tflops = {_number(fp16 / 2)}"))
    elif is_ratio("tf32_tflops", half, 4):
        findings.append(_error(key, f"{key} is four times tf32: {sparse}", f"{key} = {_number(half / 2)}"))
    elif is_ratio("tf32_tflops", half, 1):
        tf32 = record["tf32_tflops"]
        findings.append(
            _error("tf32_tflops", f"tf32 equals the 16-bit peak: {sparse}", f"tf32_tflops = {_number(tf32 / 2)}")
        )
    if fp8 and 3.8 <= fp8 / half <= 4.2:
        findings.append(
            _error("fp8_tflops", f"fp8 is four times the 16-bit peak: {sparse}", f"fp8_tflops = {_number(fp8 / 2)}")
        )
    elif fp8 and 0.95 <= fp8 / half <= 1.05 and not findings:
        message = "fp8 equals the 16-bit peak; usually it is twice that: is the 16-bit figure the one with sparsity?"
        level: Literal["error", "warning"] = "warning" if record.get("generation") in ("gaudi", "tpu") else "error"
        findings.append(LintFinding(level=level, field=key, message=message, suggestion=f"{key} = {_number(half / 2)}"))
    fp4 = record.get("fp4_tflops")
    if fp4 and fp8 and fp4 / fp8 > 3.8:
        # Consumer cards halve fp8 with fp32 accumulation, so that their dense fp4 peak is four times it.
        findings.append(
            LintFinding(
                level="warning",
                field="fp4_tflops",
                message=f"fp4 is four times fp8: {sparse}",
                suggestion=f"fp4_tflops = {_number(fp4 / 2)}",
            )
        )
    return findings


def _memory(record: Mapping[str, Any]) -> list[LintFinding]:
    size = record["memory_gib"]
    if size >= 1e9:
        return [
            _error("memory_gib", f"memory_gib = {size:.6g} looks like bytes", f"memory_gib = {_number(size / GIB)}")
        ]
    if size > 4096:
        return [_error("memory_gib", f"memory_gib = {size:.6g} looks like MiB", f"memory_gib = {_number(size / 1024)}")]
    if size < 1:
        return [_error("memory_gib", f"memory_gib = {size:.6g} is too small", "give GiB")]
    nominal = (*_NOMINAL_GIB, *_NOMINAL_GIB_LARGE)
    # A framework sees 0.1 to 4% less than the size on the box, which counts GiB although it says GB.
    if any(size == box for box in nominal):
        return [
            LintFinding(
                level="warning",
                field="memory_gib",
                message=f"{size:g} is the size on the box; frameworks see about 1% less",
                suggestion=f"memory_gib = {_number(size * 0.99)}, or what torch.cuda.get_device_properties says",
            )
        ]
    if any(0.975 <= size / box < 1 for box in nominal):
        return []
    converted = size * GB_IN_GIB
    if any(0.985 <= converted / box <= 1.001 for box in nominal):
        message = f"memory_gib = {size:g} looks like GB: {size:g} GB are {_number(converted)} GiB"
        return [_error("memory_gib", message, f"memory_gib = {_number(converted)}")]
    return [
        LintFinding(
            level="warning",
            field="memory_gib",
            message=f"{size:g} GiB is not near a size that devices come in",
            suggestion="give the GiB that the framework sees",
        )
    ]


def _links(record: Mapping[str, Any]) -> list[LintFinding]:
    findings = []
    node = record.get("node", {})
    fabric = node.get("fabric_gb_s")
    if fabric is not None and fabric not in _NIC_GB_S and (fabric in _NIC_GBIT_S or fabric > 150):
        message = f"node.fabric_gb_s = {fabric:g} GB/s per device looks like Gb/s (bits)"
        findings.append(_error("node.fabric_gb_s", message, f"node.fabric_gb_s = {_number(fabric / 8)}"))
    scaleup = node.get("scaleup_gb_s")
    if scaleup is not None and scaleup > 4000:
        message = f"node.scaleup_gb_s = {scaleup:g} GB/s per device and direction looks like Gb/s (bits)"
        findings.append(_error("node.scaleup_gb_s", message, f"node.scaleup_gb_s = {_number(scaleup / 8)}"))
    host = record.get("host_gb_s")
    if host is not None and host > 1000:
        message = f"host_gb_s = {host:g} GB/s is more than any host link; it looks like Gb/s (bits)"
        findings.append(_error("host_gb_s", message, f"host_gb_s = {_number(host / 8)}"))
    if fabric is not None and scaleup is not None and scaleup < fabric:
        findings.append(
            LintFinding(
                level="warning",
                field="node.scaleup_gb_s",
                message="the scale-up link is slower than the fabric",
                suggestion="check both; each is per device and direction",
            )
        )
    return findings


def _intensity(record: Mapping[str, Any]) -> list[LintFinding]:
    """Peak over bandwidth: the FLOP a device must do per byte to be busy."""
    key = next((key for key in ("bf16_tflops", "fp16_tflops") if key in record), None)
    if key is None:
        return []
    intensity = record[key] * TERA / (record["memory_gb_s"] * GIGA)
    low, high = _INTENSITY_USUAL
    if low <= intensity <= high:
        return []
    floor, ceiling = _INTENSITY_POSSIBLE
    possible = floor <= intensity <= ceiling
    if intensity < low:
        suggestion = f"is memory_gb_s in bits? {_number(record['memory_gb_s'] / 8)} GB/s would be usual"
    else:
        suggestion = f"is {key} the sparse figure, or memory_gb_s in TB/s?"
    return [
        LintFinding(
            level="warning" if possible else "error",
            field="memory_gb_s" if intensity < low else key,
            message=f"{_number(intensity)} FLOP per byte of memory bandwidth; usual are {low:g} to {high:g}",
            suggestion=suggestion,
        )
    ]


def _most_similar(record: Mapping[str, Any], known: list[DeviceSpec]) -> DeviceSpec | None:
    """A known device of nearly this name, else one that shares memory size and bandwidth or units."""
    by_name = {device.name: device for device in known}
    close = [name for name in nearest(record["name"], by_name, count=3) if any(_agree(record, by_name[name])[:2])]
    if close:
        return by_name[close[0]]
    alike = [(shares, device) for device in known if (shares := sum(_agree(record, device))) >= 2]
    return max(alike, key=lambda pair: pair[0])[1] if alike else None


def _agree(record: Mapping[str, Any], device: DeviceSpec) -> list[bool]:
    """Whether memory size, bandwidth and units agree within 6%."""
    pairs = (
        (record["memory_gib"] * GIB, device.memory_bytes),
        (record["memory_gb_s"] * GIGA, device.memory_bandwidth_bytes_per_s),
        (record.get("units", 0), device.units),
    )
    return [abs(own - other) <= 0.06 * other for own, other in pairs]


def _against(record: Mapping[str, Any], device: DeviceSpec) -> list[LintFinding]:
    """Numbers that differ from a similar device by exactly the factor of a known mistake."""
    findings = []
    peaks = dict(device.peak_flop_per_s)
    for key, dtype in PEAK_KEYS.items():
        if key in record and dtype in peaks and dtype not in ("fp64", "fp32"):
            dense = peaks[dtype] / TERA
            if 1.85 <= record[key] / dense <= 2.15:
                message = f"{key} = {record[key]:g} is twice the dense peak of the similar {device.name}: with sparsity"
                findings.append(_error(key, message, f"{key} = {_number(record[key] / 2)}"))
    nominal = device.memory_bandwidth_bytes_per_s / GIGA
    if 7.6 <= record["memory_gb_s"] / nominal <= 8.4:
        message = f"memory_gb_s = {record['memory_gb_s']:g} is eight times that of the similar {device.name}: bits"
        findings.append(_error("memory_gb_s", message, f"memory_gb_s = {_number(record['memory_gb_s'] / 8)}"))
    visible = device.memory_bytes / GIB
    if abs(record["memory_gib"] / visible * GB_IN_GIB - 1) <= 0.004:
        size = record["memory_gib"] * GB_IN_GIB
        message = f"memory_gib = {record['memory_gib']:g} is the memory of the similar {device.name} in GB"
        findings.append(_error("memory_gib", message, f"memory_gib = {_number(size)}"))
    node = record.get("node", {})
    if device.node is not None:
        for key, own in (
            ("scaleup_gb_s", device.node.scaleup_bytes_per_s),
            ("fabric_gb_s", device.node.fabric_bytes_per_s),
        ):
            ratio = node.get(key, 0) * GIGA / own
            if 7.6 <= ratio <= 8.4:
                message = f"node.{key} = {node[key]:g} is eight times that of the similar {device.name}: bits"
                findings.append(_error(f"node.{key}", message, f"node.{key} = {_number(node[key] / 8)}"))
            elif 1.9 <= ratio <= 2.1:
                findings.append(
                    LintFinding(
                        level="warning",
                        field=f"node.{key}",
                        message=f"node.{key} = {node[key]:g} is twice that of the similar {device.name}",
                        suggestion="give one direction, not the sum of both",
                    )
                )
    return findings
