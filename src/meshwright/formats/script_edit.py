"""A value of a launch script changed where it is written, and nothing else of the script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator
from difflib import SequenceMatcher

_ANCHORS = (
    *("--tensor-model-parallel-size", "--micro-batch-size", "--global-batch-size", "--num-layers"),
    *("--per_device_train_batch_size", "--model_name_or_path", "--output_dir"),
)
"""Options in front of which another one is written."""
_VALUES = r"(?:[ =]+(?:\"[^\"\n]*\"|'[^'\n]*'|(?!--)[^\s\\\"'#)]+))*"


def edits(
    text: str, option: str, old: str | None, new: str | None, line: int | None, commands: Collection[int] = ()
) -> Iterator[str]:
    """Texts in which an option has another value, the least change first.

    Args:
        text: the text of the script.
        option: such as `--micro-batch-size`.
        old: its value, empty for a switch, None where the script does not give it.
        new: the value it shall have, empty for a switch, None to take it out.
        line: the line where the value is written, from 1.
        commands: lines of several commands, all of which get it.
    """
    lines = text.split("\n")
    if commands:
        yield from _everywhere(lines, option, old, new, commands)
    yield from _single(lines, option, old, new, line)


def _single(lines: list[str], option: str, old: str | None, new: str | None, line: int | None) -> Iterator[str]:
    if old is None:
        if new is not None:
            yield from _added(lines, option, new)
        return
    if new is None:
        yield from _taken_out(lines, option)
        return
    if line is not None and 1 <= line <= len(lines) and old:
        found = re.compile(rf"(?<![\w.]){re.escape(old)}(?![\w.])")
        matches = list(found.finditer(lines[line - 1]))
        # Behind its option, or behind `=`, first.
        matches.sort(key=lambda match: option not in lines[line - 1][: match.start()])
        for match in matches[:4]:
            here = lines[line - 1]
            yield _with(lines, line - 1, here[: match.start()] + new + here[match.end() :])
    for number, here in enumerate(lines):
        for match in re.finditer(rf"{re.escape(option)}(?![\w-]){_VALUES}", here):
            if not here.lstrip().startswith("#"):
                for said in _said(option, new):
                    yield _with(lines, number, f"{here[: match.start()]}{said}{here[match.end() :]}")


def _everywhere(
    lines: list[str], option: str, old: str | None, new: str | None, commands: Collection[int]
) -> Iterator[str]:
    """The same change of each of several commands, from the last line up: those above keep their numbers."""
    anchors = _ANCHORS if old is None else (option,)
    for anchor in anchors:
        changed = list(lines)
        for number in sorted(commands, reverse=True):
            if number > len(lines) or not re.search(rf"{re.escape(anchor)}(?![\w-])", lines[number - 1]):
                continue
            # Only this line is seen: the first way to change it is that of the others too.
            alone = ["" if at != number - 1 else here for at, here in enumerate(changed)]
            edited = next(_single(alone, option, old, new, number), None)
            if edited is not None:
                changed[number - 1 : number] = [here for here in edited.split("\n") if here]
        if changed != lines:
            yield "\n".join(changed)


def _said(option: str, value: str) -> Iterator[str]:
    """The option with its value; in quotes first, where the value needs them outside of a string."""
    if value and shlex.quote(value) != value and " " not in value:
        yield f"{option} {shlex.quote(value)}"
    yield f"{option} {value}" if value else option


def _with(lines: list[str], number: int, line: str) -> str:
    return "\n".join([*lines[:number], line, *lines[number + 1 :]])


def _added(lines: list[str], option: str, new: str) -> Iterator[str]:
    """The option in front of another one: that is right inside quotes, arrays and commands alike."""
    for anchor in _ANCHORS:
        for number, here in enumerate(lines):
            at = here.find(anchor)
            if at >= 0 and not here.lstrip().startswith("#") and here[at - 1 : at] in ("", " ", "\t", '"', "(", "'"):
                for said in _said(option, new):
                    if not here[:at].strip():
                        end = " \\" if here.rstrip().endswith("\\") else ""
                        yield "\n".join([*lines[:number], f"{here[:at]}{said}{end}", *lines[number:]])
                    yield _with(lines, number, f"{here[:at]}{said} {here[at:]}")


def _taken_out(lines: list[str], option: str) -> Iterator[str]:
    for number, here in enumerate(lines):
        match = re.search(rf"{re.escape(option)}(?![\w-]){_VALUES}", here)
        if match is None or here.lstrip().startswith("#"):
            continue
        rest = here[: match.start()].rstrip(" ") + " " + here[match.end() :].lstrip(" ")
        if not here[: match.start()].strip():
            rest = here[: match.start()] + here[match.end() :].lstrip(" ")
        continued = number and lines[number - 1].rstrip().endswith("\\")
        if rest.strip() == "\\" or (not rest.strip() and not continued):
            yield "\n".join([*lines[:number], *lines[number + 1 :]])
        yield _with(lines, number, rest.rstrip() if rest.strip() else "")


def written_at(text: str, held: str) -> int | None:
    """The line of a script, from 0, where the text of a file that it writes begins; None where that is not one place.

    Args:
        text: the text of the script.
        held: what the file holds, variables filled in.
    """
    lines, wanted = text.split("\n"), held.rstrip("\n").split("\n")
    named = [at for at, one in enumerate(wanted) if one.strip()]

    def holds(start: int) -> bool:
        there = [(lines[start + at], wanted[at]) for at in named]
        return any(one in here for here, one in there) and all(one in here or "$" in here for here, one in there)

    found = [start for start in range(len(lines) - len(wanted) + 1) if named and holds(start)]
    # Lines of variables alone may be any line: the place with most lines as they are is the one.
    same = [sum(wanted[at] in lines[start + at] for at in named) for start in found]
    best = [start for start, count in zip(found, same, strict=True) if count == max(same)]
    return best[0] if len(best) == 1 else None


def with_written(text: str, held: str, new: str) -> str | None:
    """A script that writes a file with another text: lines that stay are as they were; None where they are not found.

    Args:
        text: the text of the script.
        held: what the file holds, variables filled in.
        new: what it shall hold.
    """
    start = written_at(text, held)
    if start is None:
        return None
    lines, before, after = text.split("\n"), held.rstrip("\n").split("\n"), new.rstrip("\n").split("\n")
    for kind, first, end, other, last in reversed(SequenceMatcher(None, before, after, autojunk=False).get_opcodes()):
        if kind == "equal":
            continue
        here = lines[start + first : start + end]
        made = after[other:last]
        if len(here) == len(made):
            made = [old.replace(was, now) for old, was, now in zip(here, before[first:end], made, strict=True)]
            made = [after[other + at] if one == here[at] else one for at, one in enumerate(made)]
        lines[start + first : start + end] = made
    return "\n".join(lines)
