"""What every answer can do: be data, a page for the terminal, HTML for notebooks, a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.records import Record, as_json, fields_of
from meshwright.report.pages import page
from meshwright.specs.model import ModelSpec

if TYPE_CHECKING:
    from rich.console import RenderableType

    from meshwright.specs.measured import MeasuredModel


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


def model_entry(model: ModelSpec | MeasuredModel) -> dict[str, object]:
    """The `model` entry of an answer: its sizes, and where not all of it is trained the parameters that are."""
    if not isinstance(model, ModelSpec) or model.tuning is None:
        return model.describe()
    from meshwright.ops.counts import adapter_parameters, trained_parameters  # most jobs train all of a model

    trained = trained_parameters(model)
    frozen = model.parameters + adapter_parameters(model) - trained
    return {
        **model.describe(),
        "trained_parameters": trained,
        "frozen_parameters": frozen,
        "tuning": fields_of(model.tuning),
    }
