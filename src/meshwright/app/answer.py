"""What every answer can do: be data, a page for the terminal, HTML for notebooks, a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from meshwright.records import Record, as_json, fields_of
from meshwright.report import page
from meshwright.specs.model import ModelSpec

if TYPE_CHECKING:
    from rich.console import RenderableType

    from meshwright.fields.request import Request
    from meshwright.specs.calibration import Calibration
    from meshwright.specs.measured import MeasuredModel


class Answer(Record):
    """A result of a verb; its `to_dict` names a schema of `report.PAGES`."""

    __slots__ = ("_asked",)
    _asked: tuple[str, Request]
    """The verb and what it was asked; not there for an answer that nobody asked for with one question."""

    def to_dict(self) -> dict[str, Any]:
        """As data, with `made_by`. Equal questions give equal answers, `timing` apart."""
        from meshwright.app.made_by import made_by  # an answer on a screen does not say it

        return self.data() | {"made_by": made_by(self.priced_by, self.command)}

    def data(self) -> dict[str, Any]:
        """As data, without what made it."""
        return fields_of(self)

    @property
    def priced_by(self) -> Calibration | None:
        """The calibration that its prices use; None where nothing is priced."""
        return None

    @property
    def command(self) -> str:
        """Asks the same again on a command line; empty where no single command does."""
        asked = getattr(self, "_asked", None)
        if asked is None:
            return ""
        from meshwright.fields.command_line import NOT_OF_THE_ANSWER, command_line

        return command_line(*asked, without=NOT_OF_THE_ANSWER)

    def save(self, path: str | Path) -> Path:
        """Write the answer as JSON.

        Args:
            path: the path of the file; written over if there is one.
        """
        from meshwright.formats.writing import write_file

        write_file(path, as_json(self.to_dict()))
        return Path(path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self, 'text', '')})"

    def __rich__(self) -> RenderableType:
        return page(self.to_dict())

    def svg(self) -> str:
        """The answer as a figure: what the terminal shows, or the verb's own drawing."""
        from meshwright.report.page_svg import page_svg

        return page_svg(self.__rich__())

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


Answered = TypeVar("Answered")


def asked_with(answer: Answered, verb: str, request: Request) -> Answered:
    """An answer that knows its question.

    Args:
        answer: the answer to it.
        verb: the verb that was asked.
        request: what it was asked.
    """
    if isinstance(answer, Answer):
        object.__setattr__(answer, "_asked", (verb, request))
    return answer
