"""The command's way in and its only way out: every error leaves here as text or JSON with its exit code.

What a verb needs is imported inside its function, so that `meshwright --help` and usage errors cost no numpy.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer

from meshwright.cli.commands import WATCH, WATCHED, add_commands, called, command_for
from meshwright.cli.output import (
    INTERRUPTED,
    ReaderLeftError,
    print_bug,
    print_error,
    print_interrupted,
    reader_left,
    write,
)
from meshwright.cli.usage import optional_values, usage_error
from meshwright.errors import MeshwrightError, Problem

HELP_ALL = "--help-all"
"""Help that describes options that are rarely used, too."""
USAGE_ERROR = typer.BadParameter.__mro__[1]
"""What typer raises for a command line it cannot read."""


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        print(f"meshwright {metadata.version('meshwright')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def application(verbs: Sequence[str], *, everything: bool = False, described: bool = True) -> typer.Typer:
    """The command with some of its verbs; help of all their options, or of the usual ones."""
    app = typer.Typer(
        name="meshwright",
        help="Plan, predict and launch the training of large language models on the GPUs you have.\n\n"
        "\b\n"
        "  meshwright plan llama-3.1-70b --gpus 64xH100 -o plans.json\n"
        "  meshwright explain plans.json#1\n"
        "  meshwright export plans.json --to megatron -o launch",
        epilog="\b\n"
        "Exit codes: 0 ok, 1 a bug, 2 bad input, 3 nothing fits, 4 unsupported,\n"
        "5 violations found, 130 interrupted.\n"
        "Every verb has --json and --help; --help-all describes rare options.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(_root)
    add_commands(app, verbs, everything=everything, described=described)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: words after the command's name; the process's own by default.

    Returns:
        Exit code: 0 ok, 1 a bug, 2 bad input, 3 nothing fits, 4 unsupported, 5 violations found, 130 interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    if (writing := sys.modules.get("meshwright.formats.writing")) is not None:
        writing.written.clear()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _answered(words, as_json=as_json)
    except ReaderLeftError:
        return reader_left()
    except KeyboardInterrupt:
        return print_interrupted(as_json=as_json)


def _answered(words: list[str], *, as_json: bool) -> int:
    """The exit code, after the answer or an error is printed.

    Raises:
        ReaderLeftError: nobody reads what is printed.
        KeyboardInterrupt: the user or the system ended the command.
    """
    try:
        code = _run(optional_values(words))
        if code == INTERRUPTED:
            raise KeyboardInterrupt
    except MeshwrightError as error:
        code = print_error(error, as_json=as_json)
        if words[:1] == ["check"] and not as_json and any(word.startswith("--report") for word in words):
            from meshwright.cli.answers import print_error_found  # few errors are asked for as reports

            print_error_found(error, words)
    except MemoryError:
        code = print_error(_too_large(), as_json=as_json)
    except Exception as error:
        if isinstance(error, ReaderLeftError) or os.environ.get("MESHWRIGHT_DEBUG") == "1":
            raise
        code = print_bug(f"{type(error).__name__}: {error}", _where(error), as_json=as_json)
    return code


def _run(words: list[str]) -> int:
    """Parse and run; usage errors come out as ours."""
    # Nothing here multiplies large matrices; numpy's threads for that cost a third of a short verb.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    verbs = called(words)
    everything = HELP_ALL in words
    words = ["--help" if word == HELP_ALL else word for word in words]
    described = not {"-h", "--help"}.isdisjoint(words)
    if WATCH in words and verbs[0] in WATCHED and not described:
        from meshwright.cli.watch import watch

        return watch(words)
    command = _command(tuple(verbs), everything, described)
    try:
        result = command.main(args=words or ["--help"], prog_name="meshwright", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            write(f"{error}\n")
            return 0
        if isinstance(error, USAGE_ERROR):
            raise usage_error(error, words) from None
        raise
    return result if isinstance(result, int) else 0


@cache
def _command(verbs: tuple[str, ...], everything: bool, described: bool) -> Any:
    """The parser of some verbs, kept for whoever calls `main` again in this process."""
    return command_for(application(verbs, everything=everything, described=described), whole=len(verbs) > 1)


def _too_large() -> MeshwrightError:
    problem = Problem(
        what="the machine ran out of memory",
        why="the question is too large for it",
        fix="ask for fewer devices, a smaller batch, or a narrower space with --pin",
    )
    return MeshwrightError(problem, code="MW102")


def _where(error: BaseException) -> str:
    """File and line of our own code that an exception came through last."""
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "meshwright" in file:
            place = f"{os.path.basename(file)}, line {trace.tb_lineno}, in {trace.tb_frame.f_code.co_name}"
        trace = trace.tb_next
    return place or "outside meshwright"
