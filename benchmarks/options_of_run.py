"""Whether every option of a command that a script starts is read as it is stated, and none of them is lost.

The words are those that a recording of the script has; what was read is what `check` prints as read, lists as without
effect on the price, or names in a problem or a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from benchmarks.facts_of_run import options
from meshwright.formats.launch_file import LaunchFile


def unlike(launch: LaunchFile, words: Sequence[str]) -> dict[str, list[str]]:
    """Options that are read as something else than the words state, by name: what is stated, then what is read.

    Args:
        launch: what `check` read.
        words: behind the program, as a recording has them.
    """
    stated, told = options(words), _told(launch)
    explained = {one.place for one in launch.said if _plain(one.option) in told}
    found: dict[str, list[str]] = {}
    for said in launch.said:
        name = _plain(said.option)
        if not said.option.startswith("--") or name in told:
            continue  # a key of a file, or an option under another name, which a note explains
        if name not in stated:
            if said.place and said.place not in explained:
                found[name] = ["not stated", said.value]
        elif not _same(stated[name], said.value):
            found[name] = [" ".join(stated[name]), said.value]
    return found


def lost(launch: LaunchFile, words: Sequence[str]) -> list[str]:
    """Names of stated options of which the answer says nothing.

    Args:
        launch: what `check` read.
        words: behind the program, as a recording has them.
    """
    told = _told(launch)
    read = {_plain(one.option) for one in (*launch.said, *launch.unpriced)}
    return [name for name in options(words) if name not in read and name not in told]


def _plain(option: str) -> str:
    return option.lstrip("-").replace("_", "-")


def _told(launch: LaunchFile) -> set[str]:
    """Every word of notes, questions and problems that could be an option."""
    problems = (*launch.problems, *launch.questions)
    texts = (*launch.notes, *(f"{one.what} {one.why} {one.fix} {one.field}" for one in problems))
    return {_plain(word) for text in texts for word in _words(text)}


def _words(text: str) -> Iterator[str]:
    yield from re.findall(r"-{0,2}[A-Za-z][\w-]+", text)


def _same(stated: Sequence[str], read: str) -> bool:
    """Whether a value is the one stated, as text or as a number; a switch has none."""
    text = " ".join(stated)
    if text == read or (not stated and read in ("", "given", "True")):
        return True
    try:
        return float(text) == float(read)
    except ValueError:
        return text.casefold() == read.casefold()
