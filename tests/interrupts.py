"""Interruptions at drawn moments: whatever a verb is about, it ends with 130, and its files are whole or untouched.

A command runs in this process. At its n-th line of our own source a signal is sent, the one that Ctrl+C sends or the
one of batch systems, so that it arrives where no clock would bring it a second time. A run without a signal counts the
lines; the moments are drawn from a seed.

    python -m tests.interrupts --moments 100 --seed 0 [WORDS ...]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import meshwright
from meshwright.__main__ import main as command
from tests.fuzz import samples

OURS = str(Path(meshwright.__file__).parent)
FIRST = ("__main__.py", "meshwright/interruptions.py")
"""What takes signals itself: the few lines before it does are like the start of Python."""
KEPT = "kept before\n"
INTERRUPTED = 130
SMALL = "--gbs 8 --seq 512"
RUN = "run mlp-tiny --plan dp2 --layers 2 --hidden 4 --gbs 8 --steps 3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A command line and what it needs."""

    words: str
    outputs: tuple[str, ...] = ("out",)
    """Files it writes over: each whole, or as it was."""
    folders: tuple[str, ...] = ()
    """Folders it makes: there with all their files, or not there."""
    files: Mapping[str, str] = field(default_factory=dict)
    heavy: bool = False
    """It starts devices or processes: left out of the short run."""


QUESTIONS: Mapping[str, Question] = {
    one.words.split(" -")[0].split(" gpt2")[0].split(" llama")[0] + f" #{number}": one
    for number, one in enumerate(
        (
            Question(words=f"plan gpt2 --gpus 4xH100 {SMALL} --top 1 -o out"),
            Question(words=f"plan gpt2 --gpus 2xH100,2xA100-80 {SMALL} --top 1 -o out --json"),
            Question(
                words="check llama-3.1-8b train.sh --gpus 64xH100 --fix -o out", files={"train.sh": samples.SCRIPT}
            ),
            Question(words="export plans.json#1 --to megatron -o launch", outputs=(), folders=("launch",)),
            Question(words="trace plans.json#1 -o out"),
            Question(words="report plans.json#1 -o out.html", outputs=("out.html",)),
            Question(words="schedule zb-h1 --p 2 --m 4 --svg out"),
            Question(words="validate measured.csv -o results", outputs=(), folders=("results",)),
            Question(words=f"tune gpt2 --gpus 2xH100 {SMALL} --with random --trials 4 --storage t.db", outputs=()),
            Question(words="calculon sweep megatron-126M a100_80g --procs 4,8 --batch 8 -o s.parquet", outputs=()),
            Question(words="gpus add gpu.toml --library lib", outputs=()),
            Question(words="models add config.json --name mine --library lib", outputs=()),
            Question(words=f"{RUN} --checkpoint state --every 1", outputs=(), heavy=True),
            Question(words=f"{RUN} --backend processes", outputs=(), heavy=True),
            Question(words="calculon search gpt3-13B a100_80g --procs 64 --batch 64", outputs=(), heavy=True),
        )
    )
}
"""By verb and number."""


