"""The command line: a command for every verb, made of its request; only the one that is called is built."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import typer

from meshwright.app.verbs import VERBS
from meshwright.cli import answers
from meshwright.cli.command import summary_of, typer_command
from meshwright.cli.output import Output
from meshwright.fields.job import OutputFields, WatchedFields
from meshwright.fields.request import Request

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
