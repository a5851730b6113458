"""Parts of pages: headings, paragraphs, tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from meshwright.fields.limits import stopped_warning


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
