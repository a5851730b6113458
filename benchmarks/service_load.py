"""Load on a service: estimates a second, their latency, and processor time: `python -m benchmarks.service_load`.

Starts a service of its own, asks it estimates over connections that stay open, each another question, and with
`--plans N` that many searches at the same time. Each connection asks again as soon as it is answered, so that the mean
latency is connections / rate whatever the service does (Little's law); with `--rate R` that many are asked a second at
equal distances, and each waits for a free connection from the moment at which it was due. `--jobs N` accepts that many
jobs, and kills the searching workers while each runs; all of them have to be answered. The memory of its processes is
looked at ten times, for soaks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.timing import Line
from meshwright.client import Client

PLANS = ("tp8.pp4.mbs1.z1.rc-full", "tp8.pp2.mbs1.z1.rc-full", "tp4.pp4.mbs1.z1.rc-full", "tp8.pp8.mbs1.z1.rc-sel")
OFFERED_PER_S = 200
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Load:
    """What was measured."""

    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    plans_s: list[float] = field(default_factory=list)
    plan_statuses: dict[int, int] = field(default_factory=dict)
    memory_mib: list[float] = field(default_factory=list)
    memory_of_each_mib: list[dict[int, float]] = field(default_factory=list)
    jobs: dict[str, int] = field(default_factory=dict)


async def ask(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], verb: str, body: object) -> int:
    """One request on an open connection; its status."""
    reader, writer = stream
    content = json.dumps(body).encode()
    head = f"POST /v1/{verb} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length"))
    await reader.readexactly(length)
    return int(lines[0].split()[1])


def question(count: int) -> dict[str, object]:
    """An estimate, another one for each number."""
    seq_len = 1024 + 8 * (count % 4000)
    return {"model": "llama-3.1-70b", "plan": PLANS[count % 4], "gpus": "64xH100", "seq_len": seq_len}


async def estimates(port: int, number: int, connections: int, until: float, load: Load) -> None:
    """Estimates on one connection until a time, no question twice."""
    stream = await asyncio.open_connection("127.0.0.1", port)
    count = number
    while time.monotonic() < until:
        started = time.monotonic()
        await noted(stream, count, started, load)
        count += connections
    stream[1].close()


async def noted(
    stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], count: int, since: float, load: Load
) -> None:
    """One estimate, and how long it took since a moment."""
    status = await ask(stream, "estimate", question(count))
    load.seconds.append(time.monotonic() - since)
    load.statuses[status] = load.statuses.get(status, 0) + 1


async def paced(port: int, connections: int, rate: float, seconds: float, load: Load) -> None:
    """Estimates at equal distances, whether or not those before are answered; they share the connections."""
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(connections):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    started, tasks = time.monotonic(), []

    async def one(count: int) -> None:
        stream = await free.get()
        await noted(stream, count, started + count / rate, load)
        free.put_nowait(stream)

    for count in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, started + count / rate - time.monotonic()))
        tasks.append(asyncio.create_task(one(count)))
    await asyncio.gather(*tasks)
    while not free.empty():
        free.get_nowait()[1].close()


async def plan(port: int, number: int, load: Load) -> None:
    """One search of 64 devices."""
    stream = await asyncio.open_connection("127.0.0.1", port)
    started = time.perf_counter()
    status = await ask(stream, "plan", {"model": "llama-3.1-70b", "gpus": "64xH100", "seq_len": 4096 + 512 * number})
    load.plans_s.append(time.perf_counter() - started)
    load.plan_statuses[status] = load.plan_statuses.get(status, 0) + 1
    stream[1].close()


async def measured(
    port: int, connections: int, seconds: float, plans: int, server: int = 0, kills: int = 0, rate: float = 0.0
) -> Load:
    """Ask from all connections at once."""
    load, until = Load(), time.monotonic() + seconds
    if rate:
        tasks = [paced(port, connections, rate, seconds, load)]
    else:
        tasks = [estimates(port, number, connections, until, load) for number in range(connections)]
    memory = [watched(server, seconds, load)] if server else []
    killing = [jobs(port, kills, server, until)] if kills else []
    found = await asyncio.gather(*killing, *tasks, *memory, *(plan(port, number, load) for number in range(plans)))
    load.jobs = (found[0] or {}) if kills else {}
    return load


async def jobs(port: int, count: int, server: int, until: float) -> dict[str, int]:
    """Jobs one after the other, the workers that search killed while each runs; how many are answered all the same."""
    client, names = Client(f"http://127.0.0.1:{port}"), []
    killed = 0
    for number in range(count):
        body = {"model": "gpt2", "gpus": "2xH100", "global_batch": 8 * (number + 1)}
        names.append(await asyncio.to_thread(partial(client.start, "plan", **body)))
        while time.monotonic() < until + 120 and (await asyncio.to_thread(client.job, names[-1]))["state"] == "queued":
            await asyncio.sleep(0.05)
        for process in searchers(server):
            os.kill(process, signal.SIGKILL)
            killed += 1
        while time.monotonic() < until + 120 and await asyncio.to_thread(open_, client, names[-1]):
            await asyncio.sleep(0.2)
    found = [await asyncio.to_thread(client.job, name) for name in names]
    return {
        "accepted": len(names),
        "killed": killed,
        "hit": sum(one["attempts"] > 1 for one in found),
        "answered": sum(one["state"] == "done" for one in found),
        "given_up": sum(one["state"] == "failed" for one in found),
    }


def open_(client: Client, name: str) -> bool:
    """Whether a job waits or runs."""
    return client.job(name)["state"] in ("queued", "running")


def children(process: int) -> list[int]:
    """Processes that a process started."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def searchers(server: int) -> list[int]:
    """Processes that search: they are nicer than the service."""
    own = os.getpriority(os.PRIO_PROCESS, server)
    return [child for child in children(server) if not is_dead(child) and os.getpriority(os.PRIO_PROCESS, child) > own]


