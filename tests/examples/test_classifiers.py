"""The first programs of the docs train on eight devices under a found plan, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.virtual_devices import QUICK_COMPILATION

ROOT = Path(__file__).parents[2]
QUICK = {"XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {QUICK_COMPILATION}"}
"""Compiled sooner, as what is compiled here runs a few times."""


@pytest.mark.parametrize("name", ["nnx_classifier.py", "equinox_classifier.py"])
def test_a_program_of_the_docs_learns_under_the_plan_that_was_found(name: str) -> None:
    program = ROOT / "examples" / name
    assert program.read_text() in (ROOT / "docs" / "train-steps.md").read_text()
    done = subprocess.run([sys.executable, program], env={**os.environ, **QUICK}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses = [float(value) for value in re.findall(r"loss (\d\S*?),?\s", done.stdout)]
    assert len(losses) == 3
    assert losses[2] < losses[0] - 0.2
    assert "devices 0-7 as 8" in done.stdout
    predicted, measured = re.search(r"predicted: .*?\n0 \|(.+)\nmeasured: .*?\n0 \|(.+)\n", done.stdout).groups()
    for drawn in (predicted, measured):
        assert re.sub(r"[ *]+|(.)(?=\1)", "", drawn) == "-=o"
