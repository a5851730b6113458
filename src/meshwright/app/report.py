"""Plans as one file to mail and keep: a page, text, or a fragment for notebooks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.app.answer import Answer
from meshwright.app.pages.source import page_source
from meshwright.app.requests.page import ReportRequest
from meshwright.formats.writing import write_file
from meshwright.library.made_with import calibration_of
from meshwright.specs.calibration import Calibration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from meshwright.report.page.source import PageSource


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Report(Answer):
    """A report, written or not."""

    source: PageSource
    format: str
    text: str
    """The whole content."""
    path: str | None = None
    """Where it was written."""

    @property
    def priced_by(self) -> Calibration:
        """The calibration that its prices use."""
        return calibration_of(self.source.plans[0].job)

    def data(self) -> dict[str, Any]:
        """As data: `meshwright.report/1`; the content is in the file where one was named."""
        document: dict[str, Any] = {
            "schema": "meshwright.report/1",
            "format": self.format,
            "path": self.path,
            "size_bytes": len(self.text.encode()),
            "plans": [plan.entry["title"] for plan in self.source.plans],
            "command": self.source.command,
        }
        return document if self.path else document | {"content": self.text}

    def save(self, path: str | Path) -> Path:
        """Write the report's content.

        Args:
            path: the path of the file; written over if there is one.
        """
        write_file(path, self.text)
        return Path(path)

    def __repr__(self) -> str:
        return f"Report({self.format}, {len(self.text):,} characters)"

    def __str__(self) -> str:
        return self.text

    def __rich__(self) -> RenderableType:
        from rich.text import Text

        return Text(self.text)

    def _repr_html_(self) -> str:
        from meshwright.report.html import plan_set_html

        return plan_set_html(_signed(self.source))


def report(request: ReportRequest) -> Report:
    """One file that shows plans.

    Raises:
        InputError: malformed or contradictory input, or a file that cannot be written.
        UnsupportedError: an unknown name, or plans that no model prices.
        InfeasibleError: no plan fits, or none keeps to the limits.
    """
    source, form = _with_runs(page_source(request), request), request.form
    text = _written(source, form)
    if request.output is not None:
        write_file(Path(request.output), text)
    path = None if request.output is None else str(request.output)
    return Report(source=source, format=form, text=text, path=path)


def _with_runs(source: PageSource, request: ReportRequest) -> PageSource:
    """The source with the run of its first plan and with measured runs, where they are named."""
    run = accuracy = None
    if request.with_run is not None:
        from meshwright.app.runs.compared import compare_with_run
        from meshwright.fields.job import JobFields

        log, framework = str(request.with_run), request.framework
        run = compare_with_run(source.plans[0].job, log, framework, asked=JobFields()).to_dict()
    if request.measured is not None:
        from meshwright.app.pages.accuracy_points import accuracy_points

        accuracy = accuracy_points(Path(request.measured))
    return replace(source, run=run, accuracy=accuracy)


def _written(source: PageSource, form: str) -> str:
    if form == "html":
        from meshwright.report.page.document import page_document, palette
        from meshwright.report.page.shell import page_html

        return page_html(page_document(source), palette())
    if form == "cell":
        from meshwright.report.html import plan_set_html

        return plan_set_html(_signed(source)) + "\n"
    from meshwright.report.markdown import plan_set_markdown

    return plan_set_markdown(source)


def _signed(source: PageSource) -> dict[str, Any]:
    """The plan set with the command that asks for it."""
    return {**source.document, "made_by": source.made_by}
