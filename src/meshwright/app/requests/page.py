"""What may be asked of `report` and `web`: what `plan` is asked, or the plans of a file, and how they are shown."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from meshwright.app.requests.plan import PlanRequest
from meshwright.fields.field import ask, group
from meshwright.fields.job import FRAMEWORK_HELP, MODEL_HELP, NAME, JobFields
from meshwright.fields.kinds import Choice, FieldKind, Flag, OutputFile, Whole
from meshwright.fields.request import Reading

FORMATS = ("html", "md", "cell")
PATH = FieldKind(metavar="FILE", annotation="str | os.PathLike[str]")


@runtime_checkable
class HasPlans(Protocol):
    """An answer of `plan` or `estimate`."""

    plans: Any
    verdict: Any

    def to_dict(self) -> dict[str, Any]:
        """The answer as data."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest(PlanRequest):
    """A question of `plan`, or the file that holds its answer."""

    job: JobFields = group(
        JobFields,
        model={
            "help": f"A plan file or a plan set, as `plan -o` writes it, or {MODEL_HELP[0].lower()}{MODEL_HELP[1:]}",
            "annotation": "PlanSet | ModelSpec | Mapping[str, object] | str | os.PathLike[str]",
        },
    )

    @property
    def plan_file(self) -> str | None:
        """The file, where the first word names one that holds plans."""
        from meshwright.fields.plan_file import is_plan_file

        model = self.job.model
        return os.fspath(model) if isinstance(model, (str, os.PathLike)) and is_plan_file(os.fspath(model)) else None

    @property
    def answer(self) -> Any:
        """The answer of `plan` or `estimate`, where a program hands one on; else None."""
        model: object = self.job.model
        return model if isinstance(model, HasPlans) else None

    def rules(self, reading: Reading) -> None:
        """Rules of `plan`; a file and an answer have their question in them."""
        reading.refuse(("svg",), "for a page", "the page draws the front itself")
        if self.plan_file is None and self.answer is None:
            PlanRequest.rules(self, reading)
            return
        own = {"model", "output", "format", "port", "no_browser", "with_run", "framework", "measured"}
        article, holder = ("an", "answer") if self.plan_file is None else ("a", "plan file")
        why = f"the {holder} says model, cluster and workload, and holds its plans"
        reading.refuse(tuple(name for name in reading.fields if name not in own), f"beside {article} {holder}", why)


NOT_WRITTEN = {
    ".pdf": "-o plan.html, and print it to a file from a browser",
    ".ipynb": "--format cell -o plan.html, or show the plan set in a notebook",
}
"""Files that nothing here writes, by their ending, with what to ask for instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest(PageRequest):
    """Plans as one file: HTML, Markdown or a notebook fragment. Nothing else is needed to read it.

    The page has the verdict and the same views as `web`. md is text for a merge request; cell is a fragment for
    notebooks, without scripts.
    """

    examples: ClassVar = (
        "plan llama-3.1-70b --gpus 64xH100 -o plans.json",
        "report plans.json -o plan.html",
        "report llama-3-8b --gpus 8xH100 --format md",
        "report plans.json#1 --with-run train.log --measured measured.csv -o plan.html",
    )
    returns: ClassVar = "The report; `text` is its content."

    format: str | None = ask(
        "html: one self-contained page; md: Markdown; cell: an HTML fragment for notebooks.",
        Choice(names=FORMATS, noun="format"),
        usual="md for a file *.md, else html",
    )
    with_run: Any = ask("Log of a run of the first plan, CSV of its steps, or profiler trace, to show beside it.", PATH)
    framework: str | None = ask(FRAMEWORK_HELP, NAME, usual="recognised by its lines")
    measured: Any = ask("CSV of measured runs, one per row, to show beside their predictions.", PATH)
    output: Any = ask("Output file; md and cell print to stdout without it.", OutputFile(), short="-o")

    def rules(self, reading: Reading) -> None:
        """A page is a file; runs are drawn on a page alone."""
        PageRequest.rules(self, reading)
        if self.form != "html":
            reading.refuse(("with_run", "measured"), f"in the form {self.form}", "only a page draws them")
        if "with_run" not in self.given:
            why = "it names the framework that wrote the log"
            reading.refuse(("framework",), f"without {reading.called('with_run')}", why)
        if reading.typed and self.form == "html" and "output" not in self.given:
            reading.problem("-o FILE is missing", "a page is opened by a browser", "-o plan.html", "output")
        if self.output is not None and (fix := NOT_WRITTEN.get(Path(os.fspath(self.output)).suffix.lower())):
            what = f"{reading.called('output')} is {os.fspath(self.output)[:80]}"
            reading.problem(what, "a report is HTML, Markdown or a notebook fragment", fix, "output")

    @property
    def form(self) -> str:
        """The format: as stated, else of the file's name."""
        if self.format is not None:
            return self.format
        named = "" if self.output is None else os.fspath(self.output).lower()
        return "md" if named.endswith((".md", ".markdown")) else "html"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRequest(PageRequest):
    """Explore plans in a browser; served on this machine only.

    The page is served on 127.0.0.1 under a random address until interrupted, and sends nothing to any other machine.
    Without a question it shows an example.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "web",
        "web llama-3.1-70b --gpus 64xH100 --seq 8192",
        "web plans.json",
    )
    returns: ClassVar[str] = "The page's address."

    port: int | None = ask("Port to listen on.", Whole(high=65_535), usual="8417 or the next free one")
    no_browser: bool = ask("Print the address without opening a browser.", Flag())

    @property
    def example(self) -> bool:
        """Whether nothing is asked: the page then shows a plan of its own."""
        return not self.given - {"port", "no_browser"}

    def rules(self, reading: Reading) -> None:
        """Rules of `plan` where anything is asked."""
        reading.refuse(
            ("output",), "for a page that is served", "nothing is written", "write a file: meshwright report -o"
        )
        if not self.example:
            PageRequest.rules(self, reading)
