"""The devices that workers in other processes own: what JAX and Ray call them, and how each worker gets its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax

from meshwright.errors import InputError, Problem, UnsupportedError, unknown_name
from meshwright.library.devices import device as library_device

CPU = "cpu"
PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda", "rocm": "rocm", "tpu": "tpu"}
"""JAX's name of what users name; `gpu` is NVIDIA's."""
VENDORS = {"NVIDIA": "cuda", "AMD": "rocm", "Google": "tpu"}
"""Platform of a device of the library."""
VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_CHIPS"}
"""What tells a process which devices of its machine it may use."""
CHIPS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
"""How a TPU process is told the arrangement of so many chips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDevices:
    """What one worker owns."""

    platform: str = CPU
    """Platform of the devices in JAX."""
    kind: str = ""
    """Name of the device in the library, where it is said; Ray then looks for nodes that have it."""

    @classmethod
    def of(cls, name: str) -> WorkerDevices:
        """What a name means.

        Args:
            name: cpu, gpu, rocm, tpu, or a device of the library.

        Raises:
            InputError: it is no such name.
        """
        if name in PLATFORMS:
            return cls(platform=PLATFORMS[name])
        try:
            known = library_device(name)
        except UnsupportedError:
            raise InputError(unknown_name("worker_devices", name, sorted(PLATFORMS))) from None
        if known.vendor not in VENDORS:
            raise InputError(
                Problem(
                    what=f'worker_devices = "{name}", of {known.vendor}',
                    field="worker_devices",
                    why=f"JAX runs here on devices of {', '.join(VENDORS)}",
                    fix='worker_devices="cpu"',
                )
            )
        return cls(platform=VENDORS[known.vendor], kind=known.name)

    def resources(self, count: int) -> dict[str, float]:
        """What Ray sets aside for a worker beside processors.

        Args:
            count: devices of the worker.
        """
        if self.platform == CPU:
            return {}
        if self.platform == "tpu":
            return {"TPU": count}
        return {"GPU": count} | ({f"accelerator_type:{name}": 0.001} if (name := self.accelerator_type) else {})

    @property
    def accelerator_type(self) -> str:
        """Ray's name of the kind, which knows no sizes of memory; empty where it is not said or goes by another."""
        return self.kind.partition("-")[0] if self.platform == "cuda" else ""

    def environment(self, given: Mapping[str, str], count: int, first: int | None) -> dict[str, str]:
        """What a worker has in its environment before JAX starts.

        Args:
            given: environment of the driver, whose other settings for XLA are kept.
            count: devices of the worker.
            first: the number of its first device among those of its machine that the driver may use; None where Ray
                says which.

        Raises:
            InputError: the driver may use fewer devices, or a TPU process cannot have so many.
        """
        flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", given.get("XLA_FLAGS", "")).split()
        shared = {
            "JAX_ENABLE_X64": str(int(jax.config.jax_enable_x64)),
            # Devices of one computation wait for each other: with fewer threads than devices they would for ever.
            "NPROC": given.get("NPROC", "64"),
        }
        if self.platform == CPU:
            counted = f"--xla_force_host_platform_device_count={count}"
            return {"JAX_PLATFORMS": CPU, "XLA_FLAGS": " ".join([*flags, counted]), **shared}
        # The host as a second platform: what is fed and fetched lies there.
        own = {"JAX_PLATFORMS": f"{self.platform},{CPU}", "XLA_FLAGS": " ".join(flags), **shared}
        if first is None:
            return own
        own[VISIBLE[self.platform]] = ",".join(self._visible(given, count, first))
        if self.platform == "tpu":
            own |= {"TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": _bounds(count)}
        return own

    def _visible(self, given: Mapping[str, str], count: int, first: int) -> list[str]:
        """Numbers of a worker's devices, among those that the driver was given where it was given some."""
        listed = given.get(VISIBLE[self.platform], "")
        if not listed:
            return [str(number) for number in range(first, first + count)]
        mine = listed.split(",")[first : first + count]
        if len(mine) < count:
            raise InputError(
                Problem(
                    what=f"workers own {first + count} devices or more, and {VISIBLE[self.platform]}={listed}",
                    why="every device has one worker",
                    fix="a method for fewer devices, or list more",
                    field="worker_devices",
                )
            )
        return mine


def owned_by(named: str | Sequence[str], workers: int, hosts: int) -> list[WorkerDevices]:
    """What every worker owns.

    Args:
        named: the devices named for all workers, or by mesh.
        workers: the number of workers in all.
        hosts: the number of hosts that share each mesh.

    Raises:
        InputError: a name that is not known, or names for other meshes.
    """
    names = [named] * (workers // hosts) if isinstance(named, str) else list(named)
    if len(names) * hosts != workers:
        raise InputError(
            Problem(
                what=f"worker_devices names {len(names)} kinds for {workers // hosts} meshes",
                why="each mesh has one kind",
                fix="one name, or as many as meshes",
                field="worker_devices",
            )
        )
    return [WorkerDevices.of(name) for name in names for _ in range(hosts)]


def worker_environments(
    owned: Sequence[WorkerDevices], counts: Sequence[int], given: Mapping[str, str], *, here: bool
) -> list[dict[str, str]]:
    """What each worker is started with.

    Args:
        owned: the devices that each worker owns.
        counts: devices of each.
        given: environment of the driver.
        here: whether all are processes of this machine, which share out its devices in order.
    """
    first: dict[str, int] = {}
    found = []
    for own, count in zip(owned, counts, strict=True):
        at = first.get(own.platform, 0)
        found.append(own.environment(given, count, at if here else None))
        first[own.platform] = at + count
    return found


def _bounds(count: int) -> str:
    if count not in CHIPS:
        raise InputError(
            Problem(
                what=f"a TPU worker of {count} chips",
                why=f"a process has {', '.join(map(str, CHIPS))} of them",
                fix="meshes of 4 chips",
                field="worker_devices",
            )
        )
    return CHIPS[count]
