"""Kills (SIGKILL) at drawn moments, a hundred of each kind, and whether anything is lost: `make kills`.

    writes     a file written over and over: it is one of the contents, whole
    answers    `plan -o`: the file is the one from before, or whole
    sweeps     `sweep` killed again and again and gone on with: the rows are those of an undisturbed sweep
    calculon-sweeps  likewise `calculon sweep`
    studies    likewise with `tune --storage`: no trial that was there is gone, and the best is the same
    optuna, smac, ray  their studies: every trial that was there stays as it was, and all that were asked for come
    jobs       the queue of a service: what was accepted is there, what was answered keeps its answer, the rest waits
    checkpoints  saved over and over, the next process going on from the last: it is whole, and none is lost

Processes are forked with everything imported, so that a kill costs no start. Workers of a run and of the service are
killed by `python -m benchmarks.kills` and `python -m benchmarks.service_load`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from meshwright.cli import main as command
from meshwright.formats.writing import write_file
from tests.families import Family

KEPT = "kept before\n"
CALCULON_SWEEP = "calculon sweep megatron-126M a100_80g --procs 4,8,12,16,24,32 --batch 8,16 -o s.parquet"
SWEEP = "sweep study.toml -o s.parquet"
SWEPT = 'model = ["gpt2"]\ngpus = ["1xH100", "2xH100", "4xH100"]\ngbs = [8, 16]\nseq = [512, 1024]\n'
MOST_OF_ONE = 20
"""Kills of one sweep, after which it may end: on a busy machine each might come before anything is done."""
TRIALS = 40
RAY_S = 90.0
"""For Ray's agents, which end after they have missed their parent several times."""
STUDY = f"tune gpt2 --gpus 4xH100 --gbs 8 --seq 512 --with random --trials {TRIALS} --storage t.db"
ANSWER = "plan gpt2 --gpus 4xH100 --gbs 8 --seq 512 --top 1 -o out"

LAB = '[[group]]\nname = "lab"\ndevice = "H100"\nnodes = 1024\ndevices_per_node = 8\n'
FAMILIES = (
    "plan deepseek-v3 --cluster lab.toml --top 1 --watch",
    "serve --port 18471 --workers 2",
    "calculon sweep megatron-126M a100_80g --procs 4,8,12,16,24,32 --batch 8,16 -o f.parquet --force",
    "run moe-tiny --plan pp2.dp2 --devices 4 --backend processes --steps 100000",
)


@dataclass
class Clock:
    """When the kills of a kind have to end, however many there were."""

    end_s: float = math.inf

    def left(self) -> bool:
        """Whether there is time."""
        return time.monotonic() < self.end_s


CLOCK = Clock()


def killed(act: Callable[[], Any], after_s: float) -> bool:
    """Run something in a process of its own and kill it after a while; whether it was still at it.

    Args:
        act: what is done.
        after_s: from its start.
    """
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            act()
        os._exit(0)
    end = time.monotonic() + after_s
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def took_s(before: str, words: str) -> float:
    """Seconds of a command line, after another one like it has imported what it needs."""
    assert command(before.split()) == 0, before
    start_s = time.monotonic()
    assert command(words.split()) == 0, words
    return time.monotonic() - start_s


def writes(kills: int, chance: Random) -> tuple[int, list[str]]:
    """Of a writer that never stops."""
    contents = {letter: letter * chance.randint(1, 3_000_000) for letter in "abcdef"}
    place, wrong = Path("out"), []

    def write_on() -> None:
        for number in range(10**9):
            write_file(place, contents["abcdef"[number % 6]])

    for number in range(kills):
        killed(write_on, chance.uniform(0.0, 0.1))
        text = place.read_text() if place.exists() else ""
        if text and text != contents[text[0]]:
            wrong.append(f"kill {number}: {len(text)} characters of {text[0]!r}")
        for left in Path().glob(".out-*.part"):
            left.unlink()
    return kills, wrong


def checkpoints(kills: int, chance: Random) -> tuple[int, list[str]]:
    """Of training that saves all the time."""
    import numpy as np

    from meshwright.runtime.checkpoint import last_checkpoint, restore_checkpoint, save_checkpoint

    def state(step: int) -> dict[str, Any]:
        return {"weights": np.full(200_000, step), "moments": np.full((300, 300), step), "step": np.int64(step)}

    def save_on(step: int) -> None:
        for number in range(step + 1, 10**9):
            save_checkpoint("run", state(number))

    wrong, step = [], 0
    for number in range(kills):
        killed(lambda step=step: save_on(step), chance.uniform(0.0, 0.1))
        if last_checkpoint("run") is None:
            if step:
                wrong.append(f"kill {number}: no checkpoint after step {step}")
            continue
        found = restore_checkpoint("run", state(0))
        if any((np.asarray(value) != found["step"]).any() for value in found.values()) or found["step"] < step:
            wrong.append(f"kill {number}: step {found['step']} after {step}, or arrays of two steps")
        step = int(found["step"])
    return kills, wrong


