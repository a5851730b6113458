"""Overhead of the runtime: `python -m benchmarks.channels [--json] [--no-write]`.

Messages between two workers of one machine, instructions, the launch of a step, other ways to carry messages, and steps
predicted and run on eight virtual devices. Minimum and median of many; the median includes interference from other
processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import load, machine, markdown_table, today, version, write_page
from benchmarks.ping_pong import KEPT, PER_HOP, Backend, Spread, bare_s, duration, measure
from benchmarks.predicted_steps import MODEL, predicted_steps
from benchmarks.timing import Line, run

SIZES = ((64, "64 B", 2000), (1 << 20, "1 MB", 300), (16 << 20, "16 MB", 40))
"""Bytes, their name, and rounds."""
NAMES = tuple(name for _, name, _ in SIZES)
PAGE = "channels.md"
SETTINGS = {
    "JAX_PLATFORMS": "cpu", "NPROC": "64", "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    "RAY_USAGE_STATS_ENABLED": "0",
}  # fmt: skip
"""Of the environment, before JAX and Ray are imported."""
INSTRUCTION_S, LAUNCH_S, MEGABYTE_S = 50e-6, 1e-3, 0.6e-3
"""Aims: an instruction beyond its work, the launch of a step beyond Ray's own call, a hop of 1 MB."""


def serve(mesh: int, folder: str, *, rings: bool) -> None:
    """One end of a channel: prints the least and the median seconds of a hop for each size.

    Args:
        mesh: 0 or 1.
        folder: where both leave their addresses.
        rings: whether there is shared memory.
    """
    import pickle

    import numpy as np

    from meshwright.runtime.host_arrays import host_form
    from meshwright.runtime.workers import sockets

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
    channel = listener.connect(mesh, addresses if mesh == 0 else addresses[::-1], b"benchmark").channel(1 - mesh)
    for size, _, rounds in SIZES:
        forms = [host_form((size,), "uint8")]
        value, taken = np.zeros(size, np.uint8), []
        for _ in range(rounds):
            start = time.perf_counter()
            if mesh == 0:
                channel.send([value], forms)
            (value,) = channel.receive(forms)
            if mesh == 1:
                channel.send([value], forms)
            taken.append((time.perf_counter() - start) / 2)
        found = Spread.of(taken)
        print(found.least_s, found.median_s, flush=True)


def channel(*, rings: bool) -> dict[str, Spread]:
    """Seconds of a hop between two processes by size, of arrays of the host.

    Args:
        rings: whether large messages go through shared memory.
    """
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.channels", "--serve", folder, *([] if rings else ["--no-rings"])]
        other = subprocess.Popen([*command, "--mesh", "1"], stdout=subprocess.DEVNULL)
        done = subprocess.run([*command, "--mesh", "0"], stdout=subprocess.PIPE, text=True, check=True)
        other.wait()
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: Spread(float(least), float(middle)) for name, (least, middle) in zip(NAMES, lines, strict=True)}


def summary(backends: dict[str, Backend], bare: float) -> dict[str, Spread]:
    """What the aims are about; of Ray where it is installed.

    Args:
        backends: measured.
        bare: seconds of the operation in a bare call.
    """
    name = "ray" if "ray" in backends else "processes"
    hops = backends[name].hops
    found = {f"instruction ({name})": hops["64 B"].less(Spread(bare, bare), PER_HOP), f"1 MB ({name})": hops["1 MB"]}
    if (null := backends[name].null) is not None:
        found |= {f"launch, {kept} arrays": backends[name].launches[kept].less(null) for kept in KEPT}
    return found


def runtime_lines() -> list[Line]:
    """The aims as lines of the speed table, measured in a process of their own."""
    aims = {
        "instruction": (INSTRUCTION_S, "an instruction between two workers, beyond its work"),
        "1 MB": (MEGABYTE_S, "a hop of 1 MB, with an operation on it"),
        "launch": (LAUNCH_S, "launch of a step, beyond Ray's own call"),
    }
    done = run([sys.executable, "-m", "benchmarks.channels", "--json"]) if find_spec("jax") else None
    if done is None or done.code:
        note = "needs JAX: make test installs it" if done is None else done.error.strip()[-200:]
        return [Line(what, None, 1e6 * aim, "µs", note=note) for aim, what in aims.values()]
    lines = []
    for name, (least_s, median_s) in json.loads(done.output).items():
        aim, what = next(aims[start] for start in aims if name.startswith(start))
        lines.append(Line(what, 1e6 * median_s, 1e6 * aim, "µs", note=f"{name}; median, the least {duration(least_s)}"))
    return lines


def measured_backends() -> dict[str, Backend]:
    """This process, two processes, and two Ray actors where Ray is installed."""
    return {name: measure(name) for name in ("local", "processes", *(("ray",) if find_spec("ray") else ()))}


def _row(what: str, found: dict[str, Spread]) -> list[Any]:
    return [what, *(str(found[name]) for name in NAMES)]


