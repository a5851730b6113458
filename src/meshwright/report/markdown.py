"""Plans as Markdown: what a merge request, a ticket or a chat shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from meshwright.records import visible
from meshwright.report.page.source import PageSource
from meshwright.report.plan_tables import RATES, UNKNOWN, bottleneck, fullest, stage_name
from meshwright.report.words.made_by import made_by_words
from meshwright.report.words.reasons import PARTS
from meshwright.report.words.titles import assumption_name
from meshwright.report.words.trainers import trainer_lines
from meshwright.report.words.verdict import rate_heading
from meshwright.units import of_capacity, percent, seconds


def plan_set_markdown(source: PageSource) -> str:
    """Verdict, reasons, plans, parts of the best one's step, memory of its stages, assumptions, command.

    Args:
        source: the answer.
    """
    document = source.document
    best, verdict = document["plans"][0], document["verdict"]
    name = f"## {_plain(document['inputs']['model']['name'])} on {_plain(document['inputs']['cluster']['name'])}"
    lines = [
        name,
        "",
        f"**{_plain(verdict['text'])}**",
        "",
        *(f"* {_plain(line)}" for line in [*best["identities"], *verdict["why"][1:]]),
    ]
    if verdict["runner_up"]:
        other = verdict["runner_up"]
        because = _plain(other["loses_because"])
        lines.append(f"* runner-up: {_code(other['title'])}, {seconds(other['step_time_s'])}: {because}")
    lines += [f"* warning: {_plain(text)}" for text in document["warnings"]]
    lines += [
        "",
        *_table(
            ("#", "plan", "step", rate_heading(document["plans"]), "MFU", "memory", "bottleneck"),
            map(_plan, document["plans"]),
        ),
    ]
    if trainers := document.get("trainers"):
        rows = (
            (name, _code(plan) if time else _plain(plan), time, memory)
            for name, plan, time, memory in trainer_lines(trainers)
        )
        lines += ["", *_table(("trainer", "plan", "step", "memory"), rows)]
    lines += ["", *_table(("part of the step", "time", "share"), _parts(best["estimate"]))]
    lines += ["", *_table(("stage", "peak memory", "moment"), _stages(best["estimate"]["stages"]))]
    assumed = [
        (_plain(assumption_name(one["name"])), _plain(one["value"]), one["basis"])
        for one in document["inputs"]["assumptions"]
    ]
    lines += [
        "",
        "<details><summary>Assumed</summary>",
        "",
        *_table(("what", "value", "basis"), assumed),
        "",
        "</details>",
    ]
    made = made_by_words(source.made_by)
    lines += ["", f"{made}: {_code(source.command)}" if source.command else made]
    return "\n".join(lines) + "\n"


def _plan(entry: Mapping[str, Any]) -> Sequence[str]:
    estimate = entry["estimate"]
    full = fullest(estimate["stages"])
    name, share = bottleneck(estimate)
    return (
        str(entry["rank"]),
        _code(entry["title"]),
        seconds(estimate["step_time_s"]),
        *(show(estimate[key]) if key in estimate else UNKNOWN for key, show in RATES.items()),
        of_capacity(full["peak_memory_bytes"], full["capacity_bytes"]),
        f"{_plain(name)} {percent(share)}",
    )


def _parts(estimate: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for name, time_s in sorted(estimate["breakdown_s"].items(), key=lambda pair: -pair[1]):
        if time_s > 0:
            yield PARTS.get(name, name), seconds(time_s), percent(time_s / estimate["step_time_s"])


def _stages(stages: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    for stage in stages:
        peak = of_capacity(stage["peak_memory_bytes"], stage["capacity_bytes"])
        yield stage_name(stage, stages), peak, stage["peak_moment"]


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield f"|{'|'.join('---' for _ in names)}|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _plain(text: str) -> str:
    """Text of anybody as text: no element of HTML, no link, no line of its own."""
    return visible(" ".join(text.split("\n"))).replace("<", "&lt;").replace("](", "]\\(")


def _code(text: str) -> str:
    """The same in the type of code, where nothing but a backtick means anything."""
    return f"`{visible(' '.join(text.split(chr(10)))).replace('`', chr(39))}`"
