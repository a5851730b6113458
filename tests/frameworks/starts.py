"""What exported runs hold that a framework started, as the programs beside this one print it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from meshwright.specs.job import Job
from tests.targets.test_round_trip import written


def exported(jobs: Sequence[tuple[str, Job]], within: Path) -> Iterator[tuple[Path, str, Job]]:
    """The folders of exported plans.

    Args:
        jobs: each with the target that it is exported to.
        within: the folder that theirs are made in.
    """
    for number, (target, job) in enumerate(jobs):
        run = within / str(number)
        run.mkdir()
        for name, text in written(target, job).items():
            (run / name).write_text(text)
        yield run, target, job


def found_by(program: str, runs: Sequence[str]) -> list[dict[str, Any]]:
    """Of each run, what it holds or how it was refused.

    Args:
        program: that starts them, `bridge_start.py`; in a process of its own, as stand-ins do not go away again.
        runs: what each is started with, with colons between.
    """
    words = [sys.executable, Path(__file__).with_name(program), *runs]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