def jobs(kills: int, chance: Random) -> tuple[int, list[str]]:
    """Of a service that accepts jobs and answers them; a line of a file says what a caller was told."""
    from meshwright.service.answering import Reply
    from meshwright.service.job_queue import DONE, QUEUED, JobQueue

    place, told, wrong = Path("jobs.db"), Path("told"), []

    def serve_on() -> None:
        queue = JobQueue(place)
        with told.open("a", buffering=1) as lines:
            for number in range(10**9):
                name = queue.add("estimate", {"number": number})
                lines.write(f"accepted {name}\n")
                taken = queue.take() if number % 3 else None
                if taken is not None:
                    queue.finish(taken.id, Reply(status=200, content=taken.id.encode()))
                    lines.write(f"answered {taken.id}\n")

    for number in range(kills):
        killed(serve_on, chance.uniform(0.0, 0.15))
        queue = JobQueue(place)
        for line in told.read_text().splitlines() if told.exists() else []:
            what, _, name = line.partition(" ")
            job = queue.get(name)
            if job is None or job.state not in (QUEUED, DONE):
                wrong.append(f"kill {number}: {line}, and it is {job and job.state}")
            elif (what == "answered") > (job.reply is not None and job.reply.content == name.encode()):
                wrong.append(f"kill {number}: the answer of {name} is another")
        queue.close()
        for left in (*Path().glob("jobs.db*"), told) if number % 10 == 9 else ():
            left.unlink(missing_ok=True)
    return kills, wrong


def answers(kills: int, chance: Random) -> tuple[int, list[str]]:
    """Of a plan that is written over a file."""
    place, wrong, met = Path("out"), [], 0
    whole_s = took_s(ANSWER, ANSWER)
    size = len(place.read_text())
    while met < kills and CLOCK.left():
        place.write_text(KEPT)
        met += killed(lambda: command(ANSWER.split()), chance.uniform(0.5, 1.0) * whole_s)
        text = place.read_text()
        if text != KEPT and abs(len(text) - size) > 50:
            wrong.append(f"kill {met}: {len(text)} characters of {size}")
    return met, wrong


def swept(sweep: str, kills: int, chance: Random) -> tuple[int, list[str]]:
    """Of sweeps that go on until they are done, with parts as short as the sweep is."""
    from meshwright.formats import sweep_parts

    sweep_parts.PART_S, sweep_parts.PART_SHARE = 0.01, 0.0
    from meshwright.formats.sweep_file import read_sweep

    Path("study.toml").write_text(SWEPT)
    whole_s = took_s(sweep.replace("s.parquet", "other.parquet"), sweep.replace("s.parquet", "whole.parquet"))
    expected = sorted(map(repr, read_sweep("whole.parquet")))
    wrong, met = [], 0
    while met < kills and CLOCK.left():
        at_least = met
        while met < at_least + MOST_OF_ONE and killed(
            lambda: command([*sweep.split(), "--resume"]), chance.uniform(0.0, 0.9) * whole_s
        ):
            met += 1
        if command([*sweep.split(), "--resume"]):
            wrong.append(f"after {met} kills --resume failed")
        elif sorted(map(repr, read_sweep("s.parquet"))) != expected:
            wrong.append(f"after {met} kills the rows are others")
        Path("s.parquet").unlink(missing_ok=True)
    return met, wrong


def studies(kills: int, chance: Random) -> tuple[int, list[str]]:
    """Of studies that go on until they are done."""
    whole_s = took_s(STUDY.replace("t.db", "other.db"), STUDY.replace("t.db", "whole.db"))
    expected, wrong, met = _trials("whole.db"), [], 0
    while met < kills and CLOCK.left():
        had = 0
        while killed(lambda: command([*STUDY.split(), "--resume"]), chance.uniform(0.0, 0.7) * whole_s):
            met += 1
            now = len(_trials("t.db"))
            if now < had:
                wrong.append(f"after {met} kills {now} of {had} trials are there")
            had = now
        if command([*STUDY.split(), "--resume"]) or _trials("t.db") != expected:
            wrong.append(f"after {met} kills the study is another")
        for left in Path().glob("t.db*"):
            left.unlink()
    return met, wrong


def tuned(tuner: str, kills: int, chance: Random) -> tuple[int, list[str]]:
    """Of studies of another package in this process; what it proposes after a kill is its own affair."""
    study = STUDY.replace("random", tuner)
    whole_s = took_s(study.replace("t.db", "other.db"), study.replace("t.db", "whole.db"))
    wrong, met = [], 0
    while met < kills and CLOCK.left():
        had: list[tuple[Any, ...]] = []
        while CLOCK.left() and killed(
            lambda: command([*study.split(), "--resume"]), chance.uniform(0.0, 0.7) * whole_s
        ):
            met += 1
            wrong += _lost(had, met)
            had = _trials("t.db")
        if command([*study.split(), "--resume"]):
            wrong.append(f"after {met} kills --resume failed")
        wrong += _lost(had, met)
        if [row[0] for row in _trials("t.db")] != list(range(TRIALS)):
            wrong.append(f"after {met} kills there are {len(_trials('t.db'))} trials")
        for left in Path().glob("t.db*"):
            left.unlink()
    return met, wrong


