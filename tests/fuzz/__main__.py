"""The long run: many drawn inputs through every door, each within its budget; what fails is kept as a file.

Input n of a door is drawn from the seed, the door's name and n alone, so that a run that was stopped goes on where it
was, and a fault can be drawn again. A batch of inputs runs in a process of its own, which may be killed. All doors get
as much processor time, so that those of readers, which cost least, get most inputs.

    python -m tests.fuzz --inputs 500000 --minutes 600
    python -m tests.fuzz FILE                            one kept input again
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from meshwright.formats.writing import write_file
from tests.fuzz.cases import WAITING, Door, case_of, fault_of
from tests.fuzz.doors import DOORS
from tests.fuzz.readers import READERS

BATCH = 5000
"""Inputs of one process at most: what it leaves in memory goes with it."""
BATCH_S = 10.0
"""Processor seconds of inputs after which a process ends."""
GRACE_S = 20.0
"""Beyond its budget, in which an input that no alarm can stop is ended with its process."""
MOST_MEMORY = 6 * 1024**3
"""Bytes of addresses, a third over what a question may take."""


def main() -> int:
    """Run the doors, and print what came of it."""
    asked = _asked()
    if asked.again:
        fault = fault_of(case_of(Path(asked.again).read_text()), asked.budget)
        print(fault or "nothing is wrong with the answer")
        return 1 if fault else 0
    doors = [door for door in (*READERS, *DOORS) if not asked.doors or door.name in asked.doors.split(",")]
    folder = Path(asked.folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / f"seed-{asked.seed}.json"
    done = Progress(**json.loads(state.read_text())) if state.exists() else Progress()
    found: Counter[str] = Counter()
    end = time.monotonic() + 60 * asked.minutes
    while time.monotonic() < end and (left := asked.inputs - done.of(doors)) > 0:
        # Every door gets as much time, so that the quick ones get most inputs.
        door = min(doors, key=lambda door: done.seconds.get(door.name, 0.0))
        first = done.inputs.get(door.name, 0)
        ran, took_s = _batch(door, range(first, first + min(BATCH, left)), asked, folder, found, end)
        done.inputs[door.name] = first + ran
        done.seconds[door.name] = done.seconds.get(door.name, 0.0) + max(took_s, 1e-3)
        write_file(state, json.dumps(asdict(done), indent=1, sort_keys=True))
    print(f"{'door':24}{'inputs':>9}{'ms each':>9}")
    for door in doors:
        inputs = done.inputs.get(door.name, 0)
        print(f"{door.name:24}{inputs:9,}{1e3 * done.seconds.get(door.name, 0.0) / max(inputs, 1):9.1f}")
    print(f"{'all':24}{done.of(doors):9,}")
    print(f"{sum(found.values()):,} faults at {len(found)} places in this run; inputs that show them are in {folder}")
    for where, count in found.most_common():
        print(f"  {count:5}  {where}")
    return 1 if found else 0


@dataclass(slots=True, kw_only=True)
class Progress:
    """Of a seed, kept between runs."""

    inputs: dict[str, int] = field(default_factory=dict)
    """Run so far, by door."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Processor seconds they took, by door."""

    def of(self, doors: list[Door]) -> int:
        """Inputs of doors."""
        return sum(self.inputs.get(door.name, 0) for door in doors)


def _asked() -> argparse.Namespace:
    words = argparse.ArgumentParser(prog="python -m tests.fuzz")
    words.add_argument("again", nargs="?", help="a kept input, run again")
    words.add_argument("--inputs", type=int, default=500_000, help="of all doors together")
    words.add_argument("--minutes", type=float, default=600.0, help="at most")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--budget", type=float, default=20.0, help="processor seconds of an input")
    words.add_argument("--doors", default="", help="names, with commas; all of them otherwise")
    words.add_argument("--folder", default=".fuzz", help="where failures and progress are kept")
    return words.parse_args()


def _batch(
    door: Door, numbers: range, asked: argparse.Namespace, folder: Path, found: Counter[str], end: float
) -> tuple[int, float]:
    """Run inputs in processes of their own; how many were run before time was up, and their processor seconds."""
    at, took_s = numbers.start, 0.0
    while at < numbers.stop and took_s < BATCH_S and time.monotonic() < end:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            _run(door, range(at, numbers.stop), asked, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            while at < numbers.stop and took_s < BATCH_S and time.monotonic() < end:
                ready, _, _ = select.select([stream], [], [], WAITING * asked.budget + GRACE_S)
                line = stream.readline() if ready else b""
                killed = "killed: " + ("its process died" if ready else "no alarm stops it")
                fault, spent_s = json.loads(line) if line else (killed, asked.budget)
                took_s += spent_s
                if fault:
                    _keep(door, at, asked, folder, fault, found)
                at += 1
                if not line:
                    break
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return at - numbers.start, took_s


def _run(door: Door, numbers: range, asked: argparse.Namespace, writer: int) -> None:
    """In the child: a line for every input."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        os.fsync = lambda handle: None  # waiting for a disk finds nothing here
        for number in numbers:
            start_s = time.process_time()
            fault = fault_of(door.draw(_chance(door, number, asked)), asked.budget)
            os.write(writer, json.dumps([fault, time.process_time() - start_s]).encode() + b"\n")
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def _chance(door: Door, number: int, asked: argparse.Namespace) -> Random:
    return Random(f"{asked.seed}/{door.name}/{number}")


def _keep(door: Door, number: int, asked: argparse.Namespace, folder: Path, fault: str, found: Counter[str]) -> None:
    """Of every place, the first few inputs."""
    where = fault.split("\n")[0]
    found[f"{door.name}: {where}"] += 1
    if found[f"{door.name}: {where}"] <= 2:
        case = door.draw(_chance(door, number, asked))
        write_file(folder / f"{door.name}-{asked.seed}-{number}.json", case.to_json())
        write_file(folder / f"{door.name}-{asked.seed}-{number}.txt", f"{case.words or case.values}\n{fault}\n")


if __name__ == "__main__":
    sys.exit(main())
