"""What every answer can do: be data, a page for the terminal, HTML for notebooks, a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.records import Record, as_json
from meshwright.report.pages import page

if TYPE_CHECKING:
    from rich.console import RenderableType


class Answer(Record):
    """A result of a verb; its `to_dict` names a schema of `report.pages`."""

    __slots__ = ()

    def save(self, path: str | Path) -> Path:
        """Write the answer as JSON.

        Args:
            path: of the file; written over if there is one.
        """
        from meshwright.formats.writing import write_file

        write_file(path, as_json(self.to_dict()))
        return Path(path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self, 'text', '')})"

    def __rich__(self) -> RenderableType:
        return page(self.to_dict())

    def _repr_html_(self) -> str:
        from meshwright.report.html import renderable_html

        return renderable_html(self.__rich__())
