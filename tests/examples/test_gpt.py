"""The example trains, run as its docstring says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt.py"
QUICK = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
                      "--xla_llvm_disable_expensive_passes=true"}  # fmt: skip
"""Compiled sooner, as what is compiled here runs three times."""


def test_gpt_learns() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--steps", "3"], env={**os.environ, **QUICK}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    losses = [float(value) for value in re.findall(r"loss (\S+)", done.stdout)]
    assert len(losses) == 3
    assert losses[2] < losses[0] - 0.5
