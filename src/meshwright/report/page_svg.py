"""An answer as a figure: what the terminal shows, as SVG for pages, slides and tickets."""

from __future__ import annotations

import hashlib
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMNS = 120
FORMAT = """\
<svg class="{unique_id}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"
 xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: {char_height}px;
 line-height: {line_height}px; font-variant-east-asian: full-width }}
{styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>{lines}</defs>
<rect width="100%" height="100%" fill="white"/>
<g transform="translate({terminal_x}, 12)" clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
"""Rich's own has fonts of another host, which a file that is mailed must not ask for."""


def page_svg(page: RenderableType) -> str:
    """What the terminal shows of an answer, as an SVG document on white.

    Args:
        page: the page of rich.
    """
    from rich.console import Console
    from rich.terminal_theme import DEFAULT_TERMINAL_THEME

    console = Console(
        width=COLUMNS, record=True, file=StringIO(), force_terminal=True, color_system="truecolor", legacy_windows=False
    )
    console.print(page)
    text = console.export_text(clear=False, styles=True)
    name = "page-" + hashlib.sha256(text.encode()).hexdigest()[:12]
    return console.export_svg(title="", theme=DEFAULT_TERMINAL_THEME, code_format=FORMAT, unique_id=name)
