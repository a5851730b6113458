"""Variables that programs hand to what they start: `env A=1 bash x.sh`, `sbatch --export=A=1 x.sh`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshwright.formats.shell.state import Shell
from meshwright.formats.shell.values import Fragment, Value, Variable, behind_equals, known_text

_PAIR = re.compile(r"([A-Za-z_]\w*)=", re.DOTALL)
_LISTS = ("--export", "--env-list", "-v")
"""Options whose value is a list of pairs with commas between them: of Slurm, and of PBS."""
_TAKES_LISTS = ("sbatch", "srun", "salloc", "qsub", "singularity", "apptainer")
_ONE = ("-x", "-e", "--env", "-genv")
"""Options of which each takes one pair: of Open MPI, and of what starts containers."""
_PLAIN = ("env", "sudo")
"""Programs that take pairs as words of their own."""


def with_handed(words: list[Value], shell: Shell) -> Shell:
    """The shell, with the variables that a command's words hand to what they start.

    Args:
        words: the words before the script that is started.
        shell: the shell that starts it.
    """
    found = dict(_handed(words))
    if not found:
        return shell
    exported = {name: Variable(entries={"0": value}, exported=True) for name, value in found.items()}
    return shell.fork(variables={**shell.variables, **exported})


def _handed(words: list[Value]) -> Iterator[tuple[str, Value]]:
    texts = [known_text(word) for word in words]
    names = [text.rpartition("/")[2] for text in texts]
    starter, plain = names[0], False
    for at, text in enumerate(texts):
        plain = plain or names[at] in _PLAIN
        option, equals, _ = text.partition("=")
        if option in (*_LISTS, *_ONE) and starter not in _PLAIN:
            value = behind_equals(words[at]) if equals else words[at + 1] if at + 1 < len(words) else ()
            listed = option in _LISTS or starter in _TAKES_LISTS
            yield from (pair for part in (_parts(value) if listed else [value]) if (pair := _pair(part)))
        elif plain and (pair := _pair(words[at])):
            yield pair


def _pair(word: Value) -> tuple[str, Value] | None:
    match = _PAIR.match(known_text(word))
    inside = match is not None and bool(word) and match.end() <= len(word[0].text)
    return (match[1], behind_equals(word)) if match is not None and inside else None


def _parts(value: Value) -> list[Value]:
    """A value divided at its commas."""
    found: list[list[Fragment]] = [[]]
    for piece in value:
        first, *others = piece.text.split(",")
        if first or piece.unknown is not None:
            found[-1].append(Fragment(first, piece.place, piece.unknown))
        found += [[Fragment(other, piece.place)] for other in others]
    return [tuple(part) for part in found]
