"""The command line: every verb's request as a command, its options, its help and what is done with it.

Only the command that is called is built. Typer makes a pydantic validator for every option of a command. Ours are
words, switches and lists of words, which `values` reads with errors of our own, so the validators would only cost
their import.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from meshwright.app.verbs import VERBS
from meshwright.cli import answers
from meshwright.cli.output import Output
from meshwright.cli.usage import refuse_missing_values
from meshwright.fields.field import Field
from meshwright.fields.job import OutputFields, WatchedFields
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


GROUPS = {
    "models": "The models known by name.",
    "gpus": "The accelerators known by name.",
    "clusters": "How a description of a cluster is read.",
    "calculon": "Calculon's model on Calculon's own JSON files. An application, an execution and a system.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a verb shows while it works and when it is done."""

    doing: str = "working"
    """Word for the work, on a terminal's stderr."""
    show: Callable[[Output, Any, Any], int | None] = answers.print_shown
    course: Callable[[Output, Any, Callable[..., Any]], int | None] | None = None
    """Instead: calls the use case itself, to tell of its progress or to handle its errors."""


WATCH = "--watch"
WATCHED = ("plan", "estimate", "check", "explain", "compare", "size")
"""Verbs that have it: they read files that people edit, and answer in seconds."""
SHOWN = {
    "plan": Shown(course=answers.print_searched),
    "estimate": Shown(show=answers.plans),
    "check": Shown(doing="checking", show=answers.checked),
    "xray": Shown(doing="running one rank"),
    "explain": Shown(doing="explaining"),
    "compare": Shown(show=answers.print_compared),
    "trace": Shown(doing="simulating", show=answers.print_traced),
    "report": Shown(doing="drawing", show=answers.print_reported),
    "web": Shown(course=answers.served_page),
    "serve": Shown(course=answers.served),
    "mcp": Shown(course=answers.served),
    "size": Shown(doing="searching", show=answers.plans),
    "sweep": Shown(course=answers.swept),
    "tune": Shown(course=answers.tuned),
    "export": Shown(show=answers.exported),
    "schedule": Shown(show=answers.scheduled),
    "validate": Shown(course=answers.predictions),
    "calibrate": Shown(doing="fitting", show=answers.calibrated),
    "profile": Shown(doing="timing kernels", show=answers.profiled),
    "run": Shown(course=answers.training),
    "verify": Shown(doing="running both", show=answers.verified),
    "doctor": Shown(doing="checking", show=answers.examined),
    "models list": Shown(),
    "models show": Shown(),
    "models add": Shown(),
    "gpus list": Shown(),
    "gpus show": Shown(),
    "gpus add": Shown(),
    "clusters show": Shown(show=answers.cluster),
    "calculon estimate": Shown(course=answers.executions),
    "calculon search": Shown(doing="searching"),
    "calculon sweep": Shown(course=answers.swept),
    "calculon what-if": Shown(course=answers.changed),
    "calculon tune": Shown(course=answers.tuned),
}


def called(words: Sequence[str]) -> list[str]:
    """The verb that a command line calls, or all of them where it names none."""
    for verb in VERBS:
        path = verb.split()
        if list(words[: len(path)]) == path:
            return [verb]
    return list(VERBS)


def add_commands(app: typer.Typer, verbs: Sequence[str], *, everything: bool = False, described: bool = True) -> None:
    """Put verbs on an application, each in its group.

    Args:
        app: the app to which they are added.
        verbs: their names.
        everything: whether help describes options that are rarely used, too.
        described: whether help is asked for.
    """
    groups: dict[str, typer.Typer] = {}
    for verb in verbs:
        name, _, inner = verb.partition(" ")
        home = _group(app, groups, name) if inner else app
        request = VERBS[verb].request
        completes = any(name.endswith("_COMPLETE") for name in os.environ)
        output = WatchedFields if verb in WATCHED else OutputFields
        how = {"everything": everything, "described": described or completes}
        made = (
            typer_command(request, partial(act, verb), output=output, **how) if completes or len(verbs) == 1 else None
        )
        home.command(inner or name)(made or summary_of(request))


def _group(app: typer.Typer, groups: dict[str, typer.Typer], name: str) -> typer.Typer:
    """The group of verbs of this name, which the first of them makes."""
    if name not in groups:
        groups[name] = typer.Typer(help=GROUPS[name], no_args_is_help=True, rich_markup_mode=None)
        groups[name].callback()(lambda: None)
        app.add_typer(groups[name], name=name)
    return groups[name]


def act(verb: str, request: Request, output: dict[str, bool]) -> int | None:
    """Answer a request and show the answer.

    Returns:
        The exit code, None for 0.
    """
    out = Output(as_json=output["json"], quiet=output["quiet"], no_color=output["no_color"])
    how, use = SHOWN[verb], partial(VERBS[verb].answer, request)
    if how.course is not None:
        return how.course(out, request, use)
    with out.progress(how.doing):
        answer = use()
    return how.show(out, request, answer)
