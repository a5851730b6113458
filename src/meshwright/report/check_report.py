"""What is wrong with a plan, and what repairs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from meshwright.report.bars import memory_legend
from meshwright.report.parts import Hanging, bullet, columns, heading, plain_row, warning
from meshwright.report.plan_tables import StageBars, assumption_lines, breakdown, fullest
from meshwright.units import seconds


def render_check(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.check/1`.

    Args:
        document: the report as data.
    """
    good = document["ok"]
    mark = Text("ok: " if good else "violations: ", style="bold green" if good else "bold red")
    parts: list[RenderableType] = [Text.assemble(mark, document["text"])]
    for violation in document["violations"]:
        parts.append(Text.assemble((f"{violation['code']} ", "red"), violation["what"]))
        parts += [
            bullet(f"{word}: {violation[word]}")
            for word in ("why", "fix")
            if violation[word] and violation[word] not in violation["what"]
        ]
    parts += [warning(text) for text in document["warnings"]]
    if document["post_mortem"]:
        parts += [heading("Out-of-memory log"), *(bullet(text) for text in document["post_mortem"]["text"])]
    if document["mends"]:
        parts += [heading("Smallest changes that repair it, fastest first")]
        parts += [bullet(repair["text"]) for repair in document["mends"]]
    better = document["dominated_by"]
    if better:
        parts += [heading("A better plan")]
        parts.append(bullet(f"{better['name']}: {seconds(better['step_time_s'])}; {better['because']}"))
    parts += _fix(document["fix"])
    estimate = document["estimate"]
    if estimate:
        parts += [heading("Memory"), StageBars(estimate["stages"])]
        parts.append(bullet(memory_legend(fullest(estimate["stages"])["memory_bytes"])))
        parts += [heading(f"Time of a step, {seconds(estimate['step_time_s'])}"), breakdown(estimate)]
    read = plan_as_read(document["read"])
    parts += [Text(), *read[:-1]] if read else []
    assumed = document["inputs"]["assumptions"] if document["inputs"] else []
    parts += [heading("Assumed"), *assumption_lines(assumed)] if assumed else []
    return Group(*parts)


def plan_as_read(read: Mapping[str, Any] | None) -> list[RenderableType]:
    """The plan as it was read, each value with the line it is written on."""
    if read is None:
        return []
    table = columns("as read", "value", "at", left=("as read", "at"), fold=("value",))
    for said in read["values"]:
        plain_row(table, said["option"], said["value"] or "given", said["place"] or "")
    parts: list[RenderableType] = [table] if read["values"] else []
    if read["not_priced"]:
        names = ", ".join(read["not_priced"])
        parts.append(Hanging(f"read, without effect on the price: {names}", lead=""))
    return [*parts, Text()] if parts else []


def _fix(fix: Mapping[str, Any] | None) -> list[RenderableType]:
    """Options to change, as a diff of the user's own file where that can be."""
    if fix is None:
        return []
    parts: list[RenderableType] = [heading(f"The {fix['noun']} with {fix['plan']} in it")]
    if fix["diff"]:
        parts.append(Text(fix["diff"].rstrip("\n"), no_wrap=True, overflow="ignore"))
        return [*parts, *(warning(text) for text in fix["notes"])]
    for change in fix["changes"]:
        old, new = change["old"], change["new"]
        said = "leave it out" if new is None else f"{old or 'not given'} -> {new or 'given'}"
        parts.append(bullet(f"{change['option']} {said}{' at ' + change['place'] if change['place'] else ''}"))
    parts += [warning(f"no diff: {fix['why_not']}")] if fix["why_not"] else []
    return [*parts, *(warning(text) for text in fix["notes"])]
