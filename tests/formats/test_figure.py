"""Figures as SVG and as PNG."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from meshwright.formats.figure import ZOOM, write_figure

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 30 20" width="30" height="20"><text y="9">a</text></svg>'


def test_the_name_says_the_format(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    for name in ("one.svg", "one.png"):
        write_figure(tmp_path / name, SVG)
    assert (tmp_path / "one.svg").read_text() == SVG
    drawn = (tmp_path / "one.png").read_bytes()
    assert drawn[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", drawn[16:24]) == (30 * ZOOM, 20 * ZOOM)
