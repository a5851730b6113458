"""Instruction lists that send one array to and fro: what one instruction takes, and what starting a step takes.

A hop is RECV, RUN of an operation as small as can be, SEND and FREE on one worker. Its time is that of a step with many
hops less that of a step without any, over the hops; what an instruction takes beyond the work is a quarter of the hop
less the same operation in a bare call.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

SIZES = ((64, "64 B", 100, 60), (1 << 20, "1 MB", 40, 20), (16 << 20, "16 MB", 10, 6))
"""Bytes of the array, their name, hops of a step, and steps."""
PER_HOP = 4
"""Instructions."""
LAUNCHES = 200
KEPT = (2, 450)
"""Arrays that the workers keep from step to step; the second as many as a model with 150 weights and Adam has."""
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of something done many times."""

    least_s: float
    median_s: float

    @classmethod
    def of(cls, taken: Sequence[float]) -> Spread:
        """Of all times.

        Args:
            taken: seconds.
        """
        return cls(min(taken), statistics.median(taken))

    def less(self, other: Spread, parts: int = 1) -> Spread:
        """Of a part of what is left without something else.

        Args:
            other: what is left out.
            parts: how many there are.
        """
        return Spread((self.least_s - other.least_s) / parts, (self.median_s - other.median_s) / parts)

    def __str__(self) -> str:
        return f"{duration(self.least_s)} ({duration(self.median_s)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One backend, measured."""

    hops: dict[str, Spread]
    """By size."""
    launches: dict[int, Spread]
    """Of a step without instructions, by the arrays kept."""
    null: Spread | None
    """Of Ray's own call of a method that does nothing, of all workers at once."""


def duration(seconds: float) -> str:
    """Three digits of it.

    Args:
        seconds: any.
    """
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{1e6 * seconds:.3g} µs" if seconds < 1e-3 else f"{1e3 * seconds:.3g} ms"


def timed(call: Callable[[], Any], count: int) -> Spread:
    """A call, many times.

    Args:
        call: what is timed.
        count: times.
    """
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return Spread.of(taken)


def operation() -> Any:
    """The operation of a hop."""
    import jax

    return jax.jit(lambda array: array + 1)


def bare_s(size: int) -> float:
    """The operation in a bare call, waited for: the least of many.

    Args:
        size: of the array in bytes.
    """
    import numpy as np

    run = operation()
    value = run(np.zeros(size, np.uint8))
    return timed(lambda: run(value).block_until_ready(), 300).least_s


def ping_pong(size: int, hops: int) -> Any:
    """A program of two meshes with one array, every hop of which adds one.

    Args:
        size: of the array in bytes.
        hops: even.
    """
    import jax
    import numpy as np

    from meshwright.compiler.instructions import Buffer, Feed, Instruction, Op, StepProgram, StepResult

    buffers: list[Buffer] = []
    lists: tuple[list[Instruction], list[Instruction]] = [], []

    def new(mesh: int) -> int:
        buffers.append(Buffer(mesh=mesh, shape=(size,), dtype="uint8", bytes=size, spec=None))
        return len(buffers) - 1

    at = new(0)
    for hop in range(hops):
        mesh, other = hop % 2, 1 - hop % 2
        made, there = new(mesh), new(other)
        lists[mesh].append(Instruction(op=Op.RUN, label=f"+{hop}", reads=(at,), writes=(made,), executable="add"))
        lists[mesh].append(Instruction(op=Op.SEND, label=f"{hop}", reads=(made,), peer=other))
        lists[mesh].append(Instruction(op=Op.FREE, label=f"{hop}", reads=(at, made)))
        lists[other].append(Instruction(op=Op.RECV, label=f"{hop}", writes=(there,), peer=mesh))
        at = there
    closed = jax.make_jaxpr(operation())(jax.ShapeDtypeStruct((size,), np.uint8))
    return StepProgram(
        lists=(tuple(lists[0]), tuple(lists[1])),
        executables={"add": closed},
        buffers=tuple(buffers),
        feeds=(Feed(buffer=0, input=0),),
        outcomes=(StepResult(buffer=at),),
    )


def still(arrays: int) -> Any:
    """A program of two meshes that does nothing and keeps small arrays.

    Args:
        arrays: how many, half of them on each mesh.
    """
    from meshwright.compiler.instructions import Buffer, Feed, StepProgram, StepResult

    return StepProgram(
        lists=((), ()),
        executables={},
        buffers=tuple(Buffer(mesh=one % 2, shape=(16,), dtype="float32", bytes=64, spec=None) for one in range(arrays)),
        feeds=tuple(Feed(buffer=one, input=one) for one in range(arrays)),
        outcomes=tuple(StepResult(buffer=one) for one in range(arrays)),
    )


def measure(backend: str) -> Backend:
    """Start two workers, and time hops and launches.

    Args:
        backend: "local", "processes" or "ray".
    """
    import jax
    import numpy as np
    from jax.sharding import Mesh

    from meshwright.runtime.backends import runtime_of

    meshes = [Mesh(np.array([device]), ("d",)) for device in jax.devices()[:2]]
    first = runtime_of(ping_pong(64, 0), meshes, backend, None, TIMEOUT_S)
    try:
        hops = {name: _hop(first, size, count, steps) for size, name, count, steps in SIZES}
        launches = {arrays: _launch(first.sharing(still(arrays)), arrays) for arrays in KEPT}
        ask = getattr(getattr(first, "crew", None), "pids", None) if backend == "ray" else None
        return Backend(hops=hops, launches=launches, null=None if ask is None else timed(ask, LAUNCHES))
    finally:
        if backend != "local":
            first.close()


def _hop(runtime: Any, size: int, hops: int, steps: int) -> Spread:
    import jax
    import numpy as np

    found = []
    for count in (hops, 0):
        one = runtime.sharing(ping_pong(size, count))
        kept = one.step([np.zeros(size, np.uint8)], 1)

        def step(one: Any = one, kept: Any = kept) -> None:
            kept[:] = one.step(kept, 1)
            if isinstance(kept[0], jax.Array):
                jax.block_until_ready(kept)

        step()
        found.append(timed(step, steps))
    return found[0].less(found[1], hops)


def _launch(runtime: Any, arrays: int) -> Spread:
    import numpy as np

    kept = runtime.step([np.zeros(16, np.float32)] * arrays, 1)

    def step() -> None:
        kept[:] = runtime.step(kept, 1)

    step()
    return timed(step, LAUNCHES)
