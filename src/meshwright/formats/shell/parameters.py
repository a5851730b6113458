"""`${...}`: defaults, lengths, cuts, replacements, entries of arrays."""

from __future__ import annotations

import re

from meshwright.formats.shell import patterns
from meshwright.formats.shell.arithmetic import NotArithmetic, evaluate
from meshwright.formats.shell.source import Source
from meshwright.formats.shell.values import (
    Fragment,
    ScriptLine,
    Unknown,
    Value,
    Variable,
    is_whole,
    known_text,
    literal,
    only_unset,
    unknown_of,
)
from meshwright.formats.shell.words import NAME, Expander, _joined

Values = tuple[list[Value], bool]
_SPECIAL = re.compile(r"[0-9]+|[@*#?$!-]")


def parameter(expander: Expander, start: int, end: int) -> Values:
    """Values of `${...}` and whether they are the words of an array.

    Args:
        expander: the expander of the text.
        start: the place behind `${`.
        end: the end of its `}`.
    """
    text = expander.source.text
    place = expander.source.place(start)
    try:
        return _parameter(expander, start, end, place)
    except (NotArithmetic, patterns.BadPattern, ValueError) as error:
        why = f"${{{text[start:end][:60]}}} cannot be read: {error}"
        return [(Fragment("", place, Unknown(why=why, place=place)),)], False


def _parameter(expander: Expander, start: int, end: int, place: ScriptLine) -> Values:
    text, shell, at = expander.source.text, expander.shell, start
    length = text[at : at + 1] == "#" and at + 1 < end
    indirect = text[at : at + 1] == "!" and at + 1 < end
    at += length or indirect
    match = NAME.match(text, at, end) or _SPECIAL.match(text, at, end)
    if match is None:
        raise ValueError("it names no variable")
    name, at = match[0], match.end()
    index = None
    if text[at : at + 1] == "[" and at < end:
        close = _closing_bracket(text, at, end)
        index, at = text[at + 1 : close], close + 1
    operator = text[at:end]
    if indirect and text[at:end] in ("@", "*") and index is None and NAME.fullmatch(name):
        names = sorted(one for one in shell.variables if one.startswith(name))
        return [literal(one, place) for one in names], text[at] == "@"
    if indirect and index in ("@", "*"):
        found = shell.variable(name)
        keys = list(found.entries) if found is not None else []
        keys = keys if found is None or found.keyed else sorted(keys, key=int)
        return [literal(key, place) for key in keys], index == "@"
    if indirect and (held := shell.variables.get(name)) is not None and held.refers:
        return [literal(held.refers, place)], False
    if indirect:
        value = shell.value(name, place)
        if unknown_of(value) is not None:
            return [value], False
        name, index = known_text(value), None
        if not NAME.fullmatch(name):
            raise ValueError("it points to no variable")
    values, many, is_set = _values(expander, name, index, place)
    if length:
        return [_length(values, many or index in ("@", "*") or name in "@*", place)], False
    if operator:
        values, many = _operated(expander, (name, index), (values, many, is_set), at, end)
    return expander.together(values) if "*" in (index, name) else values, many


def _closing_bracket(text: str, at: int, end: int) -> int:
    """Where the `[` at a position closes; an index may hold `${NAME[1]}`."""
    depth = 0
    for position in range(at, end):
        depth += (text[position] == "[") - (text[position] == "]")
        if depth == 0:
            return position
    raise ValueError("its [ is not closed")


