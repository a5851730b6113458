"""What else could carry an array from worker to worker of one machine: JAX's transfer server, and Ray's own ways.

Each is measured like the channels, an array to and fro with an operation on it at every hop. JAX starts its transfers
by itself; Ray's ways need a call of an actor for every hop.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.ping_pong import Spread, operation

SIZES = ((64, "64 B", 200), (1 << 20, "1 MB", 60), (16 << 20, "16 MB", 10))
"""Bytes, their name, and rounds."""
RAY_SIZES = ((64, "64 B", 40), (1 << 20, "1 MB", 20), (16 << 20, "16 MB", 8))
"""Bytes, their name, and hops in a row."""
SERIES = 5
LINGER_S = 2.0
"""An end that stops at once takes what it offered with it."""


def transfer_server() -> dict[str, Spread]:
    """Seconds of a hop by size, through `jax.experimental.transfer` between two processes."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.other_paths", folder]
        other = subprocess.Popen([*command, "1"], stdout=subprocess.DEVNULL)
        done = subprocess.run([*command, "0"], stdout=subprocess.PIPE, text=True, check=True)
        other.wait()
    lines = [line.split() for line in done.stdout.splitlines()]
    return {
        name: Spread(float(least), float(middle)) for (_, name, _), (least, middle) in zip(SIZES, lines, strict=True)
    }


def serve(folder: Path, own: int) -> None:
    """One end: prints the least and the median seconds of a hop for each size.

    Args:
        folder: where both leave their addresses.
        own: 0 or 1.
    """
    import jax
    import numpy as np
    from jax.experimental import transfer
    from jax.sharding import SingleDeviceSharding

    device = jax.devices()[0]
    server = transfer.start_transfer_server(device.client, "127.0.0.1:0", ["127.0.0.1:0"])
    (folder / f"half{own}").write_text(server.address())
    (folder / f"half{own}").rename(folder / f"{own}")
    while not (folder / f"{1 - own}").exists():
        time.sleep(0.01)
    connection = server.connect((folder / f"{1 - own}").read_text())
    run, number = operation(), 0
    for size, _, rounds in SIZES:
        like = jax.ShapeDtypeStruct((size,), np.uint8, sharding=SingleDeviceSharding(device))
        value, taken = run(np.zeros(size, np.uint8)), []
        for _ in range(rounds):
            start = time.perf_counter()
            if own == 0:
                server.await_pull(number, [value])
            (value,) = connection.pull(number + (own == 0), [like])
            value = run(value)
            if own == 1:
                server.await_pull(number + 1, [value])
            value.block_until_ready()
            number += 2
            taken.append((time.perf_counter() - start) / 2)
        found = Spread.of(taken)
        print(found.least_s, found.median_s, flush=True)
    time.sleep(LINGER_S)
    os._exit(0)


def ray_ways() -> dict[str, dict[str, Spread]]:
    """Seconds of a hop by size, for each way that Ray passes an array from one actor to another."""
    import ray

    from meshwright.ray_cluster import HERE, connect, ray_module

    ray_module()
    connect(ray, HERE)
    try:
        return {
            "Ray calls, arrays in its object store": _of_calls(ray, _array_actor()),
            **(
                {"Ray calls, direct transport (gloo, PyTorch)": _of_calls(ray, _tensor_actor(ray), direct=True)}
                if find_spec("torch")
                else {}
            ),
        }
    finally:
        ray.shutdown()


def _of_calls(ray: Any, actor: type, *, direct: bool = False) -> dict[str, Spread]:
    actors = [ray.remote(actor).options(num_cpus=0).remote() for _ in range(2)]
    if direct:
        from ray.experimental.collective import create_collective_group

        create_collective_group(actors, backend="torch_gloo")
    found = {}
    for size, name, hops in RAY_SIZES:
        _chain(ray, actors, size, 2)
        found[name] = Spread.of([_chain(ray, actors, size, hops) for _ in range(SERIES)])
    return found


def _chain(ray: Any, actors: list[Any], size: int, hops: int) -> float:
    start = time.perf_counter()
    value = actors[0].make.remote(size)
    for hop in range(hops):
        value = actors[1 - hop % 2].pass_on.remote(value)
    ray.get(actors[hops % 2].first.remote(value))
    return (time.perf_counter() - start) / hops


def _array_actor() -> type:
    class ArrayActor:
        """Passes arrays on."""

        def __init__(self) -> None:
            os.environ["JAX_PLATFORMS"] = "cpu"
            import jax

            self._run: Callable[[Any], Any] = jax.jit(lambda array: array + 1)

        def make(self, size: int) -> Any:
            import numpy as np

            return np.asarray(self._run(np.zeros(size, np.uint8)))

        def pass_on(self, value: Any) -> Any:
            import numpy as np

            return np.asarray(self._run(value))

        def first(self, value: Any) -> int:
            return int(value[0])

    return ArrayActor


def _tensor_actor(ray: Any) -> type:
    class TensorActor:
        """Passes tensors on."""

        @ray.method(tensor_transport="gloo")  # type: ignore[untyped-decorator]
        def make(self, size: int) -> Any:
            import torch

            return torch.zeros(size, dtype=torch.uint8)

        @ray.method(tensor_transport="gloo")  # type: ignore[untyped-decorator]
        def pass_on(self, value: Any) -> Any:
            return value + 1

        def first(self, value: Any) -> int:
            return int(value[0])

    return TensorActor


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
