"""Every kind of layer of our operator list beside the class of Transformers that has it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from benchmarks.xray_kinds import KINDS


@pytest.fixture(scope="module")
def table() -> dict[str, str]:
    """Answers by kind, all of one process that imports Transformers once."""
    pytest.importorskip("transformers")
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.xray_kinds"],
        capture_output=True,
        text=True,
        env={**os.environ, "TORCHDYNAMO_DISABLE": "1"},
        check=True,
    )
    return {line.split(" | ")[0].removeprefix("| "): line for line in ran.stdout.splitlines() if line.startswith("| ")}


@pytest.mark.parametrize("kind", KINDS)
def test_products_and_parameters_are_those_of_the_class(kind: str, table: dict[str, str]) -> None:
    found = re.search(r"\| (\d+) of (\d+) \| ([+-][\d.]+)% \|", table[kind])
    assert found, table[kind]
    same, of, off = found.groups()
    assert same == of != "0", table[kind]
    assert abs(float(off)) < 0.01