def _values(expander: Expander, name: str, index: str | None, place: ScriptLine) -> tuple[list[Value], bool, bool]:
    """Values of a parameter, whether they are words of an array, and whether it is set."""
    shell = expander.shell
    if not NAME.fullmatch(name):
        if is_whole(name):
            value = expander.positional(int(name), place)
            return [value], False, int(name) <= len(shell.positional) or int(name) == 0
        values, many = expander.special("@" if name == "*" else name, place)
        return values, many and name != "*", bool(values)
    if name == "BASH_SOURCE":
        return [shell.value(name, place)], False, True
    found = shell.variable(name)
    if index in ("@", "*"):
        if found is None:
            return [], index == "@", False
        return found.words(), index == "@", True
    if index is None:
        value = shell.value(name, place)
        set_by_system = found is None and not only_unset(value)
        return [value], False, found is not None or set_by_system
    if found is None:
        return [(Fragment("", place, shell.unset(name, place)),)], False, False
    key = _key(expander, found, index, place)
    if isinstance(key, Unknown):
        return [(Fragment("", place, key),)], False, True
    if key not in found.entries and found.hidden is not None:
        return [(Fragment("", place, found.hidden),)], False, True
    return [found.entries.get(key, ())], False, key in found.entries


def _key(expander: Expander, variable: Variable, index: str, place: ScriptLine) -> str | Unknown:
    """The key that an index means."""
    inner = expander.of(Source(index, [0], [place]))
    value = inner.string(0, len(index))
    unknown = unknown_of(value)
    if unknown is not None:
        return unknown
    if variable.keyed:
        return known_text(value)
    number = known_text(inner.arithmetic(0, len(index), place))
    if number.startswith("-") and variable.entries:
        return str(max(map(int, variable.entries)) + 1 + int(number))
    return number


def _length(values: list[Value], many: bool, place: ScriptLine) -> Value:
    if many:
        unknown = next((unknown_of(value) for value in values if unknown_of(value)), None)
        if unknown is not None:
            return (Fragment("", place, unknown),)
        return literal(str(len(values)), place)
    unknown = unknown_of(values[0]) if values else None
    if unknown is not None:
        return (Fragment("", place, unknown),)
    return literal(str(len(known_text(values[0])) if values else 0), place)


def _operated(
    expander: Expander, target: tuple[str, str | None], read: tuple[list[Value], bool, bool], at: int, end: int
) -> Values:
    """Values with the operator behind the name carried out."""
    values, many, _ = read
    text = expander.source.text
    match = re.match(r"(:?[-=?+])|(##?|%%?)|(/#|/%|//?)|(\^\^?|,,?)|(:)|@([A-Za-z])", text[at:end])
    if match is None:
        raise ValueError("its operator is not known")
    mark, at = match[0], at + match.end()
    if match[1]:
        return _default(expander, target, read, at, end)
    unknown = next((unknown_of(value) for value in values if unknown_of(value)), None)
    if unknown is not None:
        if not all(only_unset(value) for value in values):
            return [(Fragment("", unknown.place, unknown),)], False
        return values, many
    if match[2]:
        glob, hidden = expander.glob(at, end)
        _known(hidden)
        cut = patterns.without_start if mark[0] == "#" else patterns.without_end
        return [_changed(value, cut(known_text(value), glob, longest=len(mark) == 2)) for value in values], many
    if match[3]:
        return [_replaced(expander, value, mark, at, end) for value in values], many
    if match[4]:
        return [_changed(value, _cased(known_text(value), mark)) for value in values], many
    if match[6] in ("U", "u", "L"):
        mark = {"U": "^^", "u": "^", "L": ",,"}[match[6]]
        return [_changed(value, _cased(known_text(value), mark)) for value in values], many
    if match[6] == "Q":
        return [literal(_quoted(known_text(value)), expander.source.place(at)) for value in values], many
    if match[5]:
        return _sliced(expander, values, many or "*" in target, at, end)[0], many
    raise ValueError("its operator is not known")


def _known(unknown: Unknown | None) -> None:
    if unknown is not None:
        raise ValueError(unknown.why)


def _changed(value: Value, text: str) -> Value:
    """Another text where a value stood."""
    return literal(text, value[-1].place) if value else ()


def _quoted(text: str) -> str:
    """A text as bash takes it back: `${NAME@Q}`."""
    return "'" + text.replace("'", "'\\''") + "'"


