"""Where a program runs: in this process, in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import Mesh

from meshwright.compiler.instructions import StepProgram
from meshwright.errors import InputError, Problem, UnsupportedError, unknown_name
from meshwright.runtime.crew import Crew
from meshwright.runtime.local import LocalRuntime
from meshwright.runtime.remote import RemoteRuntime

BACKENDS = ("local", "processes", "ray")
TIMEOUT_S = 300.0
"""A worker that has not gone on to its next instruction by then hangs."""


def check_backend(backend: str, ray: str | None, timeout_s: float, hosts: int = 1) -> None:
    """Whether these go together.

    Args:
        backend: name.
        ray: address of a cluster.
        timeout_s: in which a worker goes on.
        hosts: that share each mesh.

    Raises:
        InputError: they do not, with every reason.
    """
    wrong = []
    if backend not in BACKENDS:
        wrong.append(unknown_name("backend", backend, BACKENDS))
    elif ray is not None and backend != "ray":
        wrong.append(Problem(what=f'ray = "{ray}" with backend = "{backend}"', why="only Ray has a cluster's address",
                             fix='backend="ray"', field="ray"))  # fmt: skip
    if hosts < 1 or (hosts > 1 and backend == "local"):
        wrong.append(Problem(what=f'hosts_per_mesh = {hosts} with backend = "{backend}"',
                             why="it counts the workers of a mesh from 1, and this process is one",
                             fix='backend="processes" or "ray", or hosts_per_mesh=1',
                             field="hosts_per_mesh"))  # fmt: skip
    if not timeout_s > 0:
        wrong.append(Problem(what=f"timeout_s = {timeout_s}", why="it is a time to wait", fix=f"timeout_s={TIMEOUT_S}",
                             field="timeout_s"))  # fmt: skip
    if wrong:
        raise InputError(wrong)


def runtime_of(
    program: StepProgram, meshes: Sequence[Mesh], backend: str, ray: str | None, timeout_s: float, hosts: int = 1
) -> LocalRuntime | RemoteRuntime:
    """What runs a program.

    Args:
        program: what to run.
        meshes: of devices of this process; workers elsewhere have meshes like them.
        backend: one of `BACKENDS`.
        ray: address of a cluster; one of this machine is started without it.
        timeout_s: in which a worker goes on to its next instruction, or counts as hung.
        hosts: that share each mesh.

    Raises:
        InputError: the devices of a mesh cannot be shared out among its hosts.
        UnsupportedError: workers with other devices than CPUs.
    """
    if backend == "local":
        return LocalRuntime(program, meshes)
    kinds = {device.platform for mesh in meshes for device in mesh.devices.flat}
    if kinds != {"cpu"}:
        raise UnsupportedError(
            Problem(what=f'backend = "{backend}" on devices of kind {", ".join(sorted(kinds))}',
                    why="the driver holds these devices, and workers in other processes cannot have them too",
                    fix='backend="local", or CPU devices', field="backend")
        )  # fmt: skip

    uneven = [(number, mesh.size) for number, mesh in enumerate(meshes) if mesh.size % hosts]
    if uneven:
        raise InputError([
            Problem(what=f"mesh {number} has {size} devices for hosts_per_mesh = {hosts}",
                    why="every host of a mesh has as many of its devices", fix="hosts_per_mesh=1, or other devices",
                    field="hosts_per_mesh")
            for number, size in uneven
        ])  # fmt: skip

    def hire(devices: Sequence[int]) -> Crew:
        environments = [settings_of(os.environ, count) for count in devices]
        if backend == "ray":
            from meshwright.runtime.on_ray import RayCrew

            return RayCrew(environments, ray)
        from meshwright.runtime.processes import ProcessCrew

        return ProcessCrew(environments)

    return RemoteRuntime(program, meshes, hire, timeout_s, hosts)


def settings_of(environment: Mapping[str, str], devices: int) -> dict[str, str]:
    """What a worker with CPU devices has in its environment before JAX starts.

    Args:
        environment: of the driver, whose other settings for XLA are kept.
        devices: of the worker's mesh.
    """
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", environment.get("XLA_FLAGS", "")).split()
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": str(int(jax.config.jax_enable_x64)),
        "XLA_FLAGS": " ".join([*flags, f"--xla_force_host_platform_device_count={devices}"]),
        # Devices of one computation wait for each other: with fewer threads than devices they would for ever.
        "NPROC": environment.get("NPROC", "64"),
    }
