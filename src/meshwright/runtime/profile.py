"""Seconds of every executable alone on its mesh, and from them the seconds of a step: prediction for this machine."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
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
"""Size of the message whose time gives the speed of messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """A step before it is run: its instructions one by one, and whether the machine's cores hold it up."""

    moments: Moments
    """Moments if every mesh had its devices to itself, and each instruction were an executable of its own."""
    end_s: float
    """When the last instruction ends where those that follow one another are joined."""
    busy_s: float
    """Seconds of one core in all executables together, joined."""
    apart_busy_s: float
    """The same where each instruction is an executable of its own."""
    cores: int

    @property
    def step_time_s(self) -> float:
        """The later of two ends: of the instructions, and of the work when all cores share it evenly."""
        return max(self.end_s, self.busy_s / self.cores)

    @property
    def timed_s(self) -> float:
        """The same of a step whose instructions are timed one by one."""
        return max(end_s(self.moments), self.apart_busy_s / self.cores)


def predicted_step(program: StepProgram, executors: Sequence[MeshExecutor]) -> StepPrediction:
    """Run every executable alone a few times and replay the lists with its seconds.

    Args:
        program: instruction lists.
        executors: the executors of this process, one per mesh; what they have compiled is used.
    """
    alone_s: list[dict[str, float]] = []
    joined_s: list[dict[str, float]] = []
    busy_s = apart_busy_s = 0.0
    for executor, instructions in zip(executors, program.lists, strict=True):
        runs = {one.executable or "": one for one in instructions if one.op is Op.RUN}
        times = {
            name: _seconds(executor.compiled(replace(one, donates=())), _filled(executor, program.buffers, one.reads))
            for name, one in reversed(runs.items())
        }
        alone_s.append({name: wall for name, (wall, _) in times.items()})
        ran = [one.executable or "" for one in instructions if one.op is Op.RUN]
        apart_busy_s += sum(times[name][1] for name in ran)
        for part in {part.form: part for part in executor.joined.values()}.values():
            names = [run.executable or "" for run in part.runs]
            whole = _seconds(
                executor.compiled_joined(replace(part, donates=())), _filled(executor, program.buffers, part.reads)
            )
            apart = [sum(times[name][which] for name in names) for which in (0, 1)]
            times |= {
                name: (times[name][0] * whole[0] / apart[0], times[name][1] * whole[1] / max(apart[1], 1e-9))
                for name in names
            }
        joined_s.append({name: wall for name, (wall, _) in times.items()})
        busy_s += sum(times[name][1] for name in ran)
    hop_s, bytes_per_s = _hop(executors)
    return StepPrediction(
        moments=replay(program, alone_s, hop_s, bytes_per_s),
        end_s=end_s(replay(program, joined_s, hop_s, bytes_per_s)),
        busy_s=busy_s,
        apart_busy_s=apart_busy_s,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )


def seconds_by_kind(program: StepProgram, moments: Moments) -> Mapping[str, float]:
    """Seconds of instructions by what they do, over all meshes: F, B, I, W, update, RECV and so on.

    Args:
        program: instruction lists.
        moments: the moments of each mesh.
    """
    found: dict[str, float] = defaultdict(float)
    for instructions, own in zip(program.lists, moments, strict=True):
        for one in own:
            instruction = instructions[one.place]
            name = (instruction.executable or "").rstrip("+0123456789") if instruction.op is Op.RUN else instruction.op
            found[name] += one.end_s - one.start_s
    return dict(sorted(found.items()))


def _filled(executor: MeshExecutor, buffers: Sequence[Buffer], numbers: Sequence[int]) -> list[Any]:
    """Ones where the program has values: they cost the same, and no index is out of bounds."""
    found = []
    for number in numbers:
        shape, form = buffers[number].shape, host_form(buffers[number].shape, buffers[number].dtype)
        value = (
            jax.random.split(jax.random.key(0, impl=form.keys), shape) if form.keys else (jnp.ones(shape, form.dtype))
        )
        found.append(jax.device_put(value, executor.sharding(number)))
    return found


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


def record_profile(folder: str, step: Callable[[], object]) -> None:
    """Run a step under jax.profiler: calls, kernels and transfers of this process.

    Args:
        folder: the folder that the profile is written to.
        step: runs it.
    """
    with jax.profiler.trace(folder):
        jax.block_until_ready(step())
