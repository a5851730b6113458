"""The Python of the guide page trains and prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

PAGE = Path(__file__).parents[2] / "docs" / "pytorch-schedules.md"


def test_the_scripts_of_the_guide_run(tmp_path: Path) -> None:
    train, read = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    (tmp_path / "train.py").write_text(train)
    (tmp_path / "read.py").write_text(read)
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    trained = started(*launch, folder=tmp_path)
    losses = [float(loss) for loss in re.findall(r"step \d: loss (\S+)", trained)]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
    assert started("read.py", folder=tmp_path) == "13.0 (3, 3)\n"


def started(*arguments: str, folder: Path) -> str:
    """What a command of this Python prints; a failure shows what it said."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout
