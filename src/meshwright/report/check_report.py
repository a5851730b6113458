"""What is wrong with a plan, and what repairs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from meshwright.report.parts import Hanging, bullet, heading, memory_legend, warning
from meshwright.report.plan_tables import StageBars, assumption_lines, breakdown, fullest
from meshwright.units import seconds


def render_check(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.check/1`.

    Args:
        document: the report as data.
    """
    good = document["ok"]
    mark = Text("ok: " if good else "violations: ", style="bold green" if good else "bold red")
    parts: list[RenderableType] = [
        *plan_as_read(document["read"], document["name"]),
        Text.assemble(mark, document["text"]),
    ]
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
    if document["repairs"]:
        parts += [heading("Smallest changes that repair it, fastest first")]
        parts += [bullet(repair["text"]) for repair in document["repairs"]]
    better = document["dominated_by"]
    if better:
        parts += [heading("A better plan")]
        parts.append(bullet(f"{better['name']}: {seconds(better['step_time_s'])}, {better['because']}"))
    parts += _fix(document["fix"])
    estimate = document["estimate"]
    if estimate:
        parts += [heading("Memory"), StageBars(estimate["stages"])]
        parts.append(bullet(memory_legend(fullest(estimate["stages"])["memory_bytes"])))
        parts += [heading(f"Time of a step, {seconds(estimate['step_time_s'])}"), breakdown(estimate)]
    assumed = document["inputs"]["assumptions"] if document["inputs"] else []
    parts += [heading("Assumed"), *assumption_lines(assumed)] if assumed else []
    return Group(*parts)


def plan_as_read(read: Mapping[str, Any] | None, name: str | None) -> list[RenderableType]:
    """The plan as it was read, line by line of the files that say it, and an empty line.

    Args:
        read: options, their values and places.
        name: the name of the plan; None where it has none.
    """
    if read is None or not (read["values"] or read["not_priced"]):
        return []
    lines: dict[str, list[str]] = {}
    for said in read["values"]:
        lines.setdefault(said["place"] or "", []).append(f"{said['option']} {said['value'] or ''}".rstrip())
    wide = max(map(len, lines), default=0) + 4
    parts: list[RenderableType] = [Text(f"As read{f': {name}' if name else ''}", style="bold")]
    for place in sorted(lines, key=_line_of(list(lines))):
        parts.append(Hanging(", ".join(lines[place]), lead=f"  {place}".ljust(wide), hang=wide))
    if read["not_priced"]:
        lead = "without effect on the price" if name else "not looked at yet, or without effect on the price"
        parts.append(bullet(f"{lead}: {', '.join(read['not_priced'])}"))
    return [*parts, Text()]


def _line_of(places: list[str]) -> Callable[[str], tuple[int, int]]:
    """Where a place such as `train.sh:12` stands: files in their order of appearance, lines by number."""
    files = list(dict.fromkeys(place.rpartition(":")[0] for place in places))

    def found(place: str) -> tuple[int, int]:
        file, _, line = place.rpartition(":")
        return files.index(file), int(line) if line.isdecimal() else 0

    return found


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
