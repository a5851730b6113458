"""Devices of this process: virtual CPU devices asked for before JAX starts, and as many as a plan needs afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from meshwright.errors import InputError, Problem, UnsupportedError

COUNT_FLAG = "--xla_force_host_platform_device_count"


def claim_devices(count: int, *, stand_ins: bool = False) -> list[Any]:
    """Devices of this process, as many as asked for; where it has CPUs only, virtual ones.

    Args:
        count: how many.
        stand_ins: the stand-ins for those that workers in other processes own, so that this process leaves them alone.

    Returns:
        JAX devices.

    Raises:
        InputError: JAX has started with fewer.
        UnsupportedError: JAX is not installed.
    """
    if find_spec("jax") is None:
        raise UnsupportedError(
            Problem(
                what="running needs JAX, and it is not installed",
                why="planning does not",
                fix="pip install 'meshwright[jax]'",
                field="jax",
            ),
            code="MW409",
        )
    if "jax" not in sys.modules:
        os.environ.update(_settings(count) | ({"JAX_PLATFORMS": "cpu"} if stand_ins else {}))
    import jax

    from meshwright.runtime.compilation_cache import write_whole_entries

    write_whole_entries()
    devices = jax.devices()
    if len(devices) < count:
        virtual = devices[0].platform == "cpu"
        raise InputError(
            Problem(
                what=f"{count} devices are asked for, JAX has {len(devices)} of kind {devices[0].platform}",
                why="JAX is started once, with the devices it then finds" if virtual else "a plan uses a device once",
                fix=f"XLA_FLAGS={COUNT_FLAG}={count} before JAX starts"
                if virtual
                else f"a plan for {len(devices)} devices, or JAX_PLATFORMS=cpu for virtual ones",
                field="devices",
            ),
            code="MW251",
        )
    return list(devices[:count])


def require_devices(needed: int, devices: Sequence[Any], named: str = "") -> list[Any]:
    """The devices of a plan: the first of those there are.

    Args:
        needed: ranks of the plan.
        devices: all there are.
        named: the number as the plan makes it, with its degrees.

    Raises:
        InputError: they are too few.
    """
    if needed > len(devices):
        raise InputError(
            what=f"the plan needs {named or needed} devices, there are {len(devices)}",
            why="every rank of a plan is a device",
            fix=f"--devices {needed}, or a smaller plan",
            field="devices",
            code="MW251",
        )
    return list(devices[:needed])


def _settings(count: int) -> dict[str, str]:
    """What XLA reads when it starts; settings of the user's own stay."""
    flags = os.environ.get("XLA_FLAGS", "")
    if COUNT_FLAG not in flags:
        flags = f"{flags} {COUNT_FLAG}={count}".strip()
    return {
        "XLA_FLAGS": flags,
        # Devices of one computation wait for each other: with fewer threads than devices they would for ever.
        "NPROC": os.environ.get("NPROC", str(max(64, 2 * count))),
        # Errors only: its partitioner warns of every gather that it finds no better way for.
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }


@contextmanager
def jax_precision(dtype: str) -> Iterator[None]:
    """64-bit numbers where they are asked for.

    Args:
        dtype: "fp64", or any other.
    """
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", dtype == "fp64")
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)
