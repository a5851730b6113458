"""A request as a command: its options, its help, and what is done with what was typed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from meshwright.fields.field import Field
from meshwright.fields.job import OutputFields
from meshwright.fields.request import Request, request_fields

Act = Callable[[Request, dict[str, bool]], int | None]


def typer_command(
    request: type[Request], act: Act, *, output: type[OutputFields] = OutputFields, everything: bool = False
) -> Callable[..., Any]:
    """The function that typer makes a command of.

    Args:
        request: whose fields are the options.
        act: what is done with the request that was typed, and with how the answer is shown.
        output: options that say how it is shown.
        everything: whether help describes options that are rarely used, too.
    """
    how = request_fields(output)
    options = [one for one in (*request_fields(request), *how) if one.cli]

    def command(**typed: Any) -> int | None:
        shown = {one.name: bool(typed.pop(one.name)) for one in how}
        values = {one.name: _value(one, typed[one.name]) for one in options if one.name in typed}
        return act(request.read(values, typed=True), shown)

    parameters = [_parameter(one, hidden=one.rare and not everything) for one in options]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__doc__ = help_of(request) + ("" if everything else _named([one.spelled for one in options if one.rare]))
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


def _parameter(one: Field, *, hidden: bool) -> inspect.Parameter:
    words: dict[str, Any] = {"metavar": one.placeholder or None, "help": one.explained, "show_default": False}
    words["hidden"] = hidden
    kind: Any = list[str] | None if one.repeated else str | None
    if one.argument:
        info: Any = typer.Argument(**words)
    elif one.flag:
        kind, info = bool, typer.Option(*_spellings(one), help=one.explained, hidden=hidden)
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
