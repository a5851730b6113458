"""Bars of text: memory by kind in letters, shares as blocks. They read the same without colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from meshwright.units import GIB, significant

MEMORY_LETTERS: dict[str, tuple[str, str]] = {
    "weights": ("W", "blue"),
    "gradients": ("G", "cyan"),
    "optimizer": ("O", "magenta"),
    "activations": ("A", "green"),
    "transient": ("T", "yellow"),
    "comm_buffers": ("C", "red"),
    "overhead": ("X", "bright_black"),
}
"""Letter and colour of each kind of memory."""


def letter_cells(parts: Mapping[str, float], capacity: float, width: int) -> list[tuple[str, int]]:
    """Cells of each kind in a bar whose width stands for the capacity; what goes beyond it is cut off.

    Args:
        parts: bytes by kind.
        capacity: bytes of the whole bar.
        width: cells.

    Returns:
        (kind, cells) in order; they sum to at most the width.
    """
    cells = []
    filled, total = 0, 0.0
    for kind, size in parts.items():
        total += size
        upto = min(width, round(total / capacity * width)) if capacity > 0 else 0
        cells.append((kind, max(0, upto - filled)))
        filled = max(filled, upto)
    return cells


def memory_bar(parts: Mapping[str, float], capacity: float, width: int) -> Text:
    """`WWGGGGOOOAAAAA.....`: a letter a kind, dots for what is free, `!` at the end where it is more than there is."""
    bar = Text()
    for kind, cells in letter_cells(parts, capacity, width):
        letter, colour = MEMORY_LETTERS.get(kind, ("?", "white"))
        bar.append(letter * cells, style=colour)
    bar.append("." * (width - len(bar)), style="dim")
    if sum(parts.values()) > capacity:
        bar.right_crop(1)
        bar.append("!", style="bold red")
    return bar


def memory_legend(parts: Mapping[str, float]) -> Text:
    """`W weights 8.46, G gradients 16.9, ...` in GiB."""
    legend = Text()
    for kind, size in parts.items():
        if size < 0.005 * GIB:
            continue
        letter, colour = MEMORY_LETTERS.get(kind, ("?", "white"))
        if len(legend):
            legend.append(", ")
        legend.append(letter, style=f"bold {colour}")
        legend.append(f" {kind.replace('_', ' ')} {significant(size / GIB)}")
    legend.append(" GiB")
    return legend


class ShareBars:
    """Rows of label, bar and text; the bar takes the width that is left."""

    def __init__(self, rows: Iterable[tuple[str, float, str]], most: int = 40) -> None:
        self.rows, self.most = list(rows), most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.rows:
            return
        label = max(len(name) for name, _, _ in self.rows)
        text = max(len(words) for _, _, words in self.rows)
        width = max(4, min(self.most, options.max_width - label - text - 6))
        full = "#" if options.ascii_only else "█"
        largest = max(share for _, share, _ in self.rows) or 1.0
        for name, share, words in self.rows:
            cells = round(share / largest * width)
            cells = max(cells, 1) if share > 0 else 0
            bar = (full * cells).ljust(width)
            yield Text.assemble(f"  {name:<{label}}  ", (bar, "cyan"), f"  {words}", no_wrap=True, overflow="ellipsis")
