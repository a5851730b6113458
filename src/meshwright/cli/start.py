"""What keeps the start of a verb short: only the verb that is called is built, and its words reach it as typed.

Typer makes a pydantic validator for every option of a command. Ours are words, switches and lists of words, which
`values` reads with errors of our own, so the validators would only cost their import.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import typer


def command_for(app: typer.Typer, *, whole: bool) -> Any:
    """The parser of a command line.

    Args:
        app: with the verb that is called.
        whole: it has all verbs, as none is called: what is typed is no use.
    """
    command = typer.main.get_command(app)
    if not whole:
        _take_words(command)
    return command


def _take_words(command: Any) -> None:
    """Let a command and those below it take words, switches and lists of words unread, by public hooks of click's."""
    for parameter in command.params:
        _unread(parameter)
    # The option for help is made when the command line is parsed.
    help_option = command.get_help_option
    command.get_help_option = lambda context: _unread(help_option(context))
    for inner in getattr(command, "commands", {}).values():
        _take_words(inner)


def _unread(parameter: Any) -> Any:
    if parameter is not None and not parameter.required:
        parameter.process_value = partial(_as_typed, parameter)
    return parameter


def _as_typed(parameter: Any, context: Any, value: Any) -> Any:
    """A value as the command line has it; where several may be given, none of them is an empty list."""
    if value is None and (parameter.multiple or parameter.nargs == -1):
        value = ()
    return value if parameter.callback is None else parameter.callback(context, parameter, value)
