"""`profile`: this machine's own device, measured into a device file that plans can be made for."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any

from meshwright.calibrate.curves import DeviceCurves, Timings, fit_curves
from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError
from meshwright.formats.device_writing import device_text
from meshwright.formats.writing import check_file, write_file
from meshwright.library.devices import device, kernel_efficiency
from meshwright.specs.device import Basis, DeviceSpec, NodeDefaults, Provenance
from meshwright.units import GIGA, MICRO, TERA

if TYPE_CHECKING:
    from rich.console import RenderableType

    from meshwright.runtime.timings import Machine

SECONDS = 60.0
LEAST_SECONDS = 5.0
_GENERATIONS = {"cpu": "cpu", "tpu": "tpu"}
"""Generation of devices that the library does not know, by platform; GPUs take the newest it knows."""
_UNKNOWN_GPU = "hopper"
HOST_BYTES_PER_S = 24.0 * GIGA
"""Bandwidth between a device and its host where the library does not know the device."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Profile:
    """What was measured, and the device that it makes."""

    machine: Machine
    timings: Timings
    curves: DeviceCurves
    device: DeviceSpec
    base: str
    """The library's device whose peaks and links stand where nothing was measured; empty for none."""
    seconds: float

    @property
    def text(self) -> str:
        """The device file."""
        return device_text(self.device)

    def to_dict(self) -> dict[str, Any]:
        """As data: `meshwright.profile/1`."""
        machine = self.machine
        return {
            "schema": "meshwright.profile/1",
            "machine": {
                "kind": machine.kind,
                "platform": machine.platform,
                "devices": machine.devices,
                "memory_bytes": machine.memory_bytes,
                "units": machine.units,
            },
            "base": self.base or None,
            "launch_s": self.curves.launch_s,
            "peak_flop_per_s": dict(self.curves.peak_flop_per_s),
            "memory_bytes_per_s": self.curves.memory_bytes_per_s,
            "curves": [
                {"name": c.name, **dict(c.numbers), "points": c.points, "median_error": c.median_error}
                for c in self.curves.curves
            ],
            "device_file": self.text,
            "timing": {"profile_s": self.seconds},
        }

    def __repr__(self) -> str:
        return f"Profile({self.device.name}: {self.machine.kind})"

    def __rich__(self) -> RenderableType:
        from rich.text import Text

        from meshwright.report.words.profile import profile_lines

        return Text("\n".join(profile_lines(self.to_dict())))


