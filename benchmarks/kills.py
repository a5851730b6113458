"""Workers killed at random moments of one run: are the losses those of an undisturbed run, and is anything left behind?

    python -m benchmarks.kills [--backend processes|ray] [--kills 50] [--seed 0] [--wait 4] [--in-steps]

A perceptron on two meshes trains until the kills are used up; after each loss the same plan goes on from the
checkpoint, which is written every two steps. A kill comes a random time after workers were started: while they connect,
compile, or in the middle of a step; with --in-steps, once they have done a step, in one of the next. Losses of both
runs are compared bit by bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=512 --xla_backend_optimization_level=0")
os.environ.setdefault("NPROC", "64")

import jax

# Its own folder for what is temporary: other runs of this machine are none of its business.
tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="kills-")

from meshwright.runtime.parallelize import ParallelizedStep
from meshwright.runtime.train import Recovery, Steps, train
from meshwright.runtime.training.run import Training
from meshwright.specs.row import PlanRow

PAUSE_S = 0.02
"""Of every step, so that kills also meet some."""
IN_STEPS = 3.0
"""Steps within which a kill comes that is to meet one."""
STEPS_AFTER = 4
"""Done behind the last kill."""
SHARED = Path("/dev/shm")


class EnoughError(Exception):
    """All kills were survived."""


@dataclass
class Killer:
    """Kills a worker of whatever run is under way, again and again, from a thread."""

    kills: int
    wait_s: float
    drawn: random.Random
    in_steps: bool = False
    step: ParallelizedStep | None = None
    stepped: Any = None
    """Workers that have done a step."""
    step_s: float = 0.0
    """Of their last one."""
    done: list[str] = field(default_factory=list)
    last: Any = None

    def watch(self) -> None:
        """Until the kills are used up."""
        while len(self.done) < self.kills:
            crew = self._crew()
            if crew is None or crew is self.last or (self.in_steps and crew is not self.stepped):
                time.sleep(0.001 if self.in_steps else 0.01)
                continue
            # A crew is killed once, at a moment of its start, of its first step or of a later one.
            time.sleep(self.drawn.uniform(0.0, IN_STEPS * self.step_s if self.in_steps else self.wait_s))
            with suppress(Exception):
                pids = crew.pids()
                os.kill(self.drawn.choice(pids), signal.SIGKILL)
                self.last = crew
                self.done.append(str(len(self.done)))

    def told(self, seconds: float) -> None:
        """That a step was done."""
        self.stepped, self.step_s = self._crew(), seconds

    def _crew(self) -> Any:
        compiled = None if self.step is None else self.step.compiled()
        return None if compiled is None else getattr(compiled.runtime, "crew", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunted(Training):
    """A training whose step the killer knows."""

    killer: Killer

    def step(self, devices: Sequence[Any], *, gradients_too: bool = False) -> ParallelizedStep:
        """The step under the plan, shown to the killer."""
        # No `super()`: a dataclass with slots is another class than the one written here.
        made = Training.step(self, devices, gradients_too=gradients_too)
        self.killer.step = made
        return made


def main() -> int:
    """Print what was found; 1 where a loss differs or something was left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("processes", "ray"), default="processes")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wait", type=float, default=4.0, help="most seconds from the start of workers to a kill")
    parser.add_argument("--in-steps", action="store_true", help="kill workers that have done a step, in the next ones")
    asked = parser.parse_args()
    killer = Killer(kills=asked.kills, wait_s=asked.wait, drawn=random.Random(asked.seed), in_steps=asked.in_steps)
    row = PlanRow(pp=2, dp=1, mbs=2, gbs=8)
    hunted = Hunted(
        spec=None,
        row=row,
        stage_layers=(2, 2),
        seq_len=1,
        hidden=4,
        backend=asked.backend,
        timeout_s=120.0,
        killer=killer,
    )
    before = _left(), _sockets()
    started = time.monotonic()
    losses, recoveries = _hunted_run(hunted, killer)
    wall_s = time.monotonic() - started
    if asked.backend == "ray":
        import ray

        ray.shutdown()
    time.sleep(2.0)
    left, sockets = _left() - before[0], _sockets() - before[1]
    expected: dict[int, float] = {}
    calm = Training(spec=None, row=row, stage_layers=(2, 2), seq_len=1, hidden=4)
    train(
        calm,
        jax.devices(),
        Steps(count=max(losses) + 1),
        on_step=lambda number, loss, seconds, step: expected.__setitem__(number, loss),
    ).step.close()
    different = [number for number in losses if losses[number] != expected[number]]
    when = Counter("step" if " instruction" in one.why and "first" not in one.why else "set up" for one in recoveries)
    print(
        f"{asked.backend}: {len(killer.done)} kills, {len(recoveries)} recoveries told ({dict(when)}),"
        f" {max(losses) + 1} steps, {wall_s:.0f} s"
    )
    print(f"losses that differ from the undisturbed run: {len(different)} of {len(losses)} {different[:5]}")
    print(f"left behind: {sorted(left) or 'nothing'}; sockets of this process more than before: {sockets}")
    return int(bool(different or left))


def _hunted_run(hunted: Hunted, killer: Killer) -> tuple[dict[int, float], list[Recovery]]:
    """Losses by step, and recoveries."""
    losses: dict[int, float] = {}
    recoveries: list[Recovery] = []
    ends: list[int] = []

    def on_step(number: int, loss: float, seconds: float, step: ParallelizedStep) -> None:
        losses[number] = loss
        killer.told(seconds)
        if not killer.in_steps:
            time.sleep(PAUSE_S)
        if len(killer.done) == killer.kills:
            ends.append(number + STEPS_AFTER)
            if number >= ends[0]:
                raise EnoughError

    def same_plan(training: Hunted, left: int, lost: Sequence[int] = ()) -> Hunted:
        return replace(training)

    threading.Thread(target=killer.watch, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder, suppress(EnoughError):
        steps = Steps(count=sys.maxsize, folder=Path(folder) / "state", every=2, plan_again=same_plan)
        train(hunted, jax.devices(), steps, on_step=on_step, on_recovery=recoveries.append)
    return losses, recoveries


def _left() -> set[str]:
    """What could stay behind: shared memory, folders of sockets, ended processes that nobody asked about, workers."""
    found = {f"shared memory {one.name}" for one in SHARED.glob("*meshwright*")} if SHARED.is_dir() else set()
    found |= {f"folder {one.name}" for one in Path(tempfile.gettempdir()).glob("meshwright-*")}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number, _, rest = stat.read_text().partition(" (")
            state, parent = rest.rpartition(") ")[2].split()[:2]
            command = (stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if int(parent) == os.getpid() and (state == "Z" or "meshwright.runtime.workers.processes" in command):
                found.add(f"process {number} ({state})")
    return found


def _sockets() -> int:
    """Sockets that this process holds open."""
    count = 0
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += os.readlink(one).startswith("socket:")
    return count


if __name__ == "__main__":
    sys.exit(main())