def is_dead(process: int) -> bool:
    """Whether a process has ended, and is left in the system's table of processes alone."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def memory_bytes(server: int) -> dict[int, int]:
    """Resident bytes of a service and of each of its workers."""
    found = {}
    for process in (server, *children(server)):
        with suppress(OSError):
            found[process] = int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE_BYTES
    return found


async def watched(server: int, seconds: float, load: Load) -> None:
    """Note the memory ten times."""
    for _ in range(10):
        await asyncio.sleep(seconds / 10)
        each = memory_bytes(server)
        load.memory_mib.append(round(sum(each.values()) / 2**20, 1))
        load.memory_of_each_mib.append({process: round(one / 2**20, 1) for process, one in each.items()})


def processor_s(process: int) -> float:
    """Processor time of a process and of those it started."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS + sum(processor_s(child) for child in children(process))


def main() -> int:
    """Start, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--plans", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--rate", type=float, default=0.0)
    asked = parser.parse_args()
    found = loaded(asked.connections, asked.seconds, asked.plans, asked.jobs, asked.workers, asked.rate)
    print(json.dumps(found, indent=1))
    return 0


def service_lines(seconds: float = 10.0) -> list[Line]:
    """What a service of two workers answers: estimates alone, beside searches, and with workers killed."""
    alone = loaded(50, seconds, 0, 0, "2")
    offered = loaded(50, seconds, 0, 0, "2", OFFERED_PER_S)
    beside = loaded(50, 3 * seconds, 10, 0, "2")
    killed = loaded(2, 6 * seconds, 0, 10, "2")
    answered = beside["plan_statuses"].get(200, 0)
    jobs = killed["jobs"]
    held = alone["memory_mib"]
    spent = f"{alone['cpu_ms_per_estimate']} ms of processor time each, {alone['processors']} processors"
    asks = f"{alone['client_cpu_ms_per_estimate']} ms more in the client, on the same processors"
    asked = f"of {offered['estimates']} asked at equal distances over 50 connections, since each was due"
    return [
        Line("estimates over HTTP", alone["estimates_per_s"], 200, "per second", True, f"50 connections; {spent}"),
        Line("p99 of these", alone["p99_ms"], 200, "ms", note=f"each asks again as soon as it is answered; {asks}"),
        Line(f"p99 of {OFFERED_PER_S} estimates a second", offered["p99_ms"], 200, "ms", note=asked),
        Line("p99 of estimates beside 10 plans", beside["p99_ms"], 200, "ms", note=f"{answered} of 10 plans answered"),
        Line(
            "jobs answered though a worker was killed behind each",
            jobs["answered"],
            jobs["accepted"],
            "jobs",
            True,
            f"{jobs['killed']} workers killed, {jobs['hit']} jobs begun anew",
        ),
        Line(
            "memory gained in the second half of the estimates alone",
            held[-1] - held[len(held) // 2],
            10,
            "MiB",
            note=f"of {held[-1]:.0f} MiB; {killed['memory_mib'][-1]:.0f} MiB with workers started anew after kills",
        ),
    ]


def loaded(connections: int, seconds: float, plans: int, kills: int, workers: str, rate: float = 0.0) -> dict[str, Any]:
    """A service of its own under load, as data.

    Args:
        connections: that ask estimates.
        seconds: how long.
        plans: searches at the same time.
        kills: jobs at the same time, each with a kill behind it.
        workers: of the service.
        rate: estimates asked a second at equal distances; 0 for as many as are answered.
    """
    command = [sys.executable, "-m", "meshwright", "serve", "--json", "-q", "--port", "8455", "--workers", workers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            ready(8455)
            asyncio.run(measured(8455, 1, 1.0, 0))
            before, started, load_average = processor_s(server.pid), time.monotonic(), os.getloadavg()[0]
            held_mib, own_s = sum(memory_bytes(server.pid).values()) / 2**20, time.process_time()
            load = asyncio.run(measured(8455, connections, seconds, plans, server.pid, kills, rate))
            own_s = time.process_time() - own_s
            spent_s, elapsed_s = processor_s(server.pid) - before, time.monotonic() - started
        finally:
            server.terminate()
            server.wait(10)
    times = sorted(load.seconds)
    return {
        "estimates": len(times),
        "statuses": load.statuses,
        # Asked at a rate, a service that is too slow answers long after the last question.
        "estimates_per_s": round(len(times) / (elapsed_s if rate else seconds), 1),
        "p50_ms": round(1e3 * times[len(times) // 2], 1),
        "p99_ms": round(1e3 * times[int(len(times) * 0.99)], 1),
        "cpu_ms_per_estimate": round(1e3 * spent_s / len(times), 2) if not plans + kills else None,
        "client_cpu_ms_per_estimate": round(1e3 * own_s / len(times), 2),
        "cpu_s": round(spent_s, 2),
        "elapsed_s": round(elapsed_s, 2),
        "plan_statuses": load.plan_statuses,
        "plans_s": [round(one, 2) for one in sorted(load.plans_s)],
        "memory_mib_before": round(held_mib, 1),
        "memory_mib": load.memory_mib,
        "memory_of_each_mib": load.memory_of_each_mib,
        "jobs": load.jobs,
        "load_averages": [round(load_average, 2), round(os.getloadavg()[0], 2)],
        "processors": os.cpu_count(),
    }


def ready(port: int) -> None:
    """Wait until the service answers."""
    from urllib.request import urlopen

    for _ in range(600):
        try:
            with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the service did not start")


if __name__ == "__main__":
    sys.exit(main())