def _cased(text: str, mark: str) -> str:
    if len(mark) == 2:
        return text.upper() if mark == "^^" else text.lower()
    return (text[:1].upper() if mark == "^" else text[:1].lower()) + text[1:]


def _replaced(expander: Expander, value: Value, mark: str, at: int, end: int) -> Value:
    text = expander.source.text
    middle = at
    while middle < end and text[middle] != "/":
        middle += 2 if text[middle] == "\\" else 1
        if middle < end and text[middle - 1] in "'\"":
            middle = max(text.find(text[middle - 1], middle, end), middle) + 1
    glob, hidden = expander.glob(at, min(middle, end))
    _known(hidden)
    by = expander.string(middle + 1, end) if middle < end else ()
    _known(unknown_of(by))
    return _changed(value, patterns.replaced(known_text(value), glob, known_text(by), mark[1:]))


def _sliced(expander: Expander, values: list[Value], many: bool, at: int, end: int) -> Values:
    parts = expander.source.text[at:end].split(":")
    if len(parts) > 2:
        raise ValueError("it has too many colons")

    def number(text: str) -> int:
        def value_of(name: str) -> int:
            value = expander.shell.value(name, expander.source.place(at))
            _known(unknown_of(value))
            return evaluate(known_text(value), lambda _: 0)

        return evaluate(text.replace("$", ""), value_of)

    offset = number(parts[0])
    count = number(parts[1]) if len(parts) == 2 else None
    if many:
        if expander.source.text[: at - 1].endswith(("@", "*")):
            # ${@:1} counts from $0.
            values = [expander.shell.name, *values]
        last = None if count is None else max(offset, 0) + count
        return values[offset:last], many
    text = known_text(values[0]) if values else ""
    start = offset if offset >= 0 else max(0, len(text) + offset)
    last = None if count is None else start + count if count >= 0 else len(text) + count
    return [_changed(values[0], text[start:last]) if values else ()], False


def _default(
    expander: Expander, target: tuple[str, str | None], read: tuple[list[Value], bool, bool], at: int, end: int
) -> Values:
    """`-`, `=`, `?` and `+`, each also with a colon; their word starts at `at`."""
    values, many, is_set = read
    text, shell, (name, index) = expander.source.text, expander.shell, target
    mark, colon = text[at - 1], text[at - 2 : at - 1] == ":"
    whole = _joined(values)
    unknown = unknown_of(whole)
    if unknown is not None and not only_unset(whole):
        if mark != "+":
            return values, many
        return [expander.string(at, end) if unknown.single else (Fragment("", unknown.place, unknown),)], False
    empty = not known_text(whole) if colon else not is_set
    if empty and mark != "?":
        shell.assume_unset(whole)
        if not values and index is None and not is_set:
            shell.record.assumed.setdefault(name, expander.source.place(at))
    if mark == "+":
        return ([], False) if empty else _alternative(expander, at, end)
    if not empty:
        return values, many
    if mark == "?":
        place = expander.source.place(at)
        why = f"{name} must be given: the script stops without it"
        given: Value = (Fragment("", place, Unknown(why=why, place=place, names=(name,))),)
        if index is None and NAME.fullmatch(name):
            # Behind it the script has a value: what is compared with it is asked for, too.
            shell.variables[name] = Variable(entries={"0": given}, exported=True)
        return [given], False
    if mark == "=":
        value = expander.string(at, end)
        key = None if index is None else known_text(expander.string(at, at)) or index
        shell.assign(name, value, key=key)
        return [value], False
    return _alternative(expander, at, end)


def _alternative(expander: Expander, at: int, end: int) -> Values:
    """The word behind an operator; `${A+"${A[@]}"}` stays the words of an array."""
    parts = list(expander.scan(at, end, "word"))
    if len(parts) == 1 and parts[0].words is not None:
        return list(parts[0].words), True
    return [expander.string(at, end)], False
