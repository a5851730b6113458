"""The page "Write a parallelizer": its files run and print what it says, and its JSON is a valid answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from meshwright.formats.partial_plans_json import partial_plans
from tests.planning.compose.sources.parallelizers.slices import island_of, job, slice_of

PAGE = (Path(__file__).parents[2] / "docs" / "write-a-parallelizer.md").read_text()


def test_the_files_of_the_page_run_and_print_what_it_says(tmp_path: Path) -> None:
    files = dict(re.findall(r"^`(\w+\.py)`[^\n]*\n\n```python\n(.*?)^```", PAGE, re.M | re.S))
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    assert len(files["mine.py"].splitlines()) <= 40
    done = subprocess.run([sys.executable, "compose.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (expected,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.M | re.S)
    assert done.stdout == expected


def test_the_answer_of_the_page_is_one() -> None:
    (text,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.M | re.S)
    inputs = job()
    (plan,) = partial_plans(json.loads(text), slice_of(inputs, 4), island_of(inputs), 8)
    assert (plan.devices, plan.strategies[0].tp, plan.strategies[0].data.zero) == (8, 4, 1)
