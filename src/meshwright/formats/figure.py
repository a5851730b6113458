"""Figures as files: SVG as it is drawn, or PNG for where no SVG is shown."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from meshwright.errors import InputError, Problem
from meshwright.formats.writing import write_file

ZOOM = 2
"""Pixels of a PNG per unit of the drawing."""


def write_figure(path: str | Path, svg: str) -> None:
    """Write a figure: a name in .png is written as PNG, any other as SVG.

    Args:
        path: the path of the file; written over if there is one.
        svg: the drawing.

    Raises:
        InputError: the file cannot be written, or what draws PNG is not installed.
    """
    write_file(path, png(svg) if Path(path).suffix.lower() == ".png" else svg)


def png(svg: str) -> bytes:
    """A drawing as PNG, in the fonts of this machine.

    Args:
        svg: the drawing.

    Raises:
        InputError: the extra is not installed.
    """
    try:
        from resvg_py import svg_to_bytes
    except ModuleNotFoundError:
        problem = Problem(
            what="resvg-py is missing", why="it draws PNG", fix="pip install 'meshwright[png]', or name a .svg"
        )
        raise InputError(problem, code="MW209") from None
    sans, mono = _family("sans-serif"), _family("monospace")
    return bytes(svg_to_bytes(svg_string=svg, zoom=ZOOM, sans_serif_family=sans, monospace_family=mono))


def _family(generic: str) -> str | None:
    """The font that a generic name stands for here, where fontconfig says it; resvg has none of its own."""
    program = shutil.which("fc-match")
    if program is None:
        return None
    asked = [program, "--format", "%{family[0]}", generic]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or None
