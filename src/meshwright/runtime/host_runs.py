"""What a mesh runs in the memory of its host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental.compute_on import compute_on
from jax.sharding import Mesh

from meshwright.errors import Problem, UnsupportedError

HOST = "pinned_host"
"""Kind of memory of JAX that arrays of the host are in; devices read it by themselves."""


def on_host(function: Callable[..., Sequence[Any]], stays: Sequence[bool]) -> Callable[..., list[Any]]:
    """A function computed on the host, of what is anywhere.

    Args:
        function: the function of arrays.
        stays: the results that stay in the host's memory, a truth value each; others go to the device.
    """

    def run(*given: Any) -> list[Any]:
        here = jax.device_put(given, jax.memory.Space.Host)
        with compute_on("device_host"):
            made = function(*here)
        device = jax.memory.Space.Device
        return [value if stay else jax.device_put(value, device) for value, stay in zip(made, stays, strict=True)]

    return run


def check_paged(meshes: Sequence[Mesh], updates: int) -> None:
    """Whether stages can be paged from host memory.

    Args:
        meshes: the devices of each stage.
        updates: the number of updates of the weights in a step.

    Raises:
        UnsupportedError: a stage has several devices, weights change within a step, or the devices cannot read the
            memory of the host.
    """
    problems = []
    if updates > 1:
        why = "weights come while the stage before them computes, and change only behind all micro-batches"
        what, fix = f"paged stages with {updates} updates in a step", "mobius, or another schedule with one update"
        problems.append(Problem(what=what, why=why, fix=fix, field="paged"))
    if (most := max(mesh.size for mesh in meshes)) > 1:
        why, fix = "a stage is reloaded to one device", "num_stages as large as the number of devices"
        problems.append(Problem(what=f"paged stages of {most} devices", why=why, fix=fix, field="paged"))
    device = meshes[0].devices.flat[0]
    if HOST not in (kinds := sorted(memory.kind for memory in device.addressable_memories())):
        why = f"{device.platform} has {', '.join(kinds)}, and states wait in {HOST}"
        problems.append(Problem(what="paged stages", why=why, fix="paged=False", field="paged"))
    if problems:
        raise UnsupportedError(problems, code="MW411")
