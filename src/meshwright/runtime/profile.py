"""Seconds of every executable alone on its mesh, and from them the seconds of a step: prediction for this machine."""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.compiler.instructions import Buffer, Op, StepProgram
from meshwright.runtime.executor import MeshExecutor
from meshwright.runtime.host_arrays import host_form
from meshwright.runtime.moments import Moments, end_s, replay

REPEATS = 5
HOP_BYTES = 1 << 20
"""Of the message whose time gives the speed of messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """A step before it is run: its instructions one by one, and whether the machine's cores hold it up."""

    moments: Moments
    """If every mesh had its devices to itself."""
    busy_s: float
    """Seconds of one core in all executables together."""
    cores: int

    @property
    def step_time_s(self) -> float:
        """The later of two ends: of the instructions, and of the work when all cores share it evenly."""
        return max(end_s(self.moments), self.busy_s / self.cores)


def predicted_step(program: StepProgram, executors: Sequence[MeshExecutor]) -> StepPrediction:
    """Run every executable alone a few times and replay the lists with its seconds.

    Args:
        program: instruction lists.
        executors: of this process, one per mesh; what they have compiled is used.
    """
    run_s: list[dict[str, float]] = []
    busy_s = 0.0
    for executor, instructions in zip(executors, program.lists, strict=True):
        times = {}
        counts = Counter(one.executable for one in instructions if one.op is Op.RUN)
        for instruction in instructions:
            name = instruction.executable
            if name is not None and name not in times:
                values = [_filled(executor, program.buffers, buffer) for buffer in instruction.reads]
                times[name], busy = _seconds(executor.compiled(replace(instruction, donates=())), values)
                busy_s += busy * counts[name]
        run_s.append(times)
    hop_s, bytes_per_s = _hop(executors)
    return StepPrediction(
        moments=replay(program, run_s, hop_s, bytes_per_s),
        busy_s=busy_s,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )


def seconds_by_kind(program: StepProgram, moments: Moments) -> Mapping[str, float]:
    """Seconds of instructions by what they do, over all meshes: F, B, I, W, update, RECV and so on.

    Args:
        program: instruction lists.
        moments: of each mesh.
    """
    found: dict[str, float] = defaultdict(float)
    for instructions, own in zip(program.lists, moments, strict=True):
        for one in own:
            instruction = instructions[one.place]
            name = (instruction.executable or "").rstrip("+0123456789") if instruction.op is Op.RUN else instruction.op
            found[name] += one.end_s - one.start_s
    return dict(sorted(found.items()))


def _filled(executor: MeshExecutor, buffers: Sequence[Buffer], number: int) -> Any:
    """Ones where the program has values: they cost the same, and no index is out of bounds."""
    buffer = buffers[number]
    form = host_form(buffer.shape, buffer.dtype)
    value = jax.random.split(jax.random.key(0, impl=form.keys), buffer.shape) if form.keys else (
        jnp.ones(buffer.shape, form.dtype)
    )  # fmt: skip
    return jax.device_put(value, executor.sharding(number))


def _seconds(executable: Any, values: Sequence[Any]) -> tuple[float, float]:
    """Wall seconds of one run, and seconds of one core: medians."""
    jax.block_until_ready(executable(*values))
    walls, busies = [], []
    for _ in range(REPEATS):
        wall, busy = time.perf_counter(), time.process_time()
        jax.block_until_ready(executable(*values))
        walls.append(time.perf_counter() - wall)
        busies.append(time.process_time() - busy)
    return statistics.median(walls), statistics.median(busies)


def _hop(executors: Sequence[MeshExecutor]) -> tuple[float, float]:
    """Seconds of a small copy from mesh to mesh, and bytes per second of a large one."""
    if len(executors) < 2:
        return 0.0, float("inf")
    times = []
    for size in (8, HOP_BYTES):
        value = jax.device_put(jnp.zeros(size, jnp.uint8), executors[0].mesh.devices.flat[0])
        there = executors[1].mesh.devices.flat[0]
        times.append(min(_copied(value, there) for _ in range(REPEATS)))
    return times[0], HOP_BYTES / max(times[1] - times[0], 1e-9)


def _copied(value: Any, device: Any) -> float:
    start = time.perf_counter()
    jax.block_until_ready(jax.device_put(value, device))
    return time.perf_counter() - start
