"""Where a program runs: in this process, in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence

from jax.sharding import Mesh

from meshwright.compiler.instructions import StepProgram
from meshwright.errors import InputError, Problem, UnsupportedError, unknown_name
from meshwright.runtime.local import LocalRuntime
from meshwright.runtime.workers.accelerators import CPU, WorkerDevices, owned_by, worker_environments
from meshwright.runtime.workers.crew import Crew
from meshwright.runtime.workers.remote import RemoteRuntime

BACKENDS = ("local", "processes", "ray")
TIMEOUT_S = 300.0
"""A worker that has not gone on to its next instruction by then hangs."""


def check_backend(
    backend: str, ray: str | None, timeout_s: float, hosts: int = 1, worker_devices: str | Sequence[str] = CPU
) -> None:
    """Whether these go together.

    Args:
        backend: name.
        ray: address of a cluster.
        timeout_s: the timeout in seconds in which a worker goes on.
        hosts: the number of hosts that share each mesh.
        worker_devices: what workers own.

    Raises:
        InputError: they do not, with every reason.
    """
    wrong = []
    if backend not in BACKENDS:
        wrong.append(unknown_name("backend", backend, BACKENDS))
    elif ray is not None and backend != "ray":
        wrong.append(
            Problem(
                what=f'ray = "{ray}" with backend = "{backend}"',
                why="only Ray has a cluster's address",
                fix='backend="ray"',
                field="ray",
            )
        )
    if hosts < 1 or (hosts > 1 and backend == "local"):
        wrong.append(
            Problem(
                what=f'hosts_per_mesh = {hosts} with backend = "{backend}"',
                why="it counts the workers of a mesh from 1, and this process is one",
                fix='backend="processes" or "ray", or hosts_per_mesh=1',
                field="hosts_per_mesh",
            )
        )
    names = (worker_devices,) if isinstance(worker_devices, str) else tuple(worker_devices)
    if backend == "local" and set(names) != {CPU}:
        wrong.append(
            Problem(
                what=f'worker_devices = "{", ".join(names)}" with backend = "local"',
                why="this process has the devices that JAX gives it",
                field="worker_devices",
                fix='backend="processes" or "ray", or leave worker_devices out',
            )
        )
    for name in names:
        try:
            WorkerDevices.of(name)
        except InputError as error:
            wrong += error.problems
    if not timeout_s > 0:
        wrong.append(
            Problem(
                what=f"timeout_s = {timeout_s}",
                why="it is a time to wait",
                fix=f"timeout_s={TIMEOUT_S}",
                field="timeout_s",
            )
        )
    if wrong:
        raise InputError(wrong)


def runtime_of(
    program: StepProgram,
    meshes: Sequence[Mesh],
    backend: str,
    ray: str | None,
    timeout_s: float,
    hosts: int = 1,
    worker_devices: str | Sequence[str] = CPU,
) -> LocalRuntime | RemoteRuntime:
    """What runs a program.

    Args:
        program: what to run.
        meshes: the meshes of devices of this process; workers elsewhere have meshes like them.
        backend: one of `BACKENDS`.
        ray: address of a cluster; one of this machine is started without it.
        timeout_s: the timeout in seconds in which a worker goes on to its next instruction, or counts as hung.
        hosts: the number of hosts that share each mesh.
        worker_devices: what workers own, for all or by mesh; this process then only has stand-ins for them.

    Raises:
        InputError: the devices of a mesh cannot be shared out among its hosts.
        UnsupportedError: this process holds the devices itself.
    """
    if backend == "local":
        return LocalRuntime(program, meshes)
    kinds = {device.platform for mesh in meshes for device in mesh.devices.flat}
    if kinds != {"cpu"}:
        raise UnsupportedError(
            Problem(
                what=f'backend = "{backend}" on devices of kind {", ".join(sorted(kinds))}',
                why="the driver holds these devices, and workers in other processes cannot have them too",
                fix=f'backend="local"; or JAX_PLATFORMS=cpu here, with as many virtual devices, and worker_devices='
                f'"{sorted(kinds)[0]}"',
                field="backend",
            )
        )

    uneven = [(number, mesh.size) for number, mesh in enumerate(meshes) if mesh.size % hosts]
    if uneven:
        raise InputError(
            [
                Problem(
                    what=f"mesh {number} has {size} devices for hosts_per_mesh = {hosts}",
                    why="hosts share the devices of a mesh evenly",
                    fix="hosts_per_mesh=1, or other devices",
                    field="hosts_per_mesh",
                )
                for number, size in uneven
            ]
        )

    owned = owned_by(worker_devices, len(meshes) * hosts, hosts)

    def hire(devices: Sequence[int]) -> Crew:
        environments = worker_environments(owned, devices, os.environ, here=backend == "processes")
        if backend == "ray":
            from meshwright.runtime.workers.on_ray import RayCrew

            return RayCrew(environments, ray, [one.resources(count) for one, count in zip(owned, devices, strict=True)])
        from meshwright.runtime.workers.processes import ProcessCrew

        return ProcessCrew(environments)

    platforms = [one.platform for one in owned[::hosts]]
    return RemoteRuntime(program, meshes, hire, timeout_s, hosts, platforms=platforms)