class Moment:
    """Counts lines of our source in the main thread, and sends a signal at one of them."""

    def __init__(self, at: int | None, number: int) -> None:
        self.at, self.number, self.lines, self.place = at, number, 0, ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        return self.line if name.startswith(OURS) and not name.endswith(FIRST) else None

    def line(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        """Of a frame of ours."""
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                self.place = f"{frame.f_code.co_filename.removeprefix(OURS)}:{frame.f_lineno}"
                sys.settrace(None)
                signal.raise_signal(self.number)
        return self.line


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What came of a command."""

    code: int
    said: str
    lines: int
    place: str
    """File and line of the interruption."""
    processes: int
    """Of its own, that still run."""


def ended(question: Question, folder: Path, at: int | None = None, number: int = signal.SIGINT) -> Ended:
    """Run a command in a folder, interrupted at a line.

    Args:
        question: what is asked.
        folder: where its files are.
        at: the line, counted from 1; None for no interruption.
        number: the signal.
    """
    said, before, old = io.StringIO(), Path.cwd(), signal.getsignal(signal.SIGINT)
    moment = Moment(at, number)
    os.chdir(folder)
    # A session in the background ignores it, and tests run there, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            sys.settrace(moment)
            try:
                code = command(question.words.split())
            finally:
                sys.settrace(None)
    except KeyboardInterrupt:
        code = -1
    finally:
        os.chdir(before)
        signal.signal(signal.SIGINT, old)
    return Ended(
        code=code,
        said=said.getvalue(),
        lines=moment.lines,
        place=moment.place,
        processes=len(multiprocessing.active_children()),
    )


def laid(question: Question, folder: Path) -> None:
    """Put what a question needs into a folder."""
    contents = {
        "measured.csv": samples.measured,
        "gpu.toml": lambda: samples.devices()[0],
        "config.json": lambda: json.dumps(samples.models()[0]),
        "plans.json": lambda: json.dumps(samples.plan_sets()[0]),
    }
    for name, content in contents.items():
        if name in question.words:
            (folder / name).write_text(content())
    for name, text in question.files.items():
        (folder / name).write_text(text)
    for name in question.outputs:
        (folder / name).write_text(KEPT)


def fault_of(question: Question, how: Ended, folder: Path, whole: Mapping[str, int]) -> str:
    """What is wrong with an interrupted command; empty if nothing is.

    Args:
        question: what was asked.
        how: it ended.
        folder: where it ran.
        whole: bytes of each file of an undisturbed run.
    """
    if how.code != INTERRUPTED:
        return f"exit code {how.code}: {how.said[-300:]}"
    if "Traceback" in how.said or "interrupted" not in how.said:
        return f"it said {how.said[-300:]!r}"
    if how.processes:
        return f"{how.processes} processes still run"
    left = [path for path in folder.rglob("*") if path.name.endswith(".part") and path.is_file()]
    if left:
        return f"{left[0].name} is left behind"
    for name in question.outputs:
        content = (folder / name).read_text()
        if content != KEPT and not _whole(content, whole[name]):
            return f"{name} has {len(content)} characters of {whole[name]}"
    for name in question.folders:
        files = {path.name for path in (folder / name).rglob("*")} if (folder / name).exists() else set()
        if files and files != {Path(one).name for one in whole if one.startswith(f"{name}/")}:
            return f"{name} holds only {sorted(files)}"
    return ""


def _whole(content: str, size: int) -> bool:
    """Times in a file make it some characters longer or shorter."""
    return abs(len(content) - size) < 50 + size // 100


def undisturbed(question: Question) -> tuple[int, dict[str, int]]:
    """Lines of a run without an interruption, and the sizes of its files."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        laid(question, folder)
        ended(question, folder)  # loads modules, whose lines come only once
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        laid(question, folder)
        how = ended(question, folder)
        assert how.code in (0, 5), f"{question.words}: {how.code} {how.said}"
        sizes = {
            str(path.relative_to(folder)): len(path.read_bytes().decode("utf-8", "replace"))
            for path in folder.rglob("*")
            if path.is_file()
        }
    return how.lines, sizes


def faults(question: Question, moments: Iterator[int], whole: Mapping[str, int], seed: int) -> Iterator[str]:
    """What goes wrong at moments of a question, one after another; empty where nothing does."""
    chance = Random(seed)
    for at in moments:
        with tempfile.TemporaryDirectory() as home:
            folder = Path(home)
            laid(question, folder)
            how = ended(question, folder, at, chance.choice([signal.SIGINT, signal.SIGTERM]))
            fault = fault_of(question, how, folder, whole) if how.place else ""
            yield f"at {how.place} (line {at}): {fault}" if fault else ""


def drawn(lines: int, moments: int, seed: int) -> list[int]:
    """Moments of a run: half of them anywhere, half in its last twentieth, where files are written."""
    chance = Random(seed)
    late = [chance.randint(max(1, lines - lines // 20), lines) for _ in range(moments // 2)]
    return [chance.randint(1, lines) for _ in range(moments - len(late))] + late


def main() -> int:
    """Interrupt every question, and print what came of it."""
    asked = argparse.ArgumentParser(prog="python -m tests.interrupts")
    asked.add_argument("words", nargs="*", help="beginnings of verbs; all otherwise")
    asked.add_argument("--moments", type=int, default=100, help="of each question")
    asked.add_argument("--seed", type=int, default=0)
    given = asked.parse_args()
    wrong = total = 0
    for name, question in QUESTIONS.items():
        if given.words and not any(name.startswith(word) for word in given.words):
            continue
        start_s = time.process_time()
        lines, whole = undisturbed(question)
        found = list(faults(question, iter(drawn(lines, given.moments, given.seed)), whole, given.seed))
        total += len(found)
        wrong += sum(map(bool, found))
        took_s = time.process_time() - start_s
        bad = sum(map(bool, found))
        print(f"{question.words}: {len(found)} of {lines:,} lines, {bad} wrong, {took_s:.0f} s", flush=True)
        for one in list(filter(None, found))[:4]:
            print(f"  {one}", flush=True)
    print(f"{total} interruptions, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
