"""A request as a command: its options, its help, and what is done with what was typed.

Typer makes a pydantic validator for every option of a command. Ours are words, switches and lists of words, which
`values` reads with errors of our own, so the validators would only cost their import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from meshwright.cli.usage import refuse_missing_values
from meshwright.fields.field import Field
from meshwright.fields.job import OutputFields
from meshwright.fields.request import Request, request_fields

Act = Callable[[Request, dict[str, bool]], int | None]


def typer_command(
    request: type[Request],
    act: Act,
    *,
    output: type[OutputFields] = OutputFields,
    everything: bool = False,
    described: bool = True,
) -> Callable[..., Any]:
    """The function that typer makes a command of.

    Args:
        request: the request whose fields are the options.
        act: what is done with the request that was typed, and with how the answer is shown.
        output: options that say how it is shown.
        everything: whether help describes options that are rarely used, too.
        described: whether its help is asked for: only then catalogues are read for it.
    """
    how = request_fields(output)
    options = [one for one in (*request_fields(request), *how) if one.cli]
    command = _read_and_act(request, act, options, how)
    command.__doc__ = help_of(request) + ("" if everything else _named([one.spelled for one in options if one.rare]))
    return _with_parameters(command, options, everything=everything, described=described)


def _read_and_act(
    request: type[Request], act: Act, options: list[Field], how: Sequence[Field]
) -> Callable[..., int | None]:
    def command(**typed: Any) -> int | None:
        shown = {one.name: bool(typed.pop(one.name)) for one in how}
        values = {one.name: _value(one, typed[one.name]) for one in options if one.name in typed}
        return act(request.read(values, typed=True), shown)

    return command


def _with_parameters(
    command: Callable[..., Any], options: list[Field], *, everything: bool, described: bool
) -> Callable[..., Any]:
    parameters = [_parameter(one, hidden=one.rare and not everything, described=described) for one in options]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _named(rare: list[str]) -> str:
    return f"\n\nMore, which --help-all describes: {', '.join(rare)}." if rare else ""


def summary_of(request: type[Request]) -> Callable[..., Any]:
    """A command without options, which stands for a verb in a list of verbs."""

    def command() -> None:
        pass

    command.__doc__ = help_of(request)
    return command


def help_of(request: type[Request]) -> str:
    """The first sentence, examples, and the rest."""
    first, _, rest = inspect.cleandoc(request.__doc__ or "").partition("\n\n")
    lines = [f"  {line if line[0].isupper() else f'meshwright {line}'}" for line in request.examples]
    return "\n\n".join(part for part in (first, "\b\n" + "\n".join(lines), rest) if part)


def _parameter(one: Field, *, hidden: bool, described: bool) -> inspect.Parameter:
    explained = one.explained if described or isinstance(one.help, str) else ""
    words: dict[str, Any] = {"metavar": one.placeholder or None, "help": explained, "show_default": False}
    words["hidden"] = hidden
    kind: Any = list[str] | None if one.repeated else str | None
    if one.argument:
        info: Any = typer.Argument(**words)
    elif one.flag:
        kind, info = bool, typer.Option(*_spellings(one), help=explained, hidden=hidden)
    else:
        info = typer.Option(*_spellings(one), **words)
    default = False if one.flag else None
    return inspect.Parameter(
        one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _value(one: Field, typed: Any) -> Any:
    """What was typed; a switch says the opposite of its default."""
    if one.flag:
        return not one.default if typed else None
    return typed


def _spellings(one: Field) -> list[str]:
    return [one.spelled, *([one.short] if one.short else [])]


def command_for(app: typer.Typer, *, whole: bool) -> Any:
    """The parser of a command line.

    Args:
        app: the app with the verb that is called.
        whole: whether it has all verbs, as none is called: what is typed is no use.
    """
    command = typer.main.get_command(app)
    if not whole:
        _take_words(command)
    return command


def _take_words(command: Any) -> None:
    """Let a command and those below it take words, switches and lists of words unread, by public hooks of click's."""
    for parameter in command.params:
        _unread(parameter)
    command.parse_args = partial(_parsed, command, command.parse_args)
    # The option for help is made when the command line is parsed.
    help_option = command.get_help_option
    command.get_help_option = lambda context: _unread(help_option(context))
    for inner in getattr(command, "commands", {}).values():
        _take_words(inner)


def _parsed(command: Any, parse: Callable[[Any, list[str]], Any], context: Any, words: list[str]) -> Any:
    """What a parser makes of words, once every option that takes a value has one.

    Raises:
        InputError: some have none.
    """
    refuse_missing_values(words, command.params, context.command_path)
    return parse(context, words)


def _unread(parameter: Any) -> Any:
    if parameter is not None and not parameter.required:
        parameter.process_value = partial(_as_typed, parameter)
    return parameter


def _as_typed(parameter: Any, context: Any, value: Any) -> Any:
    """A value as the command line has it; where several may be given, none of them is an empty list."""
    if value is None and (parameter.multiple or parameter.nargs == -1):
        value = ()
    return value if parameter.callback is None else parameter.callback(context, parameter, value)
