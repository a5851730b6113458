"""What a verb prints: the answer on stdout, warnings and progress on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshwright.errors import InputError, MeshwrightError, Problem
from meshwright.records import as_json, visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

OPTION_OF_FIELD = {
    "seq_len": "--seq",
    "global_batch": "--gbs",
    "tokens_per_step": "--tokens-per-step",
    "tokens": "--tokens",
    "dtype": "--dtype",
    "price": "--price",
    "top": "--top",
    "attention_kernel": "--attention-kernel",
    "expert_load": "--expert-load",
    "expert_imbalance": "--expert-load",
    "host_ram": "--host-ram",
    "nvme": "--nvme",
    "pcie": "--pcie",
    "loss_tiles": "--loss-tiles",
    "mlp_tiles": "--mlp-tiles",
}
"""Options whose values the library calls otherwise."""
INTERRUPTED = 130
WIDTH = 120
"""Columns where stdout is no terminal and COLUMNS does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How the user wants the answer."""

    as_json: bool = False
    quiet: bool = False
    no_color: bool = False

    def show(self, document: Mapping[str, Any], text: Callable[[Mapping[str, Any]], RenderableType]) -> None:
        """Print the answer.

        Args:
            document: the answer as data, with its `schema`.
            text: the same for people, made only where it is wanted.
        """
        if self.as_json:
            write(as_json(document))
        else:
            self.print(text(document))

    def print(self, *renderables: RenderableType) -> None:
        """Print for people; text is taken as it is."""
        from rich.console import Console

        width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH
        console = Console(file=sys.stdout, no_color=self.no_color or None, width=width, highlight=False, emoji=False)
        with _printing(), console.capture() as capture:
            for renderable in renderables:
                if isinstance(renderable, str):
                    console.print(visible(renderable), markup=False)
                else:
                    console.print(_Visible(renderable), crop=False)  # a diff is whole or of no use
        write(capture.get())

    def warn(self, warnings: Iterable[str]) -> None:
        """Print warnings on stderr."""
        if not self.quiet:
            for warning in warnings:
                print(f"warning: {visible(warning)}", file=sys.stderr)

    def note(self, text: str) -> None:
        """Print a line about what was done, such as a file written, on stderr."""
        if not self.quiet:
            print(visible(text), file=sys.stderr)

    @contextmanager
    def progress(self, text: str) -> Iterator[None]:
        """A line on stderr while the body runs, gone afterwards; none where stderr is no terminal."""
        shown = not self.quiet and sys.stderr.isatty()
        if shown:
            print(f"{text} ...", end="", file=sys.stderr, flush=True)
        try:
            yield
        finally:
            if shown:
                print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class _Visible:
    """Something to print, with what names in it would command the terminal shown instead."""

    inner: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for text, style, control in console.render(self.inner, options):
            yield Segment(text if control else visible(text), style, control)


class ReaderLeftError(Exception):
    """Nobody reads stdout any more, as after `| head`."""


def write(text: str) -> None:
    """Write to stdout.

    Raises:
        ReaderLeftError: nobody reads it any more.
        InputError: what it goes to cannot be written, such as a file on a full disk.
    """
    with _printing():
        sys.stdout.write(text)
        sys.stdout.flush()


@contextmanager
def _printing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise ReaderLeftError from None
    except OSError as error:
        from meshwright.formats.writing import reason_of, remedy_of  # few answers cannot be printed

        _discard_stdout()
        what = "the answer cannot be printed"
        raise InputError(what=what, why=reason_of(error), fix=remedy_of(error), field="output", code="MW208") from None


def print_error(error: MeshwrightError, *, as_json: bool) -> int:
    """Print an error where its reader looks, and give its exit code."""
    error.problems = tuple(_as_typed(problem) for problem in error.problems)
    if as_json:
        return _error_object(error.to_dict(), error.exit_code)
    print(visible(error.render()), file=sys.stderr)
    return error.exit_code


def _as_typed(problem: Problem) -> Problem:
    """A problem with its option named as on the command line."""
    option = OPTION_OF_FIELD.get(problem.field)
    lead = f"{problem.field} is "
    if option is None or not problem.what.startswith(lead):
        return problem
    fix = problem.fix.replace("for example ", f"for example {option} ", 1)
    return replace(problem, what=f"{option} is {problem.what.removeprefix(lead)}", fix=fix)


def print_bug(what: str, where: str, *, as_json: bool) -> int:
    """Say that meshwright is at fault, and give exit code 1."""
    why = f"this is a bug in meshwright, not in your input ({where})"
    fix = "please report it with the command; MESHWRIGHT_DEBUG=1 shows the traceback"
    if as_json:
        problem = {"field": None, "what": what, "why": why, "fix": fix}
        return _error_object(
            {"schema": "meshwright.error/1", "code": "MW100", "exit_code": 1, "problems": [problem]}, 1
        )
    print(visible(f"error[MW100]: {what}\n  why: {why}\n  fix: {fix}"), file=sys.stderr)
    return 1


def print_interrupted(*, as_json: bool) -> int:
    """Say that the user stopped it, and give exit code 130."""
    writing = sys.modules.get("meshwright.formats.writing")
    places = [str(path) for path in writing.written] if writing is not None else []
    what = f"interrupted after {', '.join(places)} was written" if places else "interrupted"
    if as_json:
        problem = {"field": None, "what": what, "why": None, "fix": None}
        document = {"schema": "meshwright.error/1", "code": "MW130", "exit_code": INTERRUPTED, "problems": [problem]}
        return _error_object(document, INTERRUPTED)
    print(visible(what), file=sys.stderr)
    return INTERRUPTED


def reader_left() -> int:
    """What was asked for was read, so this is no error."""
    _discard_stdout()
    return 0


def _discard_stdout() -> None:
    """Let what is still to be printed go nowhere: the interpreter would fail on it again when it ends."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())


def _error_object(document: Mapping[str, Any], code: int) -> int:
    write(as_json(document))
    return code