def page() -> str:
    """The page, measured anew."""
    around = load()
    backends, bare = measured_backends(), bare_s(64)
    titles = {"local": "one process", "processes": "two processes", "ray": "two Ray actors"}
    from benchmarks.other_paths import ray_ways, transfer_server

    others = {"JAX's transfer server": transfer_server(), **(ray_ways() if find_spec("ray") else {})}
    messages = markdown_table(
        ["transport", *NAMES],
        [
            _row("socket, host arrays only", channel(rings=False)),
            _row("shared memory from 64 KiB, host arrays only", channel(rings=True)),
            *(_row(f"instruction lists in {titles[name]}", found.hops) for name, found in backends.items()),
            *(_row(name, found) for name, found in others.items()),
        ],
    )
    instructions = markdown_table(
        ["instruction lists in", "hop of 64 B", "per instruction", "less the operation"],
        [
            [
                titles[name],
                str(hop := found.hops["64 B"]),
                str(Spread(hop.least_s / PER_HOP, hop.median_s / PER_HOP)),
                str(Spread((hop.least_s - bare) / PER_HOP, (hop.median_s - bare) / PER_HOP)),
            ]
            for name, found in backends.items()
        ],
    )
    launches = markdown_table(
        ["workers", *(f"step that keeps {kept} arrays" for kept in KEPT), "Ray's own call", "difference"],
        [
            [
                titles[name],
                *(str(found.launches[kept]) for kept in KEPT),
                *(
                    ("-", "-")
                    if found.null is None
                    else (str(found.null), ", ".join(str(found.launches[kept].less(found.null)) for kept in KEPT))
                ),
            ]
            for name, found in backends.items()
        ],
    )
    steps = markdown_table(
        ["plan", "predicted", "measured", "error"],
        [
            [one.plan, duration(one.predicted_s), duration(one.measured_s), f"{one.error:+.0%}"]
            for one in predicted_steps()
        ],
    )
    aims = markdown_table(
        ["what", "measured", "target"],
        [[name, str(found), duration(_aim(name))] for name, found in summary(backends, bare).items()],
    )
    return f"""# Runtime overhead

Measured on {today()} with {version()} on {machine()}, {around}.
Made by `python -m benchmarks.channels`: wall time, the minimum of many repetitions and in brackets their median, which
includes interference from other processes.

{aims}

## Messages

Time of one message between two mesh workers of one machine. Except in the first two rows, a hop also places the array
on its device and runs an operation on it.

{messages}

Every pair of workers has one socket: a unix socket on one machine, TCP between machines. Messages of at least 64 KiB go
through shared memory if there is any, and the socket carries only their location. They are received into memory that
JAX uses without a copy. A worker whose send buffer is full keeps receiving, so instruction lists need no limit on
messages in flight. Ray starts and places workers and detects lost ones; it carries one call per worker and step, and no
messages. JAX's transfer server moves arrays from device to device without going through the host, which may pay off
across machines; on one machine with CPUs, starting a transfer takes longer than a whole message through a socket. Ray's
direct transport supports PyTorch tensors only, and needs one actor call per tensor.

A waiting worker polls for up to 0.5 ms, yielding its core between polls, and then sleeps, since waking up takes longer
than a small message. It sleeps at once if its previous wait was longer than that, if another process recently took the
core, or if the machine has fewer cores than workers.

## Instructions

A hop is four instructions: RECV, RUN of a minimal operation, SEND, FREE. Its time is a step with 100 hops minus a step
with none, divided by 100; a bare call of the operation takes {duration(bare)}.

{instructions}

## Launch of a step

A step of empty lists whose workers keep arrays from the previous step; {KEPT[1]} are those of a model with 150 weights
and Adam. "Ray's own call" calls an empty method of every actor and waits for the results.

{launches}

## Predicted steps

`meshwright run` of {MODEL[0]} with `{" ".join(MODEL[1:])}` on eight
virtual devices. The prediction times every executable alone, replays the lists with these times and divides the total
work evenly over the cores; it is compared with the median step. It includes neither Python's dispatch time nor cache
contention between devices that share cores.

{steps}
"""


def _aim(name: str) -> float:
    return INSTRUCTION_S if name.startswith("instruction") else MEGABYTE_S if name.startswith("1 MB") else LAUNCH_S


def main() -> None:
    """Measure, or be one end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-write", action="store_true", help="print the page only")
    parser.add_argument("--json", action="store_true", help="print least and median seconds of the aims only")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--mesh", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--no-rings", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    os.environ.update(SETTINGS)
    if asked.serve:
        serve(asked.mesh, asked.serve, rings=not asked.no_rings)
        return
    if asked.json:
        found = summary(measured_backends(), bare_s(64))
        print(json.dumps({name: [one.least_s, one.median_s] for name, one in found.items()}))
        return
    text = page()
    print(text)
    if not asked.no_write:
        write_page(PAGE, text)


if __name__ == "__main__":
    main()
