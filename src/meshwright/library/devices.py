"""The accelerators that are known by name: those that come with the package and those a user added.

`memory_bytes` is what the framework sees (torch.cuda.get_device_properties, the limit XLA prints), not the size on the
box, which counts GiB and calls them GB: an 80 GB H100 shows 79.1 GiB. The driver's context is not subtracted.

A user's devices are files in the folder `devices` of the directory that MESHWRIGHT_LIBRARY names; one with the name of
a built-in device takes its place.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.errors import InputError, Problem, UnsupportedError, nearest, unknown_name
from meshwright.formats.device_file import (
    SUFFIXES,
    copy_device_file,
    device_spec,
    efficiency_record,
    read_device_file,
)
from meshwright.library.calibration import LIBRARY_VARIABLE
from meshwright.library.calibration import calibration as calibration_of
from meshwright.specs.calibration import Calibration
from meshwright.specs.device import Basis, DeviceSpec, KernelEfficiency
from meshwright.units import GIB, GIGA, MICRO, TERA

if TYPE_CHECKING:
    from meshwright.formats.device_lint import LintFinding

_DATA = Path(__file__).parent / "data"
_MAKERS = re.compile(r"\b(nvidia|amd|instinct|geforce|tesla|google|cloud|intel|habana|huawei|aws|amazon|gpu)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedDevice:
    """What `add_device` did."""

    device: DeviceSpec
    path: Path
    findings: tuple[LintFinding, ...]


def device(name: str, memory_gb: float | None = None, calibration: Calibration | None = None) -> DeviceSpec:
    """The device of a name or alias, whatever its case, punctuation and maker's prefix.

    Args:
        name: `H100`, `A100 SXM4 80GB`, `nvidia_a100-sxm4-80gb`, ...; a cloud provider's machine type, such as
            `p5.48xlarge`, is its device in nodes of that type.
        memory_gb: size on the box where the name leaves it open: `A100` with 40 is A100-40.
        calibration: what its kernels were fitted to; the library's own by default.

    Raises:
        UnsupportedError: nobody knows this name.
        InputError: a user's device file of this name cannot be read.
    """
    known = calibration_of(calibration)
    found = _find(name, known)
    if memory_gb is None or abs(found.memory_bytes / GIB / memory_gb - 1) <= 0.08:
        return found
    family = re.sub(r"-[0-9]{2,3}$", "", found.name)
    sizes = re.compile(rf"{re.escape(family)}(-[0-9]{{2,3}})?")
    siblings = [sibling for sibling in devices(known) if sizes.fullmatch(sibling.name)]
    fitting = [one for one in siblings if abs(one.memory_bytes / GIB / memory_gb - 1) <= 0.04]
    return fitting[0] if fitting else found


def is_device(name: str) -> bool:
    """Whether a built-in device has this name or alias."""
    return plain_name(name) in _index()


def device_names() -> tuple[str, ...]:
    """Names of all devices, built-in ones first."""
    own = tuple(path.stem for path in _own_files())
    return (*(name for name in _aliases() if name not in own), *own)


def devices(calibration: Calibration | None = None) -> tuple[DeviceSpec, ...]:
    """All devices, in the order of their names; `calibration` as `device` takes it."""
    known = calibration_of(calibration)
    return tuple(_find(name, known) for name in device_names())


def larger_devices(memory_bytes: float, vendor: str, calibration: Calibration | None = None) -> tuple[DeviceSpec, ...]:
    """Devices of a maker with more memory than so much, out of `devices`; files of others are not read to the end.

    Args:
        memory_bytes: the bytes of memory of the device that is too small.
        vendor: the vendor as device files spell it.
        calibration: the calibration as `device` takes it.
    """
    known = calibration_of(calibration)
    own = {path.stem for path in _own_files()}
    wanted = []
    for name in device_names():
        if name not in own:
            head = _head(name)
            if head.get("vendor", "") != vendor or head["memory_gib"] * GIB <= memory_bytes:
                continue
        wanted.append(_find(name, known))
    return tuple(one for one in wanted if one.vendor == vendor and one.memory_bytes > memory_bytes)


def kernel_efficiency(generation: str, calibration: Calibration | None = None) -> KernelEfficiency:
    """How near the kernels of an architecture generation come to its peaks.

    Args:
        generation: `hopper`.
        calibration: what they were fitted to; the library's own by default.

    Raises:
        UnsupportedError: an unknown generation.
    """
    published = published_efficiency(generation)
    known = calibration_of(calibration)
    fitted = known.of("device", generation)
    if not fitted:
        return published
    source = f"{known.origin}; what is not fitted: {published.source}"
    return replace(published, basis="fitted", source=source, **fitted)  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def published_efficiency(generation: str) -> KernelEfficiency:
    """The same from the literature alone, without the fit to measured runs.

    Raises:
        UnsupportedError: an unknown generation.
    """
    if generation not in generations():
        raise UnsupportedError(unknown_name("generation", generation[:80], generations()), code="MW403")
    data = tomllib.loads((_DATA / "efficiency" / f"{generation}.toml").read_text("utf-8"))
    return replace(efficiency_record(data), generation=generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownAccelerator:
    """What to plan with where nothing is known about the devices."""

    name: str
    flop_per_s: float
    """Reached in products of matrices."""
    link_bytes_per_s: float
    """Out of one device, in one direction."""
    link_latency_s: float
    """Latency of one collective."""
    launch_s: float
    """Start of one kernel."""
    basis: Basis
    source: str


@lru_cache(maxsize=1)
def unknown_accelerator() -> UnknownAccelerator:
    """The assumed device of the library; answers that rest on it name it."""
    data = tomllib.loads((_DATA / "unknown_accelerator.toml").read_text("utf-8"))
    return UnknownAccelerator(
        name=data["name"],
        flop_per_s=data["tflops"] * TERA,
        link_bytes_per_s=data["link_gb_s"] * GIGA,
        link_latency_s=data["link_latency_us"] * MICRO,
        launch_s=data["launch_us"] * MICRO,
        basis=data["basis"],
        source=data["source"],
    )


@lru_cache(maxsize=1)
def generations() -> tuple[str, ...]:
    """Architecture generations with efficiencies of their own."""
    return tuple(sorted(path.stem for path in (_DATA / "efficiency").glob("*.toml")))


def lint_device_file(path: str | Path) -> tuple[DeviceSpec, tuple[LintFinding, ...]]:
    """A user's device file as a device, and what looks wrong with its numbers.

    Raises:
        InputError: the file or its keys cannot be used.
        UnsupportedError: an unknown generation.
    """
    from meshwright.formats.device_lint import LintFinding, lint_device

    record = read_device_file(path)
    spec = device_spec(record, kernel_efficiency)
    findings = lint_device(record, devices())
    taken = [name for name in (spec.name, *spec.aliases) if plain_name(name) in _index()]
    if taken:
        findings.append(
            LintFinding(
                level="warning",
                field="name",
                message=f"{', '.join(taken)} already names {_index()[plain_name(taken[0])]}",
                suggestion="a name replaces the built-in device, an alias does not; choose another to keep both",
            )
        )
    return spec, tuple(findings)


def add_device(path: str | Path, library_dir: str | Path | None = None, *, force: bool = False) -> AddedDevice:
    """Check a user's device file and copy it into the library directory, whole or not at all.

    Args:
        path: the device file.
        library_dir: directory of the user's library; without it the one MESHWRIGHT_LIBRARY names.
        force: add it in spite of the linter's errors and replace a device of the same name.

    Raises:
        InputError: the file cannot be used, the linter finds errors, or no directory is named or writable.
        UnsupportedError: an unknown generation.
    """
    spec, findings = lint_device_file(path)
    errors = [finding for finding in findings if finding.level == "error"]
    if errors and not force:
        raise InputError(
            [
                Problem(
                    what=f"device {spec.name}: {finding.message}",
                    why="the number cannot be right as it stands",
                    fix=f"{finding.suggestion}; or add it as it is with --force",
                    field=finding.field,
                )
                for finding in errors
            ],
            code="MW214",
        )
    library = library_dir if library_dir is not None else os.environ.get(LIBRARY_VARIABLE)
    if not library:
        raise InputError(
            what="no library directory is named",
            why="devices are written only where you say",
            fix=f"give a directory, or set {LIBRARY_VARIABLE}",
            code="MW213",
        )
    target = copy_device_file(path, Path(library) / "devices", spec.name, replace_existing=force)
    return AddedDevice(device=spec, path=target, findings=findings)


def plain_name(name: str) -> str:
    """A name without case, punctuation and maker: `NVIDIA A100-SXM4-80GB` is `a100sxm480gb`."""
    return re.sub(r"[^a-z0-9]", "", _MAKERS.sub("", name.lower().replace("_", " ")))


def _find(name: str, calibration: Calibration) -> DeviceSpec:
    key = plain_name(name)
    own = _own_files()
    for path in own:
        if plain_name(path.stem) == key:
            return _own(path, path.stat().st_mtime_ns, calibration)
    if key in _index():
        return _built_in(_index()[key], calibration)
    for path in own:
        spec = _own(path, path.stat().st_mtime_ns, calibration)
        if key in map(plain_name, (spec.name, *spec.aliases)):
            return spec
    from meshwright.library.instances import in_instance, instance, instances  # of names that no device has

    machine = instance(name)
    if machine is not None:
        return in_instance(_find(machine.device, calibration), machine)
    names = [*_aliases(), *(alias for aliases in _aliases().values() for alias in aliases)]
    names += [*(path.stem for path in own), *(one.name for one in instances())]
    # Of several names of one device the first is enough.
    close = dict.fromkeys(_index().get(plain_name(one), one) for one in nearest(name[:80], names))
    problem = unknown_name(
        "device", name[:80], close, remedy="`meshwright gpus list` shows all; a file adds one (MESHWRIGHT_LIBRARY)"
    )
    raise UnsupportedError(problem, code="MW402")


@lru_cache(maxsize=1)
def _aliases() -> dict[str, list[str]]:
    content: dict[str, list[str]] = json.loads((_DATA / "devices" / "aliases.json").read_text("utf-8"))
    return content


@lru_cache(maxsize=1)
def _index() -> dict[str, str]:
    return {plain_name(alias): name for name, aliases in _aliases().items() for alias in (name, *aliases)}


@lru_cache(maxsize=256)
def _built_in(name: str, calibration: Calibration) -> DeviceSpec:
    data = tomllib.loads((_DATA / "devices" / f"{name}.toml").read_text("utf-8"))
    spec = device_spec(data, partial(kernel_efficiency, calibration=calibration))
    return replace(spec, aliases=tuple(_aliases()[name]))


@lru_cache(maxsize=256)
def _head(name: str) -> dict[str, Any]:
    """The first keys of a built-in device: all but its node and its sources."""
    return tomllib.loads((_DATA / "devices" / f"{name}.toml").read_text("utf-8").partition("\n[")[0])


@lru_cache(maxsize=256)
def _own(path: Path, modified_ns: int, calibration: Calibration) -> DeviceSpec:
    return device_spec(read_device_file(path), partial(kernel_efficiency, calibration=calibration))


def _own_files() -> list[Path]:
    library = os.environ.get(LIBRARY_VARIABLE)
    if not library:
        return []
    folder = Path(library) / "devices"
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    except OSError:
        return []
