"""Kernels of this machine's first device, timed: products, attention, streams, launches, reductions.

Shapes grow until one takes long enough to be timed well, and stop when the time for them is used up; every kind has its
share of the time, so that a slow device gives fewer points, not fewer kinds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.calibrate.curves import MIN_POINTS, TimedAttention, TimedProduct, TimedReduction, TimedStream, Timings

T = TypeVar("T")

REPEATS = 5
LEAST_S = 5e-4
"""A timing covers at least this much: quicker kernels are called several times in a row."""
FIRST_STREAM = 1 << 23
"""Elements of the shortest stream: more than caches hold."""
CHAIN = 64
"""Dependent kernels in one program, to time one launch."""
SHARES = {"products": 0.4, "attention": 0.35, "streams": 0.1, "reductions": 0.15}
"""Shares of the time, after the launches."""
_DTYPES: dict[str, Any] = {"bf16": jnp.bfloat16, "fp16": jnp.float16, "fp32": jnp.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The device that was timed."""

    kind: str
    """Kind of the device in JAX."""
    platform: str
    """cpu, gpu or tpu."""
    devices: int
    memory_bytes: float
    units: int
    """Cores or multiprocessors."""


def this_machine() -> Machine:
    """The first device of this process."""
    device = jax.devices()[0]
    cpu = device.platform == "cpu"
    stats = {} if cpu else (device.memory_stats() or {})
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / len(jax.devices())
    return Machine(
        kind=device.device_kind,
        platform=device.platform,
        devices=len(jax.local_devices()),
        memory_bytes=float(stats.get("bytes_limit", own)),
        units=cores if cpu else int(getattr(device, "core_count", 0) or 100),
    )


def time_kernels(budget_s: float, tell: Callable[[str], None] = lambda _: None) -> Timings:
    """Time the kernels that plans are priced with.

    Args:
        budget_s: the budget in seconds to spend, compilation included; a last kernel may go beyond it.
        tell: called with what is being timed.
    """
    machine = this_machine()
    memory = machine.memory_bytes / 8
    started = time.perf_counter()
    tell("launches")
    launch_s = _launch_s()
    left = budget_s - (time.perf_counter() - started)
    dtypes = ("bf16", "fp32") if machine.platform == "cpu" else ("bf16", "fp16", "fp32")
    products: list[TimedProduct] = []
    for dtype in dtypes:
        tell(f"products in {dtype}")
        products += _until(_products(dtype, memory), left * SHARES["products"] / len(dtypes))
    attention: list[TimedAttention] = []
    for backward in (False, True):
        tell("attention, backward" if backward else "attention, forward")
        attention += _until(_attention("bf16", memory, backward=backward), left * SHARES["attention"] / 2)
    tell("streams")
    streams = _until(_streams(memory), left * SHARES["streams"])
    tell("reductions")
    reductions = _until(_reductions(memory), left * SHARES["reductions"]) if machine.devices > 1 else []
    return Timings(
        products=tuple(products),
        attention=tuple(attention),
        streams=tuple(streams),
        reductions=tuple(reductions),
        launch_s=launch_s,
    )


def _until(points: Iterator[T], budget_s: float) -> list[T]:
    """Points until the time is used up, and as many as a curve needs."""
    started, found = time.perf_counter(), []
    for point in points:
        found.append(point)
        if len(found) >= MIN_POINTS and time.perf_counter() - started > budget_s:
            break
    return found


def _seconds(run: Callable[..., Any], *values: Any) -> float:
    """Seconds of one compiled call: the least of a few rounds, each long enough."""
    jax.block_until_ready(run(*values))
    started = time.perf_counter()
    jax.block_until_ready(run(*values))
    calls = max(1, int(np.ceil(LEAST_S / max(time.perf_counter() - started, 1e-7))))
    rounds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        for _ in range(calls):
            result = run(*values)
        jax.block_until_ready(result)
        rounds.append((time.perf_counter() - started) / calls)
    return min(rounds)


def _launch_s() -> float:
    """One of many dependent kernels that do next to nothing: small products, which no compiler fuses."""

    def chain(x: jax.Array) -> jax.Array:
        for _ in range(CHAIN):
            x = jax.lax.optimization_barrier(x @ x)
        return x

    return max(_seconds(jax.jit(chain), jnp.eye(8, dtype=jnp.float32)) / CHAIN, 1e-8)


def _products(dtype: str, memory: float) -> Iterator[TimedProduct]:
    """Squares of growing size, each with contractions shorter and longer than it."""
    multiply = jax.jit(jnp.matmul)
    for size in (256, 512, 1024, 2048, 4096, 8192):
        if 3 * size * size * 4 > memory:
            return
        for k in (size, size // 4, size * 2, size // 16):
            left, right = (jnp.ones(shape, _DTYPES[dtype]) for shape in ((size, k), (k, size)))
            yield TimedProduct(dtype=dtype, m=size, n=size, k=k, seconds=_seconds(multiply, left, right))


def _attention(dtype: str, memory: float, *, backward: bool) -> Iterator[TimedAttention]:
    """Causal attention of one sequence, longer and longer; backward is the whole gradient less the forward pass."""
    gpu = jax.devices()[0].platform == "gpu"
    attend = partial(jax.nn.dot_product_attention, is_causal=True, implementation="cudnn" if gpu else "xla")
    forward = jax.jit(attend)
    gradient = jax.jit(jax.grad(lambda *x: attend(*x).astype(jnp.float32).sum(), argnums=(0, 1, 2)))
    batch, heads, head_dim = 1, 8, 128
    for seq_len in (128, 256, 384, 512, 1024, 2048, 4096, 8192, 16384):
        if 4 * heads * seq_len * (head_dim if gpu else seq_len) > memory:
            return
        values = [jnp.ones((batch, seq_len, heads, head_dim), _DTYPES[dtype])] * 3
        seconds = _seconds(forward, *values)
        if backward:
            # The gradient computes the forward pass too; where that hides in noise, it is at least as long.
            seconds = max(_seconds(gradient, *values) - seconds, seconds)
        yield TimedAttention(
            dtype=dtype,
            batch=batch,
            heads=heads,
            head_dim=head_dim,
            seq_len=seq_len,
            backward=backward,
            seconds=seconds,
        )


def _streams(memory: float) -> Iterator[TimedStream]:
    """y = 2 x + 1 on larger and larger arrays: read once, written once."""
    scale = jax.jit(lambda x: 2.0 * x + 1.0)
    most = min(int(memory) // 8, 1 << 30)
    size = min(FIRST_STREAM, most >> MIN_POINTS)
    while size <= most:
        x = jnp.ones(size, jnp.float32)
        yield TimedStream(traffic_bytes=8.0 * size, seconds=_seconds(scale, x))
        size *= 2


def _reductions(memory: float) -> Iterator[TimedReduction]:
    """All-reduce over all local devices."""
    devices = jax.local_devices()
    mesh = Mesh(np.array(devices), ("d",))
    parts, whole = NamedSharding(mesh, PartitionSpec("d")), NamedSharding(mesh, PartitionSpec())
    reduce = jax.jit(lambda x: x.sum(axis=0), in_shardings=parts, out_shardings=whole)
    size = 1 << 12
    while 4 * size * len(devices) < memory and size <= 1 << 27:
        x = jax.device_put(jnp.ones((len(devices), size), jnp.float32), parts)
        yield TimedReduction(devices=len(devices), message_bytes=4.0 * size, seconds=_seconds(reduce, x))
        size *= 4
