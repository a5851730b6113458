"""What a shell knows while a script is read: strings with the places they come from, and what nobody can know."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, order=True)
class ScriptLine:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something only the machine of the job, or its user, knows."""

    why: str
    """Why it is not known, as a sentence goes on after "it is not known": `$(hostname) is not run`."""
    place: ScriptLine
    names: tuple[str, ...] = ()
    """Variables and positions that would settle it: `NNODES`, `1`."""
    unset: bool = False
    """A variable that the script never sets and nobody gave: empty unless the environment has it."""
    flags: frozenset[str] | None = None
    """Options that can stand in its place; None where that may be any."""
    single: bool = False
    """Whether it is one word, whichever it is."""
    by_node: tuple[int, ...] = ()
    """The number on each node, by NODE_RANK from 0, where that alone settles it."""


Truth = bool | Unknown
"""Whether something holds, where it can be known."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """Part of a string that was written in one place."""

    text: str
    place: ScriptLine
    unknown: Unknown | None = None


Value = tuple[Fragment, ...]


def behind_equals(word: Value) -> Value:
    """What stands behind the first `=` of a word; nothing where it has none."""
    for at, piece in enumerate(word):
        if "=" in piece.text:
            return (replace(piece, text=piece.text.partition("=")[2]), *word[at + 1 :])
    return ()


@dataclass(frozen=True, slots=True)
class Variable:
    """A string, or an array by index or key."""

    entries: dict[str, Value] = field(default_factory=dict)
    array: bool = False
    keyed: bool = False
    """Declared with -A: keys are text."""
    exported: bool = False
    hidden: Unknown | None = None
    """Entries nobody can know, behind those that are known."""
    refers: str = ""
    """The variable that it is another name of, as `declare -n` makes it."""

    @property
    def scalar(self) -> Value:
        """What `$NAME` gives: of an array its entry 0."""
        return self.entries.get("0", ())

    def words(self) -> list[Value]:
        """Entries in their order, and the unknown rest as one more."""
        found = list(self.entries.values())
        if self.array and not self.keyed:
            found = [value for _, value in sorted(self.entries.items(), key=lambda entry: int(entry[0]))]
        if self.hidden is not None:
            found.append((Fragment("", self.hidden.place, self.hidden),))
        return found


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command."""

    pieces: Value

    @property
    def text(self) -> str:
        """Letters of the word; what is unknown is left out."""
        return known_text(self.pieces)

    @property
    def unknown(self) -> Unknown | None:
        """Why its text is not all of it."""
        return unknown_of(self.pieces)

    @property
    def last_part(self) -> str:
        """The end of a path, a file's or a model's own name, where only the folders before it are not known."""
        known = self.text.rpartition("/")[2]
        behind = ""
        for piece in reversed(self.pieces):
            if piece.unknown is not None:
                return known if "/" in behind else ""
            behind = piece.text + behind
        return known

    @property
    def place(self) -> ScriptLine | None:
        """Where the last of its letters were written."""
        places = (piece.place for piece in reversed(self.pieces) if piece.text or piece.unknown)
        return next((place for place in places if place.line), None)


def word(text: str, place: ScriptLine | None = None) -> Word:
    """A word whose text is known."""
    return Word(literal(text, place or ScriptLine("", 0)))


_WHOLE = re.compile(r"[0-9]{1,18}")


def is_whole(text: str) -> bool:
    """Whether a text is a whole number that bash counts with: ASCII digits, of no more than 64 bits."""
    return _WHOLE.fullmatch(text) is not None


def known_text(value: Value) -> str:
    """Letters of a value; what is unknown is left out."""
    return "".join(piece.text for piece in value)


def unknown_of(value: Value) -> Unknown | None:
    """The first part of a value that nobody can know; one that may be set from outside comes last."""
    found = [piece.unknown for piece in value if piece.unknown is not None]
    return next((unknown for unknown in found if not unknown.unset), found[0] if found else None)


def only_unset(value: Value) -> bool:
    """Whether all that is unknown of a value is what the environment may set."""
    return all(piece.unknown is None or piece.unknown.unset for piece in value)


def literal(text: str, place: ScriptLine) -> Value:
    """Text written at one place."""
    return (Fragment(text, place),) if text else ()


def either_variable(one: Variable | None, other: Variable | None, cause: Unknown) -> Variable | None:
    """What a variable can be after two ways of which one was taken: what they share, and the rest unknown."""
    if one == other:
        return one
    first, second = one or Variable(), other or Variable()
    if _texts(first) == _texts(second) and (one is None) == (other is None):
        return one
    exported = first.exported and second.exported
    if first.array or second.array:
        left, right = first.words(), second.words()
        shared = _shared(left, right)
        hidden = _either(cause, left[shared:], right[shared:])
        entries = {str(at): value for at, value in enumerate(left[:shared])}
        return Variable(entries=entries, array=True, exported=exported, hidden=hidden)
    left, right = list(first.scalar), list(second.scalar)  # type: ignore[arg-type]
    shared = _shared([(piece,) for piece in first.scalar], [(piece,) for piece in second.scalar])
    rest = _either(cause, [first.scalar[shared:]], [second.scalar[shared:]])
    entries = {"0": (*first.scalar[:shared], Fragment("", cause.place, rest))}
    return Variable(entries=entries, exported=exported)


def _texts(variable: Variable) -> object:
    unknowns = [piece.unknown for value in variable.words() for piece in value if piece.unknown]
    return variable.array, [known_text(value) for value in variable.words()], unknowns


def _shared(left: list[Value], right: list[Value]) -> int:
    """How many entries agree from the first."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if known_text(one) != known_text(other) or unknown_of(one) != unknown_of(other):
            break
        count += 1
    return count


def _either(cause: Unknown, *ways: list[Value]) -> Unknown:
    """The unknown that stands for one of several lists of values, with the options that occur in them."""
    flags: set[str] = set()
    known = True
    single = True
    for way in ways:
        texts = [word for value in way for word in known_text(value).split()]
        single = single and len(texts) == 1
        flags.update(word.partition("=")[0] for word in texts if word.startswith("--"))
        inner = [piece.unknown for value in way for piece in value if piece.unknown]
        known = known and all(unknown.unset or unknown.flags is not None or unknown.single for unknown in inner)
        flags.update(flag for unknown in inner for flag in unknown.flags or ())
    return Unknown(
        why=cause.why,
        place=cause.place,
        names=cause.names,
        flags=frozenset(flags) if known else None,
        single=single and not flags,
    )
