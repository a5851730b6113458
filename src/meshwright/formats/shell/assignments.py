"""`NAME=value` in all its forms, and `export`, `local`, `declare`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from meshwright.formats.shell.closing import closing, closing_brace, closing_quote
from meshwright.formats.shell.source import Source
from meshwright.formats.shell.state import Shell
from meshwright.formats.shell.values import Value, Variable, behind_equals, is_whole, known_text, unknown_of
from meshwright.formats.shell.words import Expander

if TYPE_CHECKING:
    from tree_sitter import Node

NAME = re.compile(r"[A-Za-z_]\w*")
_PLAIN = re.compile(r"[^ \t\n'\"\\$`]+")


def word_spans(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Words of a stretch, divided at blanks outside quotes and expansions."""
    at = start
    while at < end:
        if text[at] in " \t\n" or text.startswith("\\\n", at):
            at += 1
            continue
        first = at
        while at < end and text[at] not in " \t\n":
            if text[at] == "'":
                at = max(text.find("'", at + 1, end), at) + 1
            elif text[at] == '"':
                at = closing_quote(text, at + 1, end) + 1
            elif text[at] == "\\":
                at += 2
            elif text.startswith("${", at):
                at = closing_brace(text, at + 2, end) + 1
            elif text.startswith("$(", at):
                at = closing(text, at + 2, end) + 1
            elif text[at] == "`":
                at = max(text.find("`", at + 1, end), at) + 1
            else:
                plain = _PLAIN.match(text, at, end)
                at = plain.end() if plain is not None else at + 1
        yield first, min(at, end)


def assign(expander: Expander, node: Node, shell: Shell, *, flags: str = "") -> None:
    """`NAME=value`, `NAME+=value`, `NAME[key]=value` and `NAME=(...)`."""
    source = expander.source
    target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if target is None:
        return
    append = any(child.type == "+=" for child in node.children)
    name = source.text[target.start_byte : target.end_byte]
    if value is not None and value.type == "array":
        _assign_array(expander, name, value.start_byte + 1, value.end_byte - 1, append=append, keyed="A" in flags)
        return
    found = () if value is None else expander.string(value.start_byte, value.end_byte)
    key: str | None = None
    if "[" in name:
        name, _, index = name.rstrip("]").partition("[")
        inner = expander.of(Source(index, [0], [source.place(target.start_byte)]))
        held = shell.variable(name)
        keyed = held is not None and held.keyed
        key = known_text(inner.string(0, len(index)) if keyed else inner.arithmetic(0, len(index), source.place(0)))
        if not keyed and not is_whole(key.removeprefix("-")):
            return
    if "i" in flags and unknown_of(found) is None:
        inner = expander.of(Source.of_value(found, source.place(node.start_byte)))
        found = inner.arithmetic(0, len(inner.source.text), source.place(node.start_byte))
    shell.assign(name, _asked_by(name, found), key=key, append=append)


def _asked_by(name: str, value: Value) -> Value:
    """A value that only a run would tell is asked for by the name it is given to."""
    return tuple(
        replace(piece, unknown=replace(piece.unknown, names=(name,)))
        if piece.unknown is not None and not piece.unknown.names
        else piece
        for piece in value
    )


def _assign_array(expander: Expander, name: str, start: int, end: int, *, append: bool, keyed: bool) -> None:
    text, shell = expander.source.text, expander.shell
    name = shell.meant(name)
    held = shell.variables.get(name)
    if keyed and (held is None or not held.keyed):
        shell.variables[name] = Variable(array=True, keyed=True)
    entries: list[tuple[str | None, Value]] = []
    at = start
    while at < end:
        if text[at] == "#" and (at == start or text[at - 1] in " \t\n("):
            line = text.find("\n", at, end)
            at = end if line < 0 else line
        elif text[at] in " \t\n" or text.startswith("\\\n", at):
            at += 2 if text[at] == "\\" else 1
        else:
            first, last = next(word_spans(text, at, end))
            match = re.match(r"\[([^\]]+)\]=", text[first:last])
            if match:
                inner = expander.source.part(match[1], first)
                key = known_text(expander.of(inner).string(0, len(match[1])))
                is_keyed = shell.variables.get(name, Variable()).keyed
                if is_keyed or is_whole(key):
                    entries.append((key, expander.string(first + match.end(), last)))
            else:
                entries += [(None, word) for word in expander.fields(first, last)]
            at = last
    shell.assign_array(name, entries, append=append)


