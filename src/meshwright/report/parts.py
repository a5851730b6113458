"""Parts of pages: headings, paragraphs, tables, bars of text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from meshwright.fields.limits import stopped_warning
from meshwright.units import GIB, significant


def columns(*names: str, left: Collection[str] = (), fold: Collection[str] = (), gap: int = 2) -> Table:
    """An empty table: numbers to the right, texts to the left.

    Args:
        names: the names of the columns.
        left: columns of texts that stay on one line.
        fold: columns of texts that are wrapped.
        gap: spaces between columns.
    """
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name in names:
        justify = "left" if name in left or name in fold else "right"
        wrapped = name in fold
        table.add_column(name, justify=justify, no_wrap=not wrapped, overflow="fold" if wrapped else "ellipsis")  # type: ignore[arg-type]
    return table


def facts_table() -> Table:
    """An empty table of names and what they are."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    return facts


def plain_row(table: Table, *cells: str | Text) -> None:
    """Add a row whose text is taken as it is, brackets included.

    Args:
        table: the table to add to.
        cells: one a column.
    """
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def heading(text: str) -> Text:
    """A heading with an empty line before it."""
    return Text(f"\n{text}", style="bold")


class Hanging:
    """A paragraph whose lines all start under the first word, without spaces at their ends."""

    def __init__(self, text: str | Text, lead: Text | str = "  ", hang: int = 2) -> None:
        self.text = text if isinstance(text, Text) else Text(text)
        self.lead = lead if isinstance(lead, Text) else Text(lead)
        self.hang = hang

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        body = self.text.wrap(console, max(10, options.max_width - self.hang), overflow="fold")
        for number, line in enumerate(body):
            line.rstrip()
            yield Text.assemble(self.lead if number == 0 else " " * self.hang, line, no_wrap=True, overflow="ignore")


def bullet(text: str | Text) -> Hanging:
    """An indented paragraph."""
    return Hanging(text)


def warning(text: str) -> Hanging:
    """A paragraph that must be seen."""
    return Hanging(text, Text("! ", style="bold yellow"))


def stopped_lines(document: Mapping[str, Any], said: Collection[str] = ()) -> list[Hanging]:
    """Warnings that a limit stopped what the document answers; nothing where none did.

    Args:
        document: the answer as data.
        said: what the page warns of anyway.
    """
    lines = [stopped_warning(document["stopped"])] if "stopped" in document else []
    return [warning(line) for line in lines if line not in said]


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