def ray_tuned(kills: int, chance: Random) -> tuple[int, list[str]]:
    """Of studies whose trials Ray's workers price: likewise, and no process of Ray stays."""
    study = STUDY.replace("random", "ray-tune").split()
    wrong: list[str] = []
    had: list[tuple[Any, ...]] = []
    ended: list[tuple[int, Family, float]] = []
    met = 0
    while met < kills and CLOCK.left():
        met += 1
        family = Family([*study, "--resume"], Path.cwd(), {"NPROC": "2"})
        if not family.until(lambda living, had=had: len(_trials("t.db")) > len(had), 240.0):
            wrong.append(f"kill {met}: no trial came in 240 s")
        time.sleep(chance.uniform(0.0, 0.5))
        family.first.kill()
        family.first.wait()
        ended.append((met, family, time.monotonic() + RAY_S))
        wrong += _lost(had, met)
        had = _trials("t.db")
        if len(had) == TRIALS:
            had = []
            for name in Path().glob("t.db*"):
                name.unlink()
        # The next study begins while the agents of the last one end.
        ended = [one for one in ended if not _over(*one, wrong)]
    for number, family, end_s in ended:
        family.until(lambda living: not living, max(0.0, end_s - time.monotonic()))
        _over(number, family, 0.0, wrong)
    return met, wrong


def _over(number: int, family: Family, end_s: float, wrong: list[str]) -> bool:
    """Whether no process of a killed command lives, or its time is over; those that live then are told, and ended."""
    left = family.living()
    if left and time.monotonic() < end_s:
        return False
    if left:
        wrong.append(f"kill {number}: {', '.join(left.values())}")
        family.kill(0.0)
    return True


def _lost(had: list[tuple[Any, ...]], met: int) -> list[str]:
    """A sentence where trials that a study had are not there as they were."""
    now = _trials("t.db")
    return [] if now[: len(had)] == had else [f"after {met} kills the {len(had)} trials are others"]


def _trials(name: str) -> list[tuple[Any, ...]]:
    """Numbers and values of the trials in a storage."""
    if not Path(name).exists():
        return []
    with contextlib.closing(sqlite3.connect(name)) as storage:
        tables = {row[0] for row in storage.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "meshwright_trial" not in tables:
            return []
        return storage.execute("SELECT number, name, value FROM meshwright_trial ORDER BY number").fetchall()


def families(kills: int, chance: Random) -> tuple[int, list[str]]:
    """Of commands whose work other processes do: none of these stays."""
    wrong, folder = [], Path.cwd()
    (folder / "lab.toml").write_text(LAB)
    for number in range(kills):
        command = FAMILIES[number % len(FAMILIES)]
        family = Family(command.split(), folder, {"NPROC": "2"})
        family.until(lambda living: len(living) > 1)
        time.sleep(chance.uniform(0.0, 5.0))
        if left := family.kill():
            wrong.append(f"kill {number} of {command}: {', '.join(left.values())}")
    return kills, wrong


KINDS: dict[str, Callable[[int, Random], tuple[int, list[str]]]] = {
    "writes": writes,
    "checkpoints": checkpoints,
    "jobs": jobs,
    "answers": answers,
    "sweeps": partial(swept, SWEEP),
    "calculon-sweeps": partial(swept, CALCULON_SWEEP),
    "studies": studies,
}
KINDS |= {"optuna": partial(tuned, "optuna"), "smac": partial(tuned, "smac"), "ray": ray_tuned, "families": families}


def main() -> int:
    """Kill, and print what was lost."""
    asked = argparse.ArgumentParser(prog="python -m tests.kills")
    asked.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="all otherwise")
    asked.add_argument("--kills", type=int, default=100, help="of each kind, at least")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--minutes", type=float, default=math.inf, help="of a sweep, a study or a plan, at most")
    given = asked.parse_args()
    failed = 0
    for kind in given.kinds or KINDS:
        start_s, before = time.monotonic(), Path.cwd()
        CLOCK.end_s = start_s + 60 * given.minutes
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    met, wrong = KINDS[kind](given.kills, Random(given.seed))
            finally:
                os.chdir(before)
        failed += len(wrong)
        print(f"{kind}: {met} kills, {len(wrong)} losses, {time.monotonic() - start_s:.0f} s", flush=True)
        for one in wrong[:5]:
            print(f"  {one}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
