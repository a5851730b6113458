"""What exported runs hold that a framework started, as the programs beside this one print it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def found_by(program: str, runs: Sequence[str]) -> list[dict[str, Any]]:
    """Of each run, what it holds or how it was refused.

    Args:
        program: that starts them, `bridge_start.py`; in a process of its own, as stand-ins do not go away again.
        runs: what each is started with, with colons between.
    """
    words = [sys.executable, Path(__file__).with_name(program), *runs]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