def profile(
    output: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    seconds: float = SECONDS,
    tell: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Measure this machine's first device and its links to the others.

    Args:
        output: the output where the device file goes; nothing is written without it.
        name: the name of the device; without it one made of what JAX calls it.
        seconds: the seconds to spend, at least.
        tell: called with what is being timed.

    Returns:
        The numbers, how well our formulas draw the measured curves with them, and the device file.

    Raises:
        InputError: a name that no device can have, too little time, or a path that cannot be written.
        UnsupportedError: JAX or scipy is not installed.
    """
    import time

    problems = []
    if not seconds >= LEAST_SECONDS:
        problems.append(
            Problem(
                what=f"--seconds {seconds:g}",
                why=f"a profile needs at least {LEAST_SECONDS:g}",
                fix=f"--seconds {SECONDS:g}",
                field="seconds",
            )
        )
    if name is not None and not _is_name(name):
        problems.append(
            Problem(
                what=f"--name {name[:80]!r}",
                why="a name has up to 64 letters, digits and . - + _, and starts with a letter or digit",
                fix="--name my-gpu",
                field="name",
            )
        )
    if problems:
        raise InputError(problems)
    if output is not None:
        check_file(os.fspath(output))
    _needs("jax")
    _needs("scipy")
    from meshwright.runtime.timings import this_machine, time_kernels

    started = time.perf_counter()
    machine = this_machine()
    known = _known(machine.kind)
    timings = time_kernels(seconds, tell)
    base = known or assumed_device(machine)
    nominal = dict(known.peak_flop_per_s) if known else {}
    if "tf32" in nominal:
        nominal["fp32"] = nominal["tf32"]
    curves = fit_curves(timings, base.efficiency, base.units, nominal)
    own = name or _name(machine.kind)
    found = Profile(
        machine=machine,
        timings=timings,
        curves=curves,
        device=_measured(base, own, machine, curves, known=known is not None),
        base=known.name if known else "",
        seconds=time.perf_counter() - started,
    )
    if output is not None:
        write_file(os.fspath(output), found.text)
    return found


def _measured(base: DeviceSpec, name: str, machine: Machine, curves: DeviceCurves, *, known: bool) -> DeviceSpec:
    """The base with every number that was measured."""
    said = Provenance(basis="measured", source=f"meshwright profile on {machine.kind}", date=date.today().isoformat())
    fractions, efficiency = dict(curves.gemm_fraction), base.efficiency
    bandwidth = base.memory_bandwidth_bytes_per_s if known else curves.memory_bytes_per_s
    basis: Basis = "measured"
    efficiency = replace(
        efficiency,
        gemm_fraction=min(1.0, fractions.get("bf16", efficiency.gemm_fraction)),
        gemm_fraction_fp32=min(1.0, fractions.get("fp32", efficiency.gemm_fraction_fp32)),
        k_half=curves.k_half,
        products=(),
        flash_forward_fraction=curves.flash_forward_fraction,
        flash_backward_fraction=curves.flash_backward_fraction,
        flash_keys_half=curves.flash_keys_half,
        memory_fraction=min(1.0, curves.memory_bytes_per_s / bandwidth),
        launch_s=curves.launch_s,
        basis=basis,
        source=said.source,
    )
    peaks = base.peak_flop_per_s if known else curves.peak_flop_per_s
    measured = () if known else (("peak_flop_per_s", said), ("memory_bandwidth_bytes_per_s", said))
    kept = [(field, given) for field, given in base.provenance if field not in dict(measured)]
    return replace(
        base,
        name=name,
        aliases=(),
        peak_flop_per_s=peaks,
        memory_bytes=machine.memory_bytes,
        memory_bandwidth_bytes_per_s=bandwidth,
        efficiency=efficiency,
        provenance=(*kept, *measured),
        node=_node(base.node, machine, curves, said),
    )


def _node(node: NodeDefaults | None, machine: Machine, curves: DeviceCurves, said: Provenance) -> NodeDefaults | None:
    if node is None or curves.link_bytes_per_s is None or curves.link_latency_s is None:
        return node
    fields = ("devices_per_node", "scaleup_domain", "scaleup_bytes_per_s", "scaleup_latency_s")
    kept = [(field, given) for field, given in node.provenance if field not in fields]
    return replace(
        node,
        devices_per_node=machine.devices,
        scaleup_domain=machine.devices,
        scaleup_bytes_per_s=curves.link_bytes_per_s,
        scaleup_efficiency=1.0,
        scaleup_latency_s=curves.link_latency_s,
        provenance=(*kept, *((field, said) for field in fields)),
    )


def assumed_device(machine: Machine) -> DeviceSpec:
    """A device nobody has described: what is not measured is assumed.

    Args:
        machine: the machine where it is.
    """
    assumed = Provenance(basis="assumed", source="not known of this device, and not measured")
    return DeviceSpec(
        name=_name(machine.kind),
        vendor="",
        year=0,
        peak_flop_per_s=(("fp32", TERA),),
        memory_bytes=machine.memory_bytes,
        memory_bandwidth_bytes_per_s=GIGA,
        units=machine.units,
        host_bandwidth_bytes_per_s=HOST_BYTES_PER_S,
        efficiency=kernel_efficiency(_GENERATIONS.get(machine.platform, _UNKNOWN_GPU)),
        provenance=(("host_bandwidth_bytes_per_s", assumed),),
        node=NodeDefaults(
            devices_per_node=machine.devices,
            scaleup_domain=machine.devices,
            scaleup_name="between devices",
            scaleup_bytes_per_s=31.5 * GIGA,
            scaleup_efficiency=0.8,
            scaleup_latency_s=5.7 * MICRO,
            scaleup_in_switch_efficiency=0.0,
            host_name="PCIe4 x16",
            host_bytes_per_s=31.5 * GIGA,
            fabric_name="fabric",
            fabric_bytes_per_s=25.0 * GIGA,
            fabric_efficiency=0.9,
            fabric_latency_s=14.0 * MICRO,
            provenance=tuple((field, assumed) for field in ("scaleup_bytes_per_s", "fabric_bytes_per_s")),
        ),
    )


def _known(kind: str) -> DeviceSpec | None:
    try:
        return device(kind)
    except MeshwrightError:
        return None


def _name(kind: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9]+", "-", kind).strip("-") or "device"
    return f"{plain[:48]}-measured"


def _is_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", name) is not None


def _needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise UnsupportedError(
            what=f"{module} is not installed",
            why="kernels are timed with JAX, and curves fitted with scipy, which comes with it",
            fix="pip install 'meshwright[jax]'",
            code="MW405",
        )
