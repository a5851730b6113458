"""The example trains, run as its docstring says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.virtual_devices import QUICK_COMPILATION

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt.py"
QUICK = {"XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {QUICK_COMPILATION}"}
"""Compiled sooner, as what is compiled here runs three times."""


def test_gpt_learns() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--steps", "3"], env={**os.environ, **QUICK}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    losses = [float(value) for value in re.findall(r"loss (\S+)", done.stdout)]
    assert len(losses) == 3
    assert losses[2] < losses[0] - 0.5
