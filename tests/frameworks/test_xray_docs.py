"""The example of the page of X-rays, run: what it shows is what comes out."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

import meshwright as mw
from meshwright.report.xray_report import render_xray

PAGE = Path(__file__).parents[2] / "docs" / "xray.md"


def test_the_example_is_what_its_command_prints(tmp_path: Path) -> None:
    pytest.importorskip("megatron.core")
    text = PAGE.read_text()
    script = re.search(r"`pretrain\.sh`:\n\n```bash\n(.*?)```", text, re.DOTALL)
    shown = re.search(r"\$ meshwright xray llama-3-8b pretrain\.sh --gpus (\S+)\n(.*?)```", text, re.DOTALL)
    assert script is not None
    assert shown is not None
    (tmp_path / "pretrain.sh").write_text(script[1])
    answer = mw.xray("llama-3-8b", source=tmp_path / "pretrain.sh", cluster=shown[1])
    page = io.StringIO()
    Console(file=page, width=120).print(render_xray(answer.to_dict()))
    printed = "\n".join(line.rstrip() for line in page.getvalue().splitlines())
    assert printed.strip() == shown[2].strip()
