"""How long a message takes between two workers of one machine: `python -m benchmarks.channels [--no-write]`.

Two processes send one message to and fro; half of the median round is a hop: of arrays on the host, which is the
channel alone, and of arrays of JAX, on which every hop also runs a compiled operation, placed as the runtime does.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import load, machine, markdown_table, today, version, write_page

SIZES = ((64, "64 B", 2000), (1 << 20, "1 MB", 300), (16 << 20, "16 MB", 40))
"""Bytes, their name, and rounds."""
TARGETS_S = {64: 50e-6, 1 << 20: 0.6e-3}
PAGE = "channels.md"


def hop_s(
    size: int, rounds: int, send: Callable[[Any], None], receive: Callable[[], Any], *, first: bool, placed: bool
) -> float:
    """Half of the median round of one end.

    Args:
        size: of the message in bytes.
        rounds: to do.
        send: one way.
        receive: the other way.
        first: this end starts.
        placed: and an operation on it, each time.
    """
    import jax
    import numpy as np

    from meshwright.runtime.executor import SMALL_BYTES

    value: Any = np.zeros(size, np.uint8)
    operation = jax.jit(lambda array: array + 1)
    if placed:
        value = operation(value)
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        if first:
            send(value)
        value = receive()
        if placed:
            value = operation(value if size <= SMALL_BYTES else jax.device_put(value))
        if not first:
            send(value)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) / 2


def serve(mesh: int, folder: str, *, rings: bool, placed: bool) -> None:
    """One end: prints the seconds of a hop for each size.

    Args:
        mesh: 0 or 1.
        folder: where both leave their addresses.
        rings: whether there is shared memory.
        placed: on a device, each time.
    """
    import pickle

    from meshwright.runtime import sockets
    from meshwright.runtime.host_arrays import host_form

    if not rings:
        sockets.RING_FROM_BYTES = 1 << 62
    own = Path(folder) / f"own{mesh}"
    own.mkdir()
    listener = sockets.Listener(own, "127.0.0.1")
    half = Path(folder) / f"{mesh}.half"
    half.write_bytes(pickle.dumps(listener.address))
    half.rename(Path(folder) / f"{mesh}")
    other = Path(folder) / f"{1 - mesh}"
    while not other.exists():
        time.sleep(0.01)
    addresses = [listener.address, pickle.loads(other.read_bytes())]
    wires = listener.connect(mesh, addresses if mesh == 0 else addresses[::-1], b"benchmark")
    channel = wires.channel(1 - mesh)
    for size, _, rounds in SIZES:
        form = [host_form((size,), "uint8")]
        found = hop_s(size, rounds, lambda value: channel.send([value], form), lambda: channel.receive(form)[0],  # noqa: B023
                      first=mesh == 0, placed=placed)  # fmt: skip
        print(found, flush=True)


def measured(*, rings: bool, placed: bool) -> list[float]:
    """Seconds of a hop between two processes, by size.

    Args:
        rings: whether large messages go through shared memory.
        placed: on a device, each time.
    """
    with TemporaryDirectory() as folder:
        settings = [*([] if rings else ["--no-rings"]), *(["--placed"] if placed else [])]
        command = [sys.executable, "-m", "benchmarks.channels", "--serve", folder, *settings]
        other = subprocess.Popen([*command, "--mesh", "1"], stdout=subprocess.DEVNULL)
        done = subprocess.run([*command, "--mesh", "0"], stdout=subprocess.PIPE, text=True, check=True)
        other.wait()
    return [float(line) for line in done.stdout.split()]


def in_process() -> list[float]:
    """Seconds of a hop between two meshes of one process, by size."""
    from meshwright.runtime.channels import local_channels

    one, other = local_channels(2)
    found = []
    for size, _, rounds in SIZES:
        # Both ends take turns in one thread: what one sends the other has.
        taken = hop_s(
            size,
            rounds,
            lambda value: one[1].send([value], []),
            lambda: other[0].receive([])[0],
            first=True,
            placed=True,
        )
        found.append(2 * taken)
    return found


def page() -> str:
    """The page, measured anew."""
    rows = [
        ("in one process, and an operation on a device", in_process()),
        ("two processes, socket", measured(rings=False, placed=False)),
        ("two processes, shared memory from 64 KiB", measured(rings=True, placed=False)),
        ("the same, and an operation on a device", measured(rings=True, placed=True)),
    ]
    names = [name for _, name, _ in SIZES]
    table = markdown_table(
        ["channel", *names],
        [[what, *(f"{1e6 * found:.3g} µs" if found < 1e-3 else f"{1e3 * found:.3g} ms" for found in taken)]
         for what, taken in rows],
    )  # fmt: skip
    return f"""# Messages between workers

What one message between two mesh workers of one machine takes: half of the median round trip. Wall time; other work on
the machine makes it longer.

Measured on {today()} with {version()} on {machine()}, {load()}.
Made by `python -m benchmarks.channels`.

{table}

The aim: at most 50 µs for a small message and 0.6 ms for 1 MB.

Every pair of workers has one socket: a unix socket on one machine, TCP between machines. Messages of at least 64 KiB go
through shared memory where there is some, and the socket only says where they lie. Nobody waits for room to send
without taking in what others sent, so that instruction lists need no bound on what is under way. Ray starts, places and
misses workers; it carries one call per worker and step, and no message.
"""


def main() -> None:
    """Measure, or be one end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-write", action="store_true", help="print the page only")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--mesh", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--no-rings", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--placed", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.mesh, asked.serve, rings=not asked.no_rings, placed=asked.placed)
        return
    text = page()
    print(text)
    if not asked.no_write:
        write_page(PAGE, text)


if __name__ == "__main__":
    main()
