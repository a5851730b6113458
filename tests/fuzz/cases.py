"""One input of a door, the doors themselves, and what is wrong with the answer to an input, if anything is."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from meshwright.cli import main
from meshwright.errors import MeshwrightError
from tests.answers.schemas import faults

CODES = {0, 2, 3, 4, 5}
"""Exit codes of an answer; 1 is a bug of ours."""
KEPT = "kept before\n"
"""What stands in an output file before the command runs."""
MOST_PRINTED = 8_000_000
"""Characters: an error or an answer longer than this is no use to anybody."""
READS = "read "
"""Begins the verb of a case that is no verb of ours but a reader of `tests.fuzz.readers`."""
SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where cases have their folders: in memory where that is possible."""
WAITING = 6
"""So many times its budget may an answer take by the clock on the wall: what only waits uses no processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command line with the files it names, a call from Python, or a reader with a file or a text."""

    words: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    lines: bool = False
    """Whether `--json` prints an object a line."""
    verb: str = ""
    """Of a call from Python, in place of words."""
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """As a file that `python -m tests.fuzz FILE` runs again."""
        files = {name: base64.b64encode(content).decode() for name, content in self.files.items()}
        asked = {
            "words": self.words,
            "lines": self.lines,
            "files": files,
            "verb": self.verb,
            "values": repr(dict(self.values)),
        }
        return json.dumps(asked, indent=1) + "\n"


def case_of(text: str) -> Case:
    """The case that a saved file holds."""
    asked = json.loads(text)
    files = {name: base64.b64decode(content) for name, content in asked["files"].items()}
    inf = float("inf")
    values = eval(asked["values"], {"__builtins__": {}, "nan": inf - inf, "inf": inf})  # written by `to_json` above
    return Case(words=tuple(asked["words"]), lines=asked["lines"], files=files, verb=asked["verb"], values=values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A way in, and what is drawn for it."""

    name: str
    draw: Callable[[Random], Case]
    """An input, of a source of chance: a seed gives the same one every time, and hypothesis can shrink it."""


class OverBudgetError(BaseException):
    """The answer took longer than an answer may. No `Exception`, so that nothing takes it for an error of its own."""


def fault_of(case: Case, budget_s: float) -> str:
    """What is wrong with the answer to an input; empty if nothing is.

    Args:
        case: the input.
        budget_s: processor seconds within which the answer must be there.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=SCRATCH) as folder, _inside(Path(folder)):
        try:
            with _alarm(budget_s), warnings.catch_warnings():
                warnings.simplefilter("error")
                if case.verb:
                    return _called(case, Path(folder))
                return _typed(case, Path(folder))
        except OverBudgetError:
            return f"over {budget_s:g} s: {_last_place()}"
        except MemoryError:
            return f"out of memory: {_last_place()}"
        except Exception:
            return f"uncaught: {_last_place()}\n{traceback.format_exc()[-3000:]}"


def _laid(case: Case, folder: Path) -> None:
    """Put the files of a case in place."""
    for name, content in case.files.items():
        place = folder / name
        if "/" in name:
            place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def _typed(case: Case, folder: Path) -> str:
    _laid(case, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    out, err = io.StringIO(), io.StringIO()
    stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO())
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(case.words)
    except SystemExit as left:
        return f"it left by SystemExit({left.code})"
    finally:
        sys.stdin = stdin
    if code not in CODES:
        return f"exit code {code}: {(out.getvalue() + err.getvalue())[:300]}"
    if len(out.getvalue()) + len(err.getvalue()) > MOST_PRINTED:
        return f"it printed {len(out.getvalue()) + len(err.getvalue()):,} characters"
    if "--json" in case.words and "--help" not in case.words and "-h" not in case.words:
        lines = out.getvalue().splitlines() if case.lines and not code else [out.getvalue()]
        if wrong := next(
            filter(None, (_json_fault(line, whole=len(lines) == 1 and not case.lines) for line in lines)), ""
        ):
            return wrong
    return _file_fault(folder, before, code)


def _json_fault(text: str, *, whole: bool) -> str:
    """One object as its published schema says, where it is the whole answer, and every number in it finite."""

    def refuse(name: str) -> float:
        raise ValueError(f"{name} in --json")

    try:
        document = json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return f"--json: {error}: {text[:200]!r}"
    if not isinstance(document, dict) or (whole and "schema" not in document):
        return f"--json is no object: {text[:100]!r}"
    return next(iter(faults(document)), "") if "schema" in document else ""


def _file_fault(folder: Path, before: Mapping[Path, bytes], code: int) -> str:
    """No remains of a file half-written, and nothing lost by a command that failed."""
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for path in after:
        if path.name.endswith(".part") or path.name.startswith("."):
            return f"{path.name} is left behind"
    for path, content in before.items():
        if path not in after:
            return f"{path.name} is gone"
        if code in (2, 4) and after[path] != content:
            return f"{path.name} was changed by a command that failed"
        if after[path] != content and not after[path]:
            return f"{path.name} is empty"
    return ""


def _called(case: Case, folder: Path) -> str:
    import meshwright

    _laid(case, folder)
    try:
        if case.verb.startswith(READS):
            from tests.fuzz.readers import read

            read(case.verb.removeprefix(READS), folder, **case.values)
        else:
            getattr(meshwright, case.verb)(**case.values)
    except MeshwrightError as error:
        return "" if error.exit_code in CODES else f"exit code {error.exit_code}: {error}"
    return ""


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """The process in a folder, with errors of ours raised rather than reported."""
    old, debug = Path.cwd(), os.environ.get("MESHWRIGHT_DEBUG")
    os.chdir(folder)
    os.environ["MESHWRIGHT_DEBUG"] = "1"
    try:
        yield
    finally:
        os.chdir(old)
        if debug is None:
            del os.environ["MESHWRIGHT_DEBUG"]
        else:
            os.environ["MESHWRIGHT_DEBUG"] = debug


@contextlib.contextmanager
def _alarm(budget_s: float) -> Iterator[None]:
    """End an answer over its budget of processor seconds, which other work on the machine does not use up."""

    def ring(_signal: int, _frame: object) -> None:
        raise OverBudgetError

    clocks = (
        (signal.SIGPROF, signal.ITIMER_PROF, budget_s),
        (signal.SIGALRM, signal.ITIMER_REAL, WAITING * budget_s),
    )
    old = [signal.signal(number, ring) for number, _, _ in clocks]
    for _, clock, most_s in clocks:
        signal.setitimer(clock, most_s)
    try:
        yield
    finally:
        for (number, clock, _), before in zip(clocks, old, strict=True):
            signal.setitimer(clock, 0)
            signal.signal(number, before)


def _last_place() -> str:
    """The exception, and the last line of ours that it came through: what names a fault among many inputs."""
    error = sys.exc_info()[1]
    place, trace = "", error.__traceback__ if error else None
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/meshwright/" in code.co_filename:
            place = f"{code.co_filename.rsplit('/meshwright/', 1)[1]}:{trace.tb_lineno} {code.co_name}"
        trace = trace.tb_next
    return f"{type(error).__name__} at {place}: {str(error)[:120]}"