def declare(expander: Expander, node: Node, shell: Shell) -> None:
    """`export`, `local`, `declare`, `typeset` and `readonly`."""
    source = expander.source
    kind = node.children[0].type
    flags = ""
    shell.status = True
    for child in node.children[1:]:
        text = source.text[child.start_byte : child.end_byte]
        if child.type == "variable_assignment":
            target = child.child_by_field_name("name")
            name = source.text[target.start_byte : target.end_byte].partition("[")[0] if target is not None else ""
            _localise(name, kind, flags, shell)
            if "n" in flags and kind != "export":
                shell.variables.pop(name, None)
                assign(expander, child, shell)
                _refer(name, shell)
                continue
            assign(expander, child, shell, flags=flags)
            _export(name, kind, flags, shell)
        elif text.startswith("-") and child.is_named:
            flags += text[1:]
        elif "f" in flags and child.is_named:
            shell.handed_on |= {text}
        elif child.type == "variable_name" and NAME.fullmatch(text):
            _localise(text, kind, flags, shell)
            if "A" in flags or "a" in flags:
                shell.variables.setdefault(text, Variable(array=True, keyed="A" in flags))
            elif kind != "export" and kind != "readonly":
                shell.variables.setdefault(text, Variable())
            _export(text, kind, flags, shell)
        elif child.is_named:
            for word in expander.fields(child.start_byte, child.end_byte):
                name, equals, _ = known_text(word).partition("=")
                if unknown_of(word) is not None and not equals:
                    return  # `export $(...)`: names nobody knows
                if equals and NAME.fullmatch(name):
                    shell.assign(name, behind_equals(word))
                _export(name, kind, flags, shell)


def unset(expander: Expander, words: list[str], shell: Shell) -> None:
    """`unset NAME`, `unset NAME[key]` and `unset -f NAME`."""
    flags = "".join(word[1:] for word in words if word.startswith("-"))
    for word in (word for word in words if not word.startswith("-")):
        name, bracket, index = word.removesuffix("]").partition("[")
        if "f" in flags:
            shell.functions.pop(name, None)
            continue
        name = name if "n" in flags else shell.meant(name)
        held = shell.variables.get(name)
        if bracket and index not in ("@", "*"):
            if held is None:
                continue
            key = index.strip("'\"")
            if not held.keyed:
                inner = expander.of(Source(index, [0], [expander.source.place(0)]))
                key = known_text(inner.arithmetic(0, len(index), expander.source.place(0)))
                key = str(max(map(int, held.entries)) + 1 + int(key)) if key.startswith("-") and held.entries else key
            entries = {at: value for at, value in held.entries.items() if at != key}
            shell.variables[name] = replace(held, entries=entries)
            continue
        if name in shell.given:
            shell.given = {key: value for key, value in shell.given.items() if key != name}
        shell.variables[name] = Variable()


def _refer(name: str, shell: Shell) -> None:
    """Make a variable another name of the one that its value names; of one nobody knows, nothing is known."""
    value = shell.variables[name].scalar
    if unknown_of(value) is None and NAME.fullmatch(known_text(value)) and shell.meant(known_text(value)) != name:
        shell.variables[name] = Variable(refers=shell.meant(known_text(value)))


def _localise(name: str, kind: str, flags: str, shell: Shell) -> None:
    if shell.local is not None and kind in ("local", "declare", "typeset") and "g" not in flags:
        shell.local.setdefault(name, shell.variables.get(name))
        if kind == "local":
            shell.variables.pop(name, None)


def _export(name: str, kind: str, flags: str, shell: Shell) -> None:
    found = shell.variables.get(name)
    if found is not None and (kind == "export" or "x" in flags) and "n" not in flags:
        shell.variables[name] = replace(found, exported=True)
